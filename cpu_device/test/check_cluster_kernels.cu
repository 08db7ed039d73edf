#include "check_cluster_kernels.hpp"

#include <cuda_runtime.h>

#include "cluster_launch.hpp"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/cp_async.cuh"

namespace device_test {
namespace {

using namespace tile::ptx;

constexpr unsigned kThreads = kClusterBlockThreads;

__device__ unsigned next_rank() { return (cluster_rank() + 1) % cluster_size(); }
__device__ unsigned own_element() { return blockIdx.x * kThreads + threadIdx.x; }

// ---- From begin to end ----

// The next block must have begun before its shared memory is written.
template <bool kMistake>
__global__ void write_at_once(const ClusterMemory m) {
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  if (!kMistake) cluster_sync();
  in_block_of_cluster(slots, next_rank())[t] = 7;  // [write_at_once]
  cluster_sync();
  m.out[own_element()] = slots[t];
}

// And a block must not end before it has been read. Which is first depends on the order.
template <bool kMistake>
__global__ void read_at_last(const ClusterMemory m) {
  __shared__ int numbers[kThreads];
  const unsigned t = threadIdx.x;
  numbers[t] = static_cast<int>(t);
  cluster_sync();
  if (cluster_rank() == 0) {
    m.out[own_element()] = in_block_of_cluster(numbers, 3)[t];  // [read_at_last]
  }
  if (!kMistake) cluster_sync();
}

// An arrival is not enough to know that others have begun.
template <bool kMistake>
__global__ void write_before_wait(const ClusterMemory m) {
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  cluster_arrive();
  if (!kMistake) cluster_wait();
  in_block_of_cluster(slots, next_rank())[t] = 7;  // [write_before_wait]
  if (kMistake) cluster_wait();
  cluster_sync();
  m.out[own_element()] = slots[t];
}

// Who returns does not arrive, so nobody knows when it has read.
template <bool kMistake>
__global__ void read_and_return(const ClusterMemory m) {
  __shared__ int numbers[kThreads];
  const unsigned t = threadIdx.x;
  numbers[t] = static_cast<int>(t);
  cluster_sync();
  if (kMistake || t % 2 == 0) {
    m.out[own_element()] = in_block_of_cluster(numbers, next_rank())[t];  // [read_and_return]
  }
  if (kMistake && t == 5) return;
  cluster_sync();
}

// ---- Between blocks ----

template <bool kMistake>
__global__ void send(const ClusterMemory m) {
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  cluster_sync();
  in_block_of_cluster(slots, next_rank())[t] = static_cast<int>(t);  // [send.write]
  if (!kMistake) cluster_sync();
  m.out[own_element()] = slots[t];  // [send.read]
  __syncthreads();
  cluster_sync();
}

template <bool kMistake>
__global__ void barrier_of_the_block(const ClusterMemory m) {
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  cluster_sync();
  in_block_of_cluster(slots, next_rank())[t] = static_cast<int>(t);  // [barrier_of_the_block.write]
  kMistake ? __syncthreads() : cluster_sync();
  m.out[own_element()] = slots[t];  // [barrier_of_the_block.read]
  cluster_sync();
}

// What is written after the arrival is known to others after the next one only.
template <bool kMistake>
__global__ void write_after_arrival(const ClusterMemory m) {
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  int* next = in_block_of_cluster(slots, next_rank());
  cluster_sync();
  if (!kMistake) next[t] = 7;
  cluster_arrive();
  if (kMistake) next[t] = 7;  // [write_after_arrival.write]
  cluster_wait();
  m.out[own_element()] = slots[t];  // [write_after_arrival.read]
  cluster_sync();
}

// A turn of the loop needs two barriers: what is there must have been read before it is replaced.
template <bool kMistake>
__global__ void hand_on(const ClusterMemory m) {
  __shared__ int slot[kThreads];
  const unsigned t = threadIdx.x;
  int* next = in_block_of_cluster(slot, next_rank());
  int mine = static_cast<int>(own_element());
  cluster_sync();
  for (int round = 0; round < 3; ++round) {
    next[t] = mine;  // [hand_on.write]
    cluster_sync();
    mine = slot[t];  // [hand_on.read]
    if (!kMistake || round == 2) cluster_sync();
  }
  m.out[own_element()] = mine;
}

// The barrier orders global memory too.
template <bool kMistake>
__global__ void through_global_memory(const ClusterMemory m) {
  const unsigned t = threadIdx.x;
  m.out[own_element()] = 1;  // [through_global_memory.write]
  if (!kMistake) cluster_sync();
  const unsigned first = blockIdx.x / cluster_size() * cluster_size();
  const int other = m.out[(first + next_rank()) * kThreads + t];  // [through_global_memory.read]
  if (other < 0) m.counts[0] = other;
}

// All count in block 0.
template <bool kMistake>
__global__ void count(const ClusterMemory m) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  cluster_sync();
  int* there = in_block_of_cluster(&total, 0);
  if (threadIdx.x == 0) {
    if (kMistake) {
      *there += 1;  // [count]
    } else {
      atomicAdd(there, 1);
    }
  }
  cluster_sync();
  if (threadIdx.x == 0 && cluster_rank() == 0) m.out[blockIdx.x] = total;
}

// A thread that returns tells nobody what it has written, unless its block has met since. Who
// reads it does so after the whole block has returned.
template <bool kMistake>
__global__ void write_and_return(const ClusterMemory m) {
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  const bool writes = cluster_rank() % 2 == 1;
  cluster_sync();
  if (t >= 32 && writes) {
    in_block_of_cluster(slots, next_rank())[t] = 7;  // [write_and_return.write]
  }
  if (!kMistake) __syncthreads();
  if (t >= 32) return;
  cluster_sync();
  if (writes) return;
  cluster_sync();
  m.out[own_element()] = slots[t + 32];  // [write_and_return.read]
}

// The same with a __syncwarp(): the lanes that go on to arrive know of the write.
template <bool kMistake>
__global__ void write_and_return_in_a_warp(const ClusterMemory m) {
  __shared__ int slot;
  const unsigned t = threadIdx.x;
  cluster_sync();
  if (t == 31) *in_block_of_cluster(&slot, next_rank()) = 7;  // [write_and_return_in_a_warp.write]
  if (!kMistake) __syncwarp();
  if (t == 31) return;
  cluster_sync();
  if (t == 0) m.out[own_element()] = slot;  // [write_and_return_in_a_warp.read]
  cluster_sync();
}

// One warp arrives late, after the other has met it.
template <bool kMistake>
__global__ void late_arrival(const ClusterMemory m) {
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  int* next = in_block_of_cluster(slots, next_rank());
  cluster_sync();
  if (t < 32) cluster_arrive();
  if (t < 32) next[t] = 7;  // [late_arrival.write]
  if (!kMistake) __syncthreads();
  if (t >= 32) cluster_arrive();
  cluster_wait();
  if (t < 32) m.out[own_element()] = slots[t];  // [late_arrival.read]
  cluster_sync();
}

// Of two threads of a block one has waited, and tells the other.
template <bool kMistake>
__global__ void late_wait(const ClusterMemory m) {
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  cluster_sync();
  in_block_of_cluster(slots, next_rank())[t] = 7;  // [late_wait.write]
  cluster_arrive();
  if (t < 32) cluster_wait();
  if (!kMistake) __syncthreads();
  m.out[own_element()] = slots[t];  // [late_wait.read]
  if (t >= 32) cluster_wait();
  cluster_sync();
}

// ---- Between clusters ----

// The last cluster to come adds up what all blocks have written: each cluster says that it has by
// one fence and one atomic.
template <bool kMistake>
__global__ void last_cluster(const ClusterMemory m) {
  __shared__ int came;
  const unsigned t = threadIdx.x;
  m.out[own_element()] = 1;  // [last_cluster.write]
  if (!kMistake) cluster_sync();
  if (cluster_rank() != 0) return;
  if (t == 0) {
    __threadfence();
    came = atomicAdd(&m.counts[0], 1);
    __threadfence();
  }
  __syncthreads();
  if (came != 1) return;
  int sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += m.out[b * kThreads + t];  // [last_cluster.read]
  if (sum < 0) m.counts[1] = sum;
}

// One block learns by an atomic what another cluster has done, and tells its own cluster.
template <bool kMistake>
__global__ void told_to_all_blocks(const ClusterMemory m) {
  __shared__ int came;
  const unsigned t = threadIdx.x;
  m.out[own_element()] = 1;  // [told_to_all_blocks.write]
  cluster_sync();
  if (cluster_rank() == 0 && t == 0) {
    if (!kMistake) __threadfence();
    const int before = atomicAdd(&m.counts[0], 1);
    for (unsigned r = 0; r < cluster_size(); ++r) *in_block_of_cluster(&came, r) = before;
  }
  cluster_sync();
  if (came != 1) return;
  const unsigned there = (blockIdx.x + cluster_size()) % gridDim.x;
  const int other = m.out[there * kThreads + t];  // [told_to_all_blocks.read]
  if (other < 0) m.counts[1] = other;
}

// ---- Addresses ----

template <bool kMistake>
__global__ void past_the_end(const ClusterMemory m) {
  __shared__ int numbers[kThreads];
  __shared__ int others[kThreads];
  const unsigned t = threadIdx.x;
  numbers[t] = others[t] = 1;
  cluster_sync();
  const int* next = in_block_of_cluster(numbers, next_rank());
  m.out[own_element()] = next[t + (kMistake ? 1 : 0)];  // [past_the_end]
  cluster_sync();
}

template <bool kMistake>
__global__ void never_written(const ClusterMemory m) {
  __shared__ int numbers[kThreads];
  const unsigned t = threadIdx.x;
  if (!kMistake || t != 9) numbers[t] = 1;
  cluster_sync();
  m.out[own_element()] = in_block_of_cluster(numbers, next_rank())[t];  // [never_written]
  cluster_sync();
}

template <bool kMistake>
__global__ void rank_too_large(const ClusterMemory m) {
  __shared__ int numbers[kThreads];
  const unsigned t = threadIdx.x;
  numbers[t] = 1;
  cluster_sync();
  const unsigned rank = kMistake ? cluster_rank() + 1 : next_rank();
  m.out[own_element()] = in_block_of_cluster(numbers, rank)[t];  // [rank_too_large]
  cluster_sync();
}

template <bool kMistake>
__global__ void copy_to_other_block(const ClusterMemory m) {
  __shared__ int numbers[kThreads];
  const unsigned t = threadIdx.x;
  int* to = in_block_of_cluster(numbers, kMistake ? next_rank() : cluster_rank());
  cluster_sync();
  cp_async<4>(kMistake ? to + t : numbers + t, m.out + own_element());  // [copy_to_other_block]
  cp_async_wait_all();
  cluster_sync();
}

#define PAIR(kernel)                                                           \
  {                                                                            \
#kernel, [](bool mistake, const ClusterMemory& memory) {                     \
     launch_clusters(#kernel, __FILE__, __LINE__,                               \
                     {kClusterBlocks, kThreads, kClusterSize},                  \
                     mistake ? kernel<true> : kernel<false>, memory);           \
   } \
  }

constexpr ClusterPair kPairs[] = {
    PAIR(write_at_once),
    PAIR(read_at_last),
    PAIR(write_before_wait),
    PAIR(read_and_return),
    PAIR(send),
    PAIR(barrier_of_the_block),
    PAIR(write_after_arrival),
    PAIR(hand_on),
    PAIR(through_global_memory),
    PAIR(count),
    PAIR(write_and_return),
    PAIR(write_and_return_in_a_warp),
    PAIR(late_arrival),
    PAIR(late_wait),
    PAIR(last_cluster),
    PAIR(told_to_all_blocks),
    PAIR(past_the_end),
    PAIR(never_written),
    PAIR(rank_too_large),
    PAIR(copy_to_other_block),
};

}  // namespace

const std::span<const ClusterPair> kClusterPairs = kPairs;

}  // namespace device_test
