#include "mbarrier_kernels.hpp"

#include <cuda_runtime.h>

#include "cluster_launch.hpp"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/mbarrier.cuh"
#include "tile/ptx/store_async.cuh"

namespace device_test {
namespace {

using namespace tile::ptx;

constexpr unsigned kThreads = 64;
constexpr unsigned kLargest = 8;  // cluster
constexpr unsigned kWord = sizeof(int);

__global__ void meet_kernel(int phases, int* out) {
  __shared__ Mbarrier barrier;
  __shared__ int values[1024];
  const unsigned t = threadIdx.x, threads = blockDim.x;
  if (t == 0) mbarrier_init(&barrier, threads);
  __syncthreads();
  for (int p = 0; p < phases; ++p) {
    values[t] = p * 1000 + static_cast<int>(t);
    mbarrier_arrive_expect(&barrier, 0);
    mbarrier_wait(&barrier, p % 2);
    out[p * threads + t] = values[(t + 1) % threads];
    __syncthreads();
  }
}

// A slot is full when warp 0 has written it, and empty when all others have read it. The first wait
// for an empty slot is for the phase before the first one, which is complete.
__global__ void ring_kernel(int items, int* out) {
  constexpr int kSlots = 3;
  __shared__ Mbarrier full[kSlots], empty[kSlots];
  __shared__ int slots[kSlots][32];
  const unsigned t = threadIdx.x;
  if (t < kSlots) {
    mbarrier_init(&full[t], 1);
    mbarrier_init(&empty[t], kThreads);
  }
  __syncthreads();
  for (int i = 0; i < items; ++i) {
    const int slot = i % kSlots;
    const unsigned parity = i / kSlots % 2;
    if (t < 32) {
      mbarrier_wait(&empty[slot], 1 - parity);
      if (t == 0) mbarrier_arrive_expect(&full[slot], 32 * kWord);
      store_async(&slots[slot][t], i * 100 + static_cast<int>(t), &full[slot], 0);  // [send]
    } else {
      mbarrier_wait(&full[slot], parity);
      out[i * kThreads + (t - 32)] = slots[slot][t % 32];
      mbarrier_arrive_expect(&empty[slot], 0);
    }
  }
  // The last items are on their way until a thread has waited for them: the readers have.
}

__host__ __device__ constexpr int number(unsigned block, unsigned thread, int round) {
  return static_cast<int>(block * 100 + thread) + round * 7;
}

__global__ void exchange_kernel(int rounds, int* out) {
  __shared__ Mbarrier barriers[2];
  __shared__ int slots[2][kLargest][kThreads];
  const unsigned t = threadIdx.x, size = cluster_size(), rank = cluster_rank();
  if (t == 0) {
    mbarrier_init(&barriers[0], 1);
    mbarrier_init(&barriers[1], 1);
  }
  cluster_sync();
  unsigned sum = 0;
  for (int round = 0; round < rounds; ++round) {
    const int buffer = round % 2;
    if (t == 0) mbarrier_arrive_expect(&barriers[buffer], size * kThreads * kWord);
    for (unsigned r = 0; r < size; ++r) {
      store_async(&slots[buffer][rank][t], number(blockIdx.x, t, round), &barriers[buffer], r);
    }
    mbarrier_wait(&barriers[buffer], round / 2 % 2);
    for (unsigned r = 0; r < size; ++r) {
      sum = sum * 3 + static_cast<unsigned>(slots[buffer][r][(t + 1) % kThreads]);
    }
    // A block that has sent for the next round has read this one: then the buffer may be written
    // again.
    __syncthreads();
  }
  out[blockIdx.x * kThreads + t] = static_cast<int>(sum);
}

__global__ void expect_kernel(Expected when, int* out) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x, rank = cluster_rank();
  const bool alone = when == Expected::before || when == Expected::after;
  if (t == 0) mbarrier_init(&barrier, alone ? 1 : kThreads);
  cluster_sync();
  const auto expect = [&] {
    switch (when) {
      case Expected::before:
      case Expected::after:
        if (t == 0) mbarrier_arrive_expect(&barrier, kThreads * kWord);
        break;
      case Expected::in_parts: mbarrier_arrive_expect(&barrier, kWord); break;
      case Expected::by_none: mbarrier_arrive_expect(&barrier, t % 2 == 0 ? 2 * kWord : 0); break;
    }
  };
  const bool late = when == Expected::after && rank == 0;
  if (!late) expect();
  if (when == Expected::before) cluster_sync();
  store_async(&slots[t], static_cast<int>(1000 * rank + t), &barrier, 1 - rank);
  if (when == Expected::after) cluster_sync();
  if (late) expect();
  mbarrier_wait(&barrier, 0);
  out[blockIdx.x * kThreads + t] = slots[t];
}

__global__ void misuse_kernel(Misuse misuse, int* out) {
  __shared__ Mbarrier barrier;
  __shared__ Mbarrier others[2];
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x, rank = cluster_rank();
  const bool is_one = rank == 1 && t == 3;
  auto* in_global_memory = reinterpret_cast<Mbarrier*>(out);
  auto* misaligned = reinterpret_cast<Mbarrier*>(reinterpret_cast<char*>(others) + 4);
  if (t == 0) mbarrier_init(&barrier, 2);
  if (t == 0) others[0].state = 0;
  slots[t] = 0;
  cluster_sync();
  if (is_one) {
    switch (misuse) {
      case Misuse::not_initialised: mbarrier_wait(&others[1], 0); break;          // [fresh]
      case Misuse::zeros: mbarrier_arrive_expect(&others[0], 0); break;           // [zeros]
      case Misuse::no_arrivals: mbarrier_init(&others[0], 0); break;              // [no_arrivals]
      case Misuse::too_many_arrivals: mbarrier_init(&others[0], 1 << 20); break;  // [too_many]
      case Misuse::arrival_too_many:
        mbarrier_arrive_expect(&barrier, 4);
        mbarrier_arrive_expect(&barrier, 4);
        mbarrier_arrive_expect(&barrier, 4);  // [arrival_too_many]
        break;
      case Misuse::too_many_expected:
        mbarrier_arrive_expect(&barrier, (1 << 20) - 1);
        mbarrier_arrive_expect(&barrier, 1);  // [too_many_expected]
        break;
      case Misuse::too_many_sent:
        for (int i = 0; i < (1 << 20) / 4; ++i) {
          store_async(&slots[3], i, &barrier, 0);  // [too_many_sent]
        }
        break;
      case Misuse::wrong_parity: mbarrier_wait(&barrier, 2); break;  // [wrong_parity]
      case Misuse::mbarrier_in_global_memory:
        mbarrier_arrive_expect(in_global_memory, 0);  // [global]
        break;
      case Misuse::mbarrier_of_other_block:
        mbarrier_wait(in_block_of_cluster(&barrier, 0), 0);  // [other_block]
        break;
      case Misuse::misaligned_mbarrier: mbarrier_wait(misaligned, 0); break;        // [misaligned]
      case Misuse::send_to_global_memory: store_async(out, 1, &barrier, 0); break;  // [to_global]
      case Misuse::send_past_shared_memory:
        store_async(slots + 4096 * rank, 1, &barrier, 0);  // [past]
        break;
      case Misuse::count_in_global_memory:
        store_async(slots, 1, in_global_memory, 0);  // [count_in_global]
        break;
      case Misuse::send_to_block_2: store_async(slots, 1, &barrier, 2); break;  // [block_2]
      case Misuse::misaligned_value:
        store_async(reinterpret_cast<int2*>(slots + 1), int2{1, 2}, &barrier, 0);  // [value]
        break;
      default: break;
    }
  }
  if (misuse == Misuse::send_to_the_ended) {
    if (rank == 0) return;
    for (int i = 0; i < 20; ++i) __nanosleep(100);
    if (t == 3) store_async(slots, 1, &barrier, 0);  // [ended]
  }
  if (misuse == Misuse::missing_arrival) {
    if (t < 2 && !(rank == 1 && t == 1)) mbarrier_arrive_expect(&barrier, 0);
    mbarrier_wait(&barrier, 0);  // [missing_arrival]
  }
  if (misuse == Misuse::missing_bytes && rank == 1) {
    if (t < 2) mbarrier_arrive_expect(&barrier, t == 1 ? kThreads * kWord : 0);
    if (t != 3) store_async(&slots[t], 1, &barrier, 1);
    mbarrier_wait(&barrier, 0);  // [missing_bytes]
  }
  if (misuse == Misuse::next_phase) {
    if (t < 2) mbarrier_arrive_expect(&barrier, 0);
    mbarrier_wait(&barrier, 0);
    mbarrier_wait(&barrier, 1);  // [next_phase]
  }
  if (misuse == Misuse::two_phases_late) {
    for (unsigned phase = 0; phase < 2 && t < 2; ++phase) {
      mbarrier_arrive_expect(&barrier, 0);
      mbarrier_wait(&barrier, phase);
    }
    __syncthreads();
    mbarrier_wait(&barrier, 0);  // [two_phases_late]
  }
  if (misuse == Misuse::initialised_again) {
    if (t < 2) mbarrier_arrive_expect(&barrier, 0);
    mbarrier_wait(&barrier, 0);
    __syncthreads();
    if (t == 0) mbarrier_init(&barrier, 2);
    __syncthreads();
    mbarrier_wait(&barrier, 0);  // [initialised_again]
  }
  if (misuse == Misuse::woken && rank == 1) {
    if (t != 3) mbarrier_wait(&barrier, 0);
    for (int i = 0; t == 3 && i < 20; ++i) __nanosleep(100);
    if (t == 3) {
      mbarrier_arrive_expect(&barrier, 0);
      mbarrier_arrive_expect(&barrier, 0);
      mbarrier_init(&others[0], 0);
    }
  }
  cluster_sync();  // [sync]
  out[blockIdx.x * kThreads + t] = 1;
}

}  // namespace

