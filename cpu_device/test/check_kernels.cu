#include "check_kernels.hpp"

#include <cuda_runtime.h>

#include "tile/ptx/cp_async.cuh"

namespace device_test {
namespace {

using tile::ptx::cp_async;
using tile::ptx::cp_async_commit;
using tile::ptx::cp_async_wait;
using tile::ptx::cp_async_wait_all;

constexpr unsigned kThreads = 64;  // of a block: two warps
constexpr unsigned kFull = 0xffffffffu;

// ---- Barriers of a block ----

// A step of a tiled matrix product: who reads the tile needs what others have loaded.
template <bool kMistake>
__global__ void load_tile(const float* in, float* out) {
  __shared__ float tile[8][8];
  const unsigned x = threadIdx.x, y = threadIdx.y;
  tile[y][x] = in[y * 8 + x];  // [load_tile.write]
  if (!kMistake) __syncthreads();
  out[y * 8 + x] = tile[7 - x][y];  // [load_tile.read]
}

// The next tile is loaded while others still read the one before.
template <bool kMistake>
__global__ void next_tile(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  float sum = 0;
  for (unsigned k = 0; k < 3 * kThreads; k += kThreads) {
    tile[t] = in[k + t];  // [next_tile.write]
    __syncthreads();
    sum += tile[kThreads - 1 - t];  // [next_tile.read]
    if (!kMistake) __syncthreads();
  }
  out[t] = sum;
}

// A reduction whose last steps, of one warp, go without a barrier.
template <bool kMistake>
__global__ void last_warp(const float* in, float* out) {
  __shared__ float sums[kThreads];
  const unsigned t = threadIdx.x;
  sums[t] = in[t];
  for (unsigned step = kThreads / 2; step > 0; step /= 2) {
    if (!kMistake || step >= 32) __syncthreads();
    if (t < step) sums[t] += sums[t + step];  // [last_warp]
  }
  if (t == 0) out[0] = sums[0];
}

template <bool kMistake>
__global__ void shift(const float* in, float* out) {
  __shared__ float row[kThreads];
  const unsigned t = threadIdx.x;
  row[t] = in[t];
  __syncthreads();
  const float next = row[(t + 1) % kThreads];  // [shift.read]
  if (!kMistake) __syncthreads();
  row[t] = next;  // [shift.write]
  __syncthreads();
  out[t] = row[t];
}

// Every thread means to be the one that writes.
template <bool kMistake>
__global__ void one_total(const float* in, float* out) {
  __shared__ float total;
  const float value = in[threadIdx.x];
  if (!kMistake || threadIdx.x % 2 == 0) {
    if (kMistake || threadIdx.x == 0) total = value;  // [one_total.write]
  }
  __syncthreads();
  if (threadIdx.x == 0) out[0] = total;
}

// ---- Warps ----

template <bool kMistake>
__global__ void neighbour_lane(const float* in, float* out) {
  __shared__ float lanes[32];
  const unsigned t = threadIdx.x;
  lanes[t] = in[t];  // [neighbour_lane.write]
  if (!kMistake) __syncwarp();
  out[t] = lanes[t ^ 1];  // [neighbour_lane.read]
}

// A shuffle brings the lanes together and orders no memory.
template <bool kMistake>
__global__ void shuffle_for_barrier(const float* in, float* out) {
  __shared__ float lanes[32];
  const unsigned t = threadIdx.x;
  lanes[t] = in[t];  // [shuffle_for_barrier.write]
  const float other = __shfl_xor_sync(kFull, in[t], 1);
  if (!kMistake) __syncwarp();
  out[t] = lanes[t ^ 2] + other;  // [shuffle_for_barrier.read]
}

// Half of the warp has synchronised, and reads what the other half writes.
template <bool kMistake>
__global__ void half_warp(const float* in, float* out) {
  __shared__ float lanes[32];
  const unsigned t = threadIdx.x;
  lanes[t] = in[t];  // [half_warp.write]
  __syncwarp(kMistake ? (t < 16 ? 0x0000ffffu : 0xffff0000u) : kFull);
  out[t] = lanes[t ^ 16];  // [half_warp.read]
}

// All lanes have written before one reads, but each half knows of its own writes only.
template <bool kMistake>
__global__ void halves_that_met(const float* in, float* out) {
  __shared__ float lanes[32];
  __shared__ int met;
  const unsigned t = threadIdx.x;
  if (t == 0) met = 0;
  __syncwarp();
  lanes[t] = in[t];  // [halves_that_met.write]
  __syncwarp(kMistake ? (t < 16 ? 0x0000ffffu : 0xffff0000u) : kFull);
  atomicAdd(&met, 1);
  while (atomicAdd(&met, 0) < 32) continue;  // without a fence it tells of nothing else
  out[t] = lanes[t ^ 16];                    // [halves_that_met.read]
}

// Lane 0 has synchronised with some of the lanes that have read what it writes.
template <bool kMistake>
__global__ void some_readers(const float* in, float* out) {
  __shared__ float first;
  const unsigned t = threadIdx.x;
  if (t == 0) first = in[0];
  __syncwarp();
  float before = 0;
  if (t < 4) before = first;  // [some_readers.read]
  const float other = __shfl_xor_sync(kFull, in[t], 1);
  __syncwarp(kMistake ? (t < 3 ? 7u : ~7u) : kFull);
  if (t == 0) first = other;  // [some_readers.write]
  out[t] = before + other;
}

// ---- Atomics ----

template <bool kMistake>
__global__ void histogram(const int* counts, float* out) {
  __shared__ int bins[4];
  const unsigned t = threadIdx.x;
  if (t < 4) bins[t] = 0;
  __syncthreads();
  int* bin = &bins[(t + static_cast<unsigned>(counts[t])) % 4];
  if (kMistake) {
    *bin += 1;  // [histogram]
  } else {
    atomicAdd(bin, 1);
  }
  __syncthreads();
  if (t < 4) out[t] = static_cast<float>(bins[t]);
}

template <bool kMistake>
__global__ void clear_bins(float* out) {
  __shared__ int bins[4];
  const unsigned t = threadIdx.x;
  if (!kMistake && t < 4) bins[t] = 0;
  __syncthreads();
  atomicAdd(&bins[t % 4], 1);  // [clear_bins]
  __syncthreads();
  if (t < 4) out[t] = static_cast<float>(bins[t]);
}

// An atomic on one side only.
template <bool kMistake>
__global__ void read_counter(int* counts, float* out) {
  atomicAdd(&counts[0], 1);  // [read_counter.write]
  if (!kMistake) __syncthreads();
  if (threadIdx.x == 7) out[0] = static_cast<float>(counts[0]);  // [read_counter.read]
}

// ---- Blocks ----

template <bool kMistake>
__global__ void sum_of_blocks(const float* in, int* counts) {
  const int value = static_cast<int>(in[blockIdx.x]) + 1;
  if (kMistake) {
    counts[3] = value;  // [sum_of_blocks]
  } else {
    atomicAdd(&counts[3], value);
  }
}

// A block needs what its neighbour computes: that takes a second launch.
template <bool kMistake>
__global__ void neighbour_block(const float* in, float* out) {
  const unsigned b = blockIdx.x;
  if (b % 2 == 0) out[b] = in[b];                              // [neighbour_block.write]
  if (b % 2 == 1) out[b] = kMistake ? out[b - 1] : in[b - 1];  // [neighbour_block.read]
}

// A block writes what the other has read, and its own threads as well.
template <bool kMistake>
__global__ void read_by_both_blocks(__half* halves, float* out) {
  const unsigned t = threadIdx.x;
  const float before = __half2float(halves[0]);  // [read_by_both_blocks.read]
  __syncthreads();
  if (blockIdx.x == 1 && t == 0) {
    halves[kMistake ? 0 : 1] = __float2half(1);  // [read_by_both_blocks.write]
  }
  out[blockIdx.x * kThreads + t] = before;
}

// The last block to come adds up what all have left (as NVIDIA's threadFenceReduction does).
template <bool kMistake>
__global__ void last_block(const float* in, float* out, unsigned* done) {
  __shared__ bool is_last;
  const unsigned b = blockIdx.x, t = threadIdx.x;
  if (t == 0) {
    out[b] = in[b];  // [last_block.write]
    if (!kMistake) __threadfence();
    is_last = atomicInc(done, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && t < gridDim.x) {
    out[kThreads + t] = out[t];  // [last_block.read]
  }
}

// All blocks add to one sum by atomics, and the last one reads it. Its own atomic came after the
// others', and says nothing of them.
template <bool kMistake>
__global__ void sum_by_atomics(const float* in, int* counts, float* out) {
  atomicAdd(&counts[1], static_cast<int>(in[blockIdx.x]) + 1);  // [sum_by_atomics.write]
  if (!kMistake) __threadfence();
  const bool is_last = atomicAdd(&counts[0], 1) == static_cast<int>(gridDim.x) - 1;
  if (!kMistake) __threadfence();
  if (is_last) out[0] = static_cast<float>(counts[1]);  // [sum_by_atomics.read]
}

// The last block again, with a fence that other blocks need not heed.
template <bool kMistake>
__global__ void fence_of_the_block(const float* in, float* out, unsigned* done) {
  const unsigned b = blockIdx.x;
  out[b] = in[b];  // [fence_of_the_block.write]
  kMistake ? __threadfence_block() : __threadfence();
  const bool is_last = atomicInc(done, gridDim.x) == gridDim.x - 1;
  kMistake ? __threadfence_block() : __threadfence();
  if (is_last) out[kThreads] = out[b == 0 ? 1 : 0];  // [fence_of_the_block.read]
}

// Before the barrier each thread needs a fence of its own.
template <bool kMistake>
__global__ void fence_of_one_thread(const float* in, float* out, unsigned* done) {
  __shared__ bool is_last;
  const unsigned b = blockIdx.x, t = threadIdx.x;
  out[b * kThreads + t] = in[t];  // [fence_of_one_thread.write]
  if (!kMistake || t == 0) __threadfence();
  __syncthreads();
  if (t == 0) {
    is_last = atomicInc(done, gridDim.x) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (is_last) out[2 * kThreads + t] = out[(1 - b) * kThreads + t];  // [fence_of_one_thread.read]
}

// The last block puts the counter back, which the others have updated.
template <bool kMistake>
__global__ void reset_counter(const float* in, float* out, unsigned* done) {
  const unsigned b = blockIdx.x;
  out[b] = in[b];
  __threadfence();
  const bool resets = kMistake && b == 3;
  if (atomicAdd(done, 1u) == gridDim.x - 1 || resets) *done = 0;  // [reset_counter]
}

// A read that a loop of atomicCAS corrects, as in CUDA's guide. A block that only reads has no such
// loop.
template <bool kMistake>
__global__ void cas_maximum(float* out, int* counts) {
  const int value = static_cast<int>(blockIdx.x * 3 % 8);
  int old = counts[2];  // [cas_maximum.read]
  if (kMistake && blockIdx.x == 5) {
    out[0] = static_cast<float>(old);
    return;
  }
  int assumed = 0;
  do {
    assumed = old;
    old = atomicCAS(&counts[2], assumed, max(value, assumed));  // [cas_maximum.write]
  } while (old != assumed);
}

// The last block, by a counter that is a variable of the device.
__device__ unsigned done_on_device;
template <bool kMistake>
__global__ void device_counter(const float* in, float* out) {
  __shared__ bool is_last;
  const unsigned b = blockIdx.x, t = threadIdx.x;
  if (t == 0) {
    out[b] = in[b];  // [device_counter.write]
    if (!kMistake) __threadfence();
    is_last = atomicInc(&done_on_device, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && t < gridDim.x) out[kThreads + t] = out[t];  // [device_counter.read]
}

__device__ float total_on_device;
template <bool kMistake>
__global__ void device_total(const float* in) {
  const float value = in[threadIdx.x];
  if (kMistake) {
    total_on_device += value;  // [device_total]
  } else {
    atomicAdd(&total_on_device, value);
  }
}

// The sums of blocks are volatile: without a fence the atomic says nothing of them.
template <bool kMistake>
__global__ void volatile_sums(const float* in, float* out, unsigned* done) {
  __shared__ bool is_last;
  volatile float* sums = out;
  const unsigned b = blockIdx.x, t = threadIdx.x;
  if (t == 0) {
    sums[b] = in[b];  // [volatile_sums.write]
    if (!kMistake) __threadfence();
    is_last = atomicInc(done, gridDim.x) == gridDim.x - 1;  // [volatile_sums.atomic]
  }
  __syncthreads();
  if (is_last && t < gridDim.x) {
    const float sum = sums[t];  // [volatile_sums.read]
    out[kThreads + t] = sum;
  }
}

// ---- What C++ leaves undefined ----

template <bool kMistake>
__global__ void shift_by_all(const int* counts, float* out) {
  const int lanes = counts[0] + (kMistake ? 32 : 31);
  out[threadIdx.x] = static_cast<float>((1u << lanes) - 1);  // [shift_by_all]
}

template <bool kMistake>
__global__ void cast_out_of_range(const int* counts, float* out) {
  const float large = static_cast<float>(counts[0]) + (kMistake ? 3e9f : 2e9f);
  out[threadIdx.x] = static_cast<float>(static_cast<int>(large) / 2);  // [cast_out_of_range]
}

// ---- Flags ----

// Thread 32 hands a value to thread 0, which waits in a loop.
template <bool kMistake>
__global__ void wait_for_flag(const float* in, float* out) {
  __shared__ int flag;
  __shared__ float value;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  volatile int* shown = &flag;
  if (threadIdx.x == 0) {
    if (kMistake) {
      while (flag == 0) {  // [wait_for_flag.read]
      }
    } else {
      while (*shown == 0) {
      }
    }
    __threadfence_block();
    out[0] = value;
  } else if (threadIdx.x == 32) {
    value = in[0];
    __threadfence_block();
    if (kMistake) {
      flag = 1;  // [wait_for_flag.write]
    } else {
      *shown = 1;
    }
  }
}

// The flag is volatile; without a fence it says nothing about the value.
template <bool kMistake>
__global__ void flag_without_fence(const float* in, float* out) {
  __shared__ volatile int flag;
  __shared__ float value;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    while (flag == 0) {
    }
    if (!kMistake) __threadfence_block();
    out[0] = value;  // [flag_without_fence.read]
  } else if (threadIdx.x == 32) {
    value = in[0];  // [flag_without_fence.write]
    if (!kMistake) __threadfence_block();
    flag = 1;
  }
}

// ---- Addresses in global memory ----

template <bool kMistake>
__global__ void guard_of_read(const float* in, float* out, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i + (kMistake ? 0 : 1) >= n) return;
  out[i] = in[i + 1] - in[i];  // [guard_of_read]
}

template <bool kMistake>
__global__ void guard_of_write(float* out, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (kMistake ? i > n : i >= n) return;
  out[i] = 1;  // [guard_of_write]
}

template <bool kMistake>
__global__ void left_neighbour(const float* in, float* out) {
  const int i = static_cast<int>(threadIdx.x);
  const float left = kMistake || i > 0 ? in[i - 1] : 0;  // [left_neighbour]
  out[i] = left;
}

// A row of the matrix is shorter than the way from one to the next.
template <bool kMistake>
__global__ void columns(const float* matrix, float* out) {
  const int column = static_cast<int>(threadIdx.x), row = static_cast<int>(threadIdx.y);
  if (column >= (kMistake ? kLd : kColumns)) return;
  out[row * kLd + column] = matrix[row * kLd + column];  // [columns]
}

// All rows but the last, which has no padding.
template <bool kMistake>
__global__ void padding_of_rows(const float* matrix, float* out) {
  const int column = static_cast<int>(threadIdx.x), row = static_cast<int>(threadIdx.y);
  if (column >= (kMistake ? kLd : kColumns)) return;
  out[row * kLd + column] = matrix[row * kLd + column];  // [padding_of_rows]
}

template <bool kMistake>
__global__ void vector_at_end(const float* in, float* out) {
  const unsigned i = 4 * threadIdx.x;
  // Of a row whose length is no multiple of 4, the last elements are no vector.
  if (i + (kMistake ? 0 : 3) >= kCount) return;
  const float4 four = *reinterpret_cast<const float4*>(&in[i]);  // [vector_at_end]
  *reinterpret_cast<float4*>(&out[i]) = four;
}

template <bool kMistake>
__global__ void unnamed_array(float* fresh) {
  fresh[threadIdx.x + (kMistake ? kCount - kThreads + 1 : 0)] = 1;  // [unnamed_array]
}

template <bool kMistake>
__global__ void misaligned_vector(const float* in, float* out) {
  const float* mine = in + 4 * threadIdx.x + (kMistake ? 1 : 0);
  const auto* four = reinterpret_cast<const float4*>(mine);
  out[threadIdx.x] = four->x + four->y + four->z + four->w;  // [misaligned_vector]
}

template <bool kMistake>
__global__ void heap_of_host(const float* in, float* out) {
  out[threadIdx.x] = in[threadIdx.x];  // [heap_of_host]
}

template <bool kMistake>
__global__ void stack_of_host(const float* in, float* out) {
  out[threadIdx.x] = in[threadIdx.x];  // [stack_of_host]
}

template <bool kMistake>
__global__ void null_pointer(const float* in, float* out) {
  out[threadIdx.x] = in[threadIdx.x];  // [null_pointer]
}

// ---- Addresses in shared memory ----

template <bool kMistake>
__global__ void past_shared(const float* in, float* out) {
  __shared__ float one[kThreads];
  __shared__ float row[kThreads];
  __shared__ float other[kThreads];
  const unsigned t = threadIdx.x;
  row[t + (kMistake ? 1 : 0)] = in[t];  // [past_shared]
  one[t] = other[t] = 0;
  __syncthreads();
  out[t] = row[kThreads - 1 - t] + one[t] + other[t];
}

template <bool kMistake>
__global__ void past_square(const float* in, float* out) {
  __shared__ float square[8][9];
  const unsigned x = threadIdx.x % 8, y = threadIdx.x / 8;
  square[y + (kMistake ? 1 : 0)][x] = in[threadIdx.x];  // [past_square]
  __syncthreads();
  out[threadIdx.x] = square[y][x];
}

template <bool kMistake>
__global__ void dynamic_too_short(const float* in, float* out) {
  extern __shared__ float dynamic[];
  const unsigned t = threadIdx.x;
  dynamic[t] = in[t];  // [dynamic_too_short]
  __syncthreads();
  out[t] = dynamic[kThreads - 1 - t];
}

// Two arrays of one declaration.
template <bool kMistake>
__global__ void next_array(const float* in, float* out) {
  __shared__ float a[kThreads], b[kThreads];
  const unsigned t = threadIdx.x;
  b[t] = 0;
  __syncthreads();
  a[t + (kMistake ? 1 : 0)] = in[t];  // [next_array]
  __syncthreads();
  out[t] = b[t] + (kMistake ? 0 : a[kThreads - 1 - t]);
}

template <bool kMistake>
__global__ void misaligned_in_shared(const float* in, float* out) {
  __shared__ float row[2 * kThreads];
  const unsigned t = threadIdx.x;
  row[t] = in[t];
  row[kThreads + t] = in[t];
  __syncthreads();
  if (t >= 8) return;
  const float* mine = &row[t * (kMistake ? 6 : 4)];
  const auto* four = reinterpret_cast<const float4*>(mine);
  out[t] = four->x + four->w;  // [misaligned_in_shared]
}

// ---- What was never written ----

template <bool kMistake>
__global__ void fresh_memory(float* fresh, float* out) {
  if (!kMistake) fresh[threadIdx.x] = 1;
  out[threadIdx.x] = fresh[threadIdx.x];  // [fresh_memory]
}

// Of the last tile some threads have nothing to load, and must store zeros.
template <bool kMistake>
__global__ void tail_of_tile(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  if (t < 50) {
    tile[t] = in[t];
  } else if (!kMistake) {
    tile[t] = 0;
  }
  __syncthreads();
  out[t] = tile[kThreads - 1 - t];  // [tail_of_tile]
}

template <bool kMistake>
__global__ void add_to_output(const float* in, float* out) {
  if (!kMistake) out[threadIdx.x] = 0;
  out[threadIdx.x] += in[threadIdx.x];  // [add_to_output]
}

// What one block leaves in shared memory is nothing to the next.
template <bool kMistake>
__global__ void left_by_block(const float* in, float* out) {
  __shared__ float value;
  if (threadIdx.x == 0) {
    if (!kMistake || blockIdx.x == 1) value = in[0];
    out[blockIdx.x] = value;  // [left_by_block]
  }
}

// ---- Small types and large ones ----

// Two halves share a word, and are different places.
template <bool kMistake>
__global__ void neighbouring_halves(__half* halves) {
  halves[threadIdx.x / (kMistake ? 2 : 1)] = __half(1.0f);  // [neighbouring_halves]
}

template <bool kMistake>
__global__ void neighbouring_letters(unsigned char* letters) {
  __shared__ unsigned char text[kThreads];
  const unsigned t = threadIdx.x;
  text[t] = static_cast<unsigned char>(t);  // [neighbouring_letters.write]
  if (!kMistake) __syncthreads();
  letters[t] = text[t ^ 3];  // [neighbouring_letters.read]
}

// Two letters of a word have been written by two threads.
template <bool kMistake>
__global__ void first_of_two_letters(unsigned char* letters) {
  __shared__ unsigned char text[4];
  const unsigned t = threadIdx.x;
  if (t < 2) text[t] = static_cast<unsigned char>(t);  // [first_of_two_letters.write]
  if (!kMistake) __syncthreads();
  if (t == 32) letters[0] = text[0];  // [first_of_two_letters.read]
}

struct Record {
  double weight;
  int where[5];
};

template <bool kMistake>
__global__ void copy_of_struct(const float* in, float* out) {
  __shared__ Record records[32];
  const unsigned t = threadIdx.x;
  Record mine{};
  mine.weight = in[t];
  records[t] = mine;  // [copy_of_struct.write]
  if (!kMistake) __syncthreads();
  const Record other = records[(t + 1) % 32];  // [copy_of_struct.read]
  out[t] = static_cast<float>(other.weight) + static_cast<float>(other.where[4]);
}

// From one place to the other without a variable between.
template <bool kMistake>
__global__ void copy_of_vector(const float* in, float* out) {
  __shared__ float4 vectors[32];
  const unsigned t = threadIdx.x;
  vectors[t] = reinterpret_cast<const float4*>(in)[t];  // [copy_of_vector.write]
  if (!kMistake) __syncthreads();
  reinterpret_cast<float4*>(out)[t] = vectors[t ^ 1];  // [copy_of_vector.read]
}

// ---- Asynchronous copies ----

// No thread has waited, and the barrier is no wait.
template <bool kMistake>
__global__ void copy_without_wait(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  cp_async<4>(&tile[t], &in[t]);  // [copy_without_wait.copy]
  cp_async_commit();
  if (!kMistake) cp_async_wait<0>();
  __syncthreads();
  out[t] = tile[kThreads - 1 - t];  // [copy_without_wait.access]
}

template <bool kMistake>
__global__ void copy_without_commit(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  cp_async<4>(&tile[t], &in[t]);  // [copy_without_commit.copy]
  if (!kMistake) cp_async_commit();
  cp_async_wait<0>();  // [copy_without_commit.wait]
  out[t] = tile[t];    // [copy_without_commit.access]
}

// The commit comes too late for the wait.
template <bool kMistake>
__global__ void commit_after_wait(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  cp_async<4>(&tile[t], &in[t]);  // [commit_after_wait.copy]
  if (!kMistake) cp_async_commit();
  cp_async_wait<0>();  // [commit_after_wait.wait]
  if (kMistake) cp_async_commit();
  out[t] = tile[t];  // [commit_after_wait.access]
}

// One warp copies for the other.
template <bool kMistake>
__global__ void copy_for_other_warp(const float* in, float* out) {
  __shared__ float tile[32];
  const unsigned t = threadIdx.x;
  if (t < 32) cp_async<4>(&tile[t], &in[t]);  // [copy_for_other_warp.copy]
  cp_async_wait_all();                        // [copy_for_other_warp.wait]
  if (!kMistake) __syncthreads();
  if (t >= 32) out[t] = tile[t - 32];  // [copy_for_other_warp.read]
}

// All have waited, and know it of one another, but not for the second group.
template <bool kMistake>
__global__ void two_groups(const float* in, float* out) {
  __shared__ float first[32], second[32];
  const unsigned t = threadIdx.x;
  cp_async<4>(&first[t], &in[t]);
  cp_async_commit();
  cp_async<4>(&second[t], &in[t]);  // [two_groups.copy]
  cp_async_commit();
  cp_async_wait<kMistake ? 1 : 0>();  // [two_groups.wait]
  __syncwarp();
  out[t] = first[t ^ 1] + second[t ^ 1];  // [two_groups.access]
}

// A thread's wait is for its own copies.
template <bool kMistake>
__global__ void wait_without_barrier(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  cp_async<4>(&tile[t], &in[t]);  // [wait_without_barrier.copy]
  cp_async_wait_all();            // [wait_without_barrier.wait]
  if (!kMistake) __syncthreads();
  out[t] = tile[kThreads - 1 - t];  // [wait_without_barrier.read]
}

// The same where a barrier, which comes too early, has ordered the copy and the read.
template <bool kMistake>
__global__ void barrier_before_wait(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  cp_async<4>(&tile[t], &in[t]);  // [barrier_before_wait.copy]
  if (kMistake) __syncthreads();
  cp_async_wait_all();  // [barrier_before_wait.wait]
  if (!kMistake) __syncthreads();
  out[t] = tile[kThreads - 1 - t];  // [barrier_before_wait.access]
}

// Three tiles under way: one less must be, before the oldest is read.
template <bool kMistake>
__global__ void three_stages(const float* in, float* out) {
  constexpr unsigned kStages = 3;
  __shared__ float stages[kStages][kThreads];
  const unsigned t = threadIdx.x;
  for (unsigned k = 0; k < kStages - 1; ++k) {
    cp_async<4>(&stages[k][t], &in[kThreads * k + t]);  // [three_stages.copy]
    cp_async_commit();
  }
  float sum = 0;
  for (unsigned k = 0; k < 3; ++k) {
    cp_async_wait<kMistake ? kStages - 1 : kStages - 2>();  // [three_stages.wait]
    __syncthreads();
    const unsigned next = k + kStages - 1;
    if (next < 3) cp_async<4>(&stages[next % kStages][t], &in[kThreads * next + t]);
    cp_async_commit();
    sum += stages[k % kStages][kThreads - 1 - t];  // [three_stages.access]
  }
  out[t] = sum;
}

// The next tile is copied while others still read the one before.
template <bool kMistake>
__global__ void next_copy(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  float sum = 0;
  for (unsigned k = 0; k < 3 * kThreads; k += kThreads) {
    cp_async<4>(&tile[t], &in[k + t]);  // [next_copy.copy]
    cp_async_wait_all();                // [next_copy.wait]
    __syncthreads();
    sum += tile[kThreads - 1 - t];  // [next_copy.read]
    if (!kMistake) __syncthreads();
  }
  out[t] = sum;
}

// Two slots: the copy of the tile after the next goes where this one is being read.
template <bool kMistake>
__global__ void slot_reused(const float* in, float* out) {
  __shared__ float slots[2][kThreads];
  const unsigned t = threadIdx.x;
  for (unsigned k = 0; k < 2; ++k) {
    cp_async<4>(&slots[k][t], &in[kThreads * k + t]);
    cp_async_commit();
  }
  float sum = 0;
  for (unsigned k = 0; k < 3; ++k) {
    cp_async_wait<1>();
    __syncthreads();
    sum += slots[k % 2][kThreads - 1 - t];  // [slot_reused.read]
    if (!kMistake) __syncthreads();
    if (k + 2 < 3)
      cp_async<4>(&slots[k % 2][t], &in[kThreads * (k + 2) + t]);  // [slot_reused.copy]
    cp_async_commit();
  }
  out[t] = sum;
}

// The thread itself must leave the destination alone.
template <bool kMistake>
__global__ void clear_after_copy(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  if (!kMistake) tile[t] = 0;
  if (t < 50) cp_async<4>(&tile[t], &in[t]);  // [clear_after_copy.copy]
  if (kMistake) tile[t] = 0;                  // [clear_after_copy.access]
  cp_async_wait_all();
  out[t] = tile[t];
}

template <bool kMistake>
__global__ void copies_to_one_place(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  cp_async<4>(&tile[kMistake ? t / 2 : t], &in[t]);  // [copies_to_one_place]
  cp_async_wait_all();                               // [copies_to_one_place.wait]
  out[t] = kMistake ? 0 : tile[t];
}

// The copy reads what others have just written.
template <bool kMistake>
__global__ void copy_too_early(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  out[t] = in[t];  // [copy_too_early.write]
  if (!kMistake) __syncthreads();
  cp_async<4>(&tile[t], &out[kThreads - 1 - t]);  // [copy_too_early.read]
  cp_async_wait_all();
  out[kThreads + t] = tile[t];
}

template <bool kMistake>
__global__ void copy_past_end(const float* in, float* out) {
  __shared__ float tile[4 * 32];
  const unsigned t = threadIdx.x;
  cp_async<16>(&tile[4 * (t + (kMistake ? 1 : 0))], &in[4 * t]);  // [copy_past_end]
  cp_async_wait_all();
  out[t] = kMistake ? 0 : tile[4 * t];
}

// Of the last piece a part exists, of those after it nothing.
template <bool kMistake>
__global__ void copy_of_tail(const float* in, float* out) {
  __shared__ float tile[4 * kThreads];
  const int t = static_cast<int>(threadIdx.x);
  const int left = 4 * (static_cast<int>(kCount) - 4 * t);
  const int bytes = left < 0 ? 0 : left < 16 ? left : 16;
  cp_async<16>(&tile[4 * t], &in[4 * t], kMistake ? 16 : bytes);  // [copy_of_tail]
  cp_async_wait_all();
  out[t] = tile[4 * t] + tile[4 * t + 3];
}

template <bool kMistake>
__global__ void copy_of_fresh(float* fresh, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  if (!kMistake) fresh[t] = 1;
  cp_async<4>(&tile[t], &fresh[t]);  // [copy_of_fresh]
  cp_async_wait_all();
  out[t] = tile[t];
}

template <bool kMistake>
__global__ void misaligned_copy(const float* in, float* out) {
  __shared__ float4 tile[8];
  const unsigned t = threadIdx.x;
  if (t < 8) cp_async<16>(&tile[t], &in[t * (kMistake ? 6 : 4)]);  // [misaligned_copy]
  cp_async_wait_all();
  if (t < 8) out[t] = tile[t].x;
}

template <bool kMistake>
__global__ void copy_to_global(const float* in, float* out) {
  __shared__ float tile[kThreads];
  const unsigned t = threadIdx.x;
  cp_async<4>(kMistake ? &out[t] : &tile[t], &in[t]);  // [copy_to_global]
  cp_async_wait_all();
  if (!kMistake) out[t] = tile[t];
}

template <bool kMistake>
__global__ void copy_of_shared(const float* in, float* out) {
  __shared__ float tile[kThreads], source[kThreads];
  const unsigned t = threadIdx.x;
  source[t] = in[t];
  cp_async<4>(&tile[t], kMistake ? &source[t] : &in[t]);  // [copy_of_shared]
  cp_async_wait_all();
  out[t] = tile[t] + source[t];
}

// Calls launch.operator()<mistake>().
template <class Launch>
void either(bool mistake, Launch launch) {
  if (mistake) {
    launch.template operator()<true>();
  } else {
    launch.template operator()<false>();
  }
}

const Pair kAll[] = {
    {"load_tile",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { load_tile<kM><<<1, dim3(8, 8)>>>(m.in, m.out); });
     }},
    {"next_tile",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { next_tile<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"last_warp",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { last_warp<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"shift",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { shift<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"one_total",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { one_total<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"neighbour_lane",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { neighbour_lane<kM><<<1, 32>>>(m.in, m.out); });
     }},
    {"shuffle_for_barrier",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { shuffle_for_barrier<kM><<<1, 32>>>(m.in, m.out); });
     }},
    {"half_warp",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { half_warp<kM><<<1, 32>>>(m.in, m.out); });
     }},
    {"halves_that_met",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { halves_that_met<kM><<<1, 32>>>(m.in, m.out); });
     }},
    {"some_readers",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { some_readers<kM><<<1, 32>>>(m.in, m.out); });
     }},
    {"histogram",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { histogram<kM><<<1, kThreads>>>(m.counts, m.out); });
     }},
    {"clear_bins",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { clear_bins<kM><<<1, kThreads>>>(m.out); });
     }},
    {"read_counter",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { read_counter<kM><<<1, kThreads>>>(m.counts, m.out); });
     }},
    {"sum_of_blocks",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { sum_of_blocks<kM><<<8, 1>>>(m.in, m.counts); });
     }},
    {"neighbour_block",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { neighbour_block<kM><<<8, 1>>>(m.in, m.out); });
     }},
    {"read_by_both_blocks",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { read_by_both_blocks<kM><<<2, kThreads>>>(m.halves, m.out); });
     }},
    {"last_block",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() {
         last_block<kM><<<8, kThreads>>>(m.in, m.out, reinterpret_cast<unsigned*>(m.counts));
       });
     }},
    {"sum_by_atomics",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { sum_by_atomics<kM><<<8, 1>>>(m.in, m.counts, m.out); });
     }},
    {"fence_of_the_block",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() {
         fence_of_the_block<kM><<<8, 1>>>(m.in, m.out, reinterpret_cast<unsigned*>(m.counts));
       });
     }},
    {"fence_of_one_thread",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() {
         fence_of_one_thread<kM>
             <<<2, kThreads>>>(m.in, m.out, reinterpret_cast<unsigned*>(m.counts));
       });
     }},
    {"reset_counter",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() {
         reset_counter<kM><<<8, 1>>>(m.in, m.out, reinterpret_cast<unsigned*>(m.counts));
       });
     }},
    {"cas_maximum",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { cas_maximum<kM><<<8, 1>>>(m.out, m.counts); });
     }},
    {"device_counter",
     [](bool mistake, const Memory& m) {
       const unsigned none = 0;
       cudaMemcpyToSymbol(done_on_device, &none, sizeof none);
       either(mistake, [&]<bool kM>() { device_counter<kM><<<8, kThreads>>>(m.in, m.out); });
     }},
    {"device_total",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { device_total<kM><<<1, kThreads>>>(m.in); });
     }},
    {"volatile_sums",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() {
         volatile_sums<kM><<<8, kThreads>>>(m.in, m.out, reinterpret_cast<unsigned*>(m.counts));
       });
     }},
    {"shift_by_all",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { shift_by_all<kM><<<1, kThreads>>>(m.counts, m.out); });
     }},
    {"cast_out_of_range",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { cast_out_of_range<kM><<<1, kThreads>>>(m.counts, m.out); });
     }},
    {"wait_for_flag",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { wait_for_flag<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"flag_without_fence",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { flag_without_fence<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"guard_of_read",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { guard_of_read<kM><<<5, kThreads>>>(m.in, m.out, kCount); });
     }},
    {"guard_of_write",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { guard_of_write<kM><<<5, kThreads>>>(m.out, kCount); });
     }},
    {"left_neighbour",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { left_neighbour<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"columns",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { columns<kM><<<1, dim3(16, kRows)>>>(m.matrix, m.out); });
     }},
    {"padding_of_rows",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { padding_of_rows<kM><<<1, dim3(16, 4)>>>(m.matrix, m.out); });
     }},
    {"vector_at_end",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { vector_at_end<kM><<<1, 2 * kThreads>>>(m.in, m.out); });
     }},
    {"unnamed_array",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { unnamed_array<kM><<<1, kThreads>>>(m.fresh); });
     }},
    {"misaligned_vector",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { misaligned_vector<kM><<<1, 32>>>(m.in, m.out); });
     }},
    {"heap_of_host",
     [](bool mistake, const Memory& m) {
       either(mistake,
              [&]<bool kM>() { heap_of_host<kM><<<1, kThreads>>>(kM ? m.heap : m.in, m.out); });
     }},
    {"stack_of_host",
     [](bool mistake, const Memory& m) {
       const float stack[kThreads] = {};
       either(mistake,
              [&]<bool kM>() { stack_of_host<kM><<<1, kThreads>>>(kM ? stack : m.in, m.out); });
     }},
    {"null_pointer",
     [](bool mistake, const Memory& m) {
       either(mistake,
              [&]<bool kM>() { null_pointer<kM><<<1, kThreads>>>(kM ? nullptr : m.in, m.out); });
     }},
    {"past_shared",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { past_shared<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"past_square",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { past_square<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"dynamic_too_short",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() {
         dynamic_too_short<kM>
             <<<1, kThreads, (kThreads - (kM ? 4 : 0)) * sizeof(float)>>>(m.in, m.out);
       });
     }},
    {"next_array",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { next_array<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"misaligned_in_shared",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { misaligned_in_shared<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"fresh_memory",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { fresh_memory<kM><<<1, kThreads>>>(m.fresh, m.out); });
     }},
    {"tail_of_tile",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { tail_of_tile<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"add_to_output",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { add_to_output<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"left_by_block",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { left_by_block<kM><<<2, 32>>>(m.in, m.out); });
     }},
    {"neighbouring_halves",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { neighbouring_halves<kM><<<1, kThreads>>>(m.halves); });
     }},
    {"neighbouring_letters",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { neighbouring_letters<kM><<<1, kThreads>>>(m.letters); });
     }},
    {"first_of_two_letters",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { first_of_two_letters<kM><<<1, kThreads>>>(m.letters); });
     }},
    {"copy_of_struct",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_of_struct<kM><<<1, 32>>>(m.in, m.out); });
     }},
    {"copy_of_vector",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_of_vector<kM><<<1, 32>>>(m.in, m.out); });
     }},
    {"copy_without_wait",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_without_wait<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"copy_without_commit",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_without_commit<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"commit_after_wait",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { commit_after_wait<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"copy_for_other_warp",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_for_other_warp<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"two_groups",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { two_groups<kM><<<1, 32>>>(m.in, m.out); });
     }},
    {"wait_without_barrier",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { wait_without_barrier<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"barrier_before_wait",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { barrier_before_wait<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"three_stages",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { three_stages<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"next_copy",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { next_copy<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"slot_reused",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { slot_reused<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"clear_after_copy",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { clear_after_copy<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"copies_to_one_place",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copies_to_one_place<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"copy_too_early",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_too_early<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"copy_past_end",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_past_end<kM><<<1, 32>>>(m.in, m.out); });
     }},
    {"copy_of_tail",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_of_tail<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"copy_of_fresh",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_of_fresh<kM><<<1, kThreads>>>(m.fresh, m.out); });
     }},
    {"misaligned_copy",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { misaligned_copy<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"copy_to_global",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_to_global<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
    {"copy_of_shared",
     [](bool mistake, const Memory& m) {
       either(mistake, [&]<bool kM>() { copy_of_shared<kM><<<1, kThreads>>>(m.in, m.out); });
     }},
};

}  // namespace

const std::span<const Pair> kPairs = kAll;

namespace {
__global__ void found_kernel(int* found, bool same) {
  if (threadIdx.x % 2 != 0) *found = same ? 1 : static_cast<int>(threadIdx.x);  // [found]
}
}  // namespace

void store_found(int* found, bool same) { found_kernel<<<2, kThreads>>>(found, same); }

}  // namespace device_test
