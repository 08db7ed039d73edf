#include "async_kernels.hpp"

#include <cuda_runtime.h>

#include "tile/ptx/cp_async.cuh"

namespace device_test {
namespace {

using tile::ptx::cp_async;
using tile::ptx::cp_async_commit;
using tile::ptx::cp_async_wait;
using tile::ptx::cp_async_wait_all;

constexpr int kMostThreads = 256;

__global__ void script_kernel(Script script, const float* in, float* out) {
  __shared__ float slots[kSlots][kMostThreads];
  const unsigned t = threadIdx.x;
  for (auto& slot : slots) slot[t] = -1;
  __syncthreads();
  unsigned from = t, to = t;
  for (const char step : script.steps) {
    if (step >= 'a' && step <= 'd') {
      cp_async<4>(&slots[step - 'a'][t], &in[from]);
      from += blockDim.x;
    } else if (step >= 'A' && step <= 'D') {
      out[to] = slots[step - 'A'][t];
      to += blockDim.x;
    } else if (step == ',') {
      cp_async_commit();
    } else if (step == '*') {
      cp_async_wait_all();
    } else if (step == '0') {
      cp_async_wait<0>();
    } else if (step == '1') {
      cp_async_wait<1>();
    } else if (step == '2') {
      cp_async_wait<2>();
    } else if (step == '3') {
      cp_async_wait<3>();
    }
  }
}

template <int kBytes>
__device__ void store(const unsigned char* piece, unsigned char* out) {
  for (int i = 0; i < kBytes; ++i) out[threadIdx.x * kBytes + static_cast<unsigned>(i)] = piece[i];
}

template <int kBytes>
__global__ void pieces_kernel(const unsigned char* in, unsigned char* out) {
  __shared__ alignas(16) unsigned char pieces[kMostThreads][kBytes];
  unsigned char* mine = pieces[threadIdx.x];
  cp_async<kBytes>(mine, &in[threadIdx.x * kBytes]);
  cp_async_commit();
  cp_async_wait<0>();
  store<kBytes>(mine, out);
}

template <int kBytes>
__global__ void part_kernel(const unsigned char* in, unsigned char* out) {
  __shared__ alignas(16) unsigned char pieces[kMostThreads][kBytes];
  unsigned char* mine = pieces[threadIdx.x];
  const unsigned char* source = in ? &in[threadIdx.x * kBytes] : nullptr;
  cp_async<kBytes>(mine, source, in ? static_cast<int>(threadIdx.x) % (kBytes + 1) : 0);
  cp_async_commit();
  cp_async_wait<0>();
  store<kBytes>(mine, out);
}

__global__ void sum_tiles_kernel(const float* in, float* out, int tiles) {
  constexpr int kStages = 3;
  __shared__ float stages[kStages][kTile];
  const int t = static_cast<int>(threadIdx.x);
  in += static_cast<size_t>(blockIdx.x) * static_cast<size_t>(tiles) * kTile;
  for (int k = 0; k < kStages - 1; ++k) {
    if (k < tiles) cp_async<4>(&stages[k][t], &in[k * kTile + t]);
    cp_async_commit();
  }
  float sum = 0;
  for (int k = 0; k < tiles; ++k) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // tile k is there, and all threads have read tile k - 1
    const int next = k + kStages - 1;
    if (next < tiles) cp_async<4>(&stages[next % kStages][t], &in[next * kTile + t]);
    cp_async_commit();
    sum += stages[k % kStages][kTile - 1 - t];
  }
  out[blockIdx.x * kTile + threadIdx.x] = sum;
}

__global__ void read_late_kernel(float* memory) {
  __shared__ float place;
  cp_async<4>(&place, memory);
  memory[0] = 5;
  cp_async_wait_all();
  memory[1] = place;
}

__global__ void leave_kernel(const float* in, bool fail) {
  __shared__ float slots[kMostThreads];
  cp_async<4>(&slots[threadIdx.x], &in[threadIdx.x]);
  cp_async_commit();
  if (fail && threadIdx.x == 3) __trap();
}

__global__ void never_wait_kernel(const float* in, float* out, int count) {
  __shared__ float place;
  place = -1;
  for (int i = 0; i < count; ++i) cp_async<4>(&place, &in[i]);
  out[0] = place;
  cp_async_wait_all();
  out[1] = place;
}

__global__ void bad_copy_kernel(BadCopy mistake, float* memory) {
  __shared__ float row[32];
  float local[4] = {};
  float* to = row;
  const float* from = memory;
  int bytes = 16;
  if (threadIdx.x == 5) {
    switch (mistake) {
      case BadCopy::none: break;
      case BadCopy::misaligned_destination: to = &row[6]; break;
      case BadCopy::misaligned_source: from = &memory[6]; break;
      case BadCopy::global_destination: to = &memory[16]; break;
      case BadCopy::shared_source: from = &row[16]; break;
      case BadCopy::local_source: from = local; break;
      case BadCopy::negative_size: bytes = -1; break;
      case BadCopy::large_size: bytes = 17; break;
    }
    cp_async<16>(to, from, bytes);
    cp_async_wait_all();
  }
}

}  // namespace

void run_script(const Script& script, const float* in, float* out, int threads) {
  script_kernel<<<1, static_cast<unsigned>(threads)>>>(script, in, out);
}

void copy_pieces(int bytes, const unsigned char* in, unsigned char* out, int threads) {
  const auto block = static_cast<unsigned>(threads);
  if (bytes == 4) pieces_kernel<4><<<1, block>>>(in, out);
  if (bytes == 8) pieces_kernel<8><<<1, block>>>(in, out);
  if (bytes == 16) pieces_kernel<16><<<1, block>>>(in, out);
}

void copy_part(int bytes, const unsigned char* in, unsigned char* out, int threads) {
  const auto block = static_cast<unsigned>(threads);
  if (bytes == 4) part_kernel<4><<<1, block>>>(in, out);
  if (bytes == 8) part_kernel<8><<<1, block>>>(in, out);
  if (bytes == 16) part_kernel<16><<<1, block>>>(in, out);
}

void copy_nothing(unsigned char* out, int threads) {
  part_kernel<16><<<1, static_cast<unsigned>(threads)>>>(nullptr, out);
}

void sum_tiles(const float* in, float* out, int blocks, int tiles) {
  sum_tiles_kernel<<<static_cast<unsigned>(blocks), kTile>>>(in, out, tiles);
}

void read_late(float* memory) { read_late_kernel<<<1, 1>>>(memory); }

void leave_copies(const float* in, int blocks, bool fail) {
  leave_kernel<<<static_cast<unsigned>(blocks), kMostThreads>>>(in, fail);
}

void never_wait(const float* in, float* out, int count) {
  never_wait_kernel<<<1, 1>>>(in, out, count);
}

void bad_copy(BadCopy mistake, float* memory) { bad_copy_kernel<<<1, 32>>>(mistake, memory); }

}  // namespace device_test