void meet_at_mbarrier(int phases, unsigned threads, int* out) {
  meet_kernel<<<1, threads>>>(phases, out);
}

cudaError_t pass_through_ring(int items, int* out) {
  return launch_clusters("ring_kernel", __FILE__, __LINE__, {1, 32 + kThreads, 1}, ring_kernel,
                         items, out);
}

void send_without_clusters(int* out) { ring_kernel<<<1, 32 + kThreads>>>(1, out); }  // [alone]

cudaError_t exchange(unsigned blocks, unsigned cluster, int rounds, int* out) {
  return launch_clusters("exchange_kernel", __FILE__, __LINE__, {blocks, kThreads, cluster},
                         exchange_kernel, rounds, out);
}

int sum_of_exchange(unsigned block, unsigned thread, unsigned cluster, int rounds) {
  unsigned sum = 0;
  const unsigned first = block / cluster * cluster;
  for (int round = 0; round < rounds; ++round) {
    for (unsigned b = first; b < first + cluster; ++b) {
      sum = sum * 3 + static_cast<unsigned>(number(b, (thread + 1) % kThreads, round));
    }
  }
  return static_cast<int>(sum);
}

cudaError_t expect_bytes(Expected when, int* out) {
  return launch_clusters("expect_kernel", __FILE__, __LINE__, {2, kThreads, 2}, expect_kernel, when,
                         out);
}

void misuse(Misuse misuse, int* out) {
  launch_clusters("misuse_kernel", __FILE__, __LINE__, {2, kThreads, 2},  // [launch]
                  misuse_kernel, misuse, out);
}

namespace {
__global__ void late_kernel(int* out) {
  __shared__ Mbarrier barrier;
  __shared__ volatile int waits, complete;
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 1);
    waits = 0;
    complete = 0;
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    waits = 1;
    mbarrier_wait(&barrier, 0);
    *out = complete;
  } else if (threadIdx.x == 0) {
    while (waits == 0) __nanosleep(20);
    for (int phase = 1; phase <= 3; ++phase) {
      complete = phase;
      mbarrier_arrive_expect(&barrier, 0);
      // Only now may the other thread look: phase 3 is in progress, of the parity of phase 1.
      if (phase == 2) __nanosleep(20);
    }
  }
}
__global__ void once_kernel(int* out) {
  __shared__ Mbarrier barrier;
  __shared__ volatile int waits, value;
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 1);
    waits = 0;
    value = 0;
  }
  __syncthreads();
  if (threadIdx.x >= 32) {
    mbarrier_wait(&barrier, 0);
    waits = 1;
  } else if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&barrier, 0);
    while (waits == 0) __nanosleep(20);
    mbarrier_arrive_expect(&barrier, 0);  // while the others are at the next barrier
    __nanosleep(20);
    value = 1;
  }
  __syncthreads();
  if (threadIdx.x >= 32) out[threadIdx.x - 32] = value;
}
}  // namespace

void wake_two_phases_late(int* out) { late_kernel<<<1, kThreads>>>(out); }
void wake_once(int* out) { once_kernel<<<1, kThreads>>>(out); }

}  // namespace device_test
