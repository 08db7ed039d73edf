#include "check_cluster_kernels.hpp"

#include <cuda_runtime.h>

#include "cluster_launch.hpp"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/cp_async.cuh"
#include "tile/ptx/mbarrier.cuh"
#include "tile/ptx/store_async.cuh"
#include "tile/shared_slice.cuh"

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

// A thread that returns does not arrive, so no other knows when it has read.
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

// A thread that returns publishes nothing of what it has written, unless its block has met since.
// It is read after the whole block has returned.
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

// One thread learns by an atomic that another block has written. After a barrier all may read, with
// a fence each.
template <bool kMistake>
__global__ void wait_for_other_block(const ClusterMemory m) {
  const unsigned t = threadIdx.x;
  int* ready = &m.counts[blockIdx.x / kClusterSize];
  if (cluster_rank() == 0) {
    m.out[own_element()] = 1;  // [wait_for_other_block.write]
    __threadfence();
    __syncthreads();
    if (t == 0) atomicAdd(ready, 1);
    return;
  }
  if (t == 0) {
    while (atomicAdd(ready, 0) == 0) continue;
  }
  __syncthreads();
  if (!kMistake) __threadfence();
  const unsigned first = blockIdx.x / kClusterSize * kClusterSize;
  m.out[own_element()] = m.out[first * kThreads + t];  // [wait_for_other_block.read]
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

// ---- Mbarriers, and what is sent by st.async ----

constexpr unsigned kBytesOfBlock = kThreads * sizeof(int);

// Nothing but the wait says that what others send has come.
template <bool kMistake>
__global__ void read_before_wait(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_arrive_expect(&barrier, kBytesOfBlock);
  }
  cluster_sync();
  store_async(&slots[t], 7, &barrier, next_rank());  // [read_before_wait.write]
  if (!kMistake) mbarrier_wait(&barrier, 0);
  m.out[own_element()] = slots[t];  // [read_before_wait.read]
  if (kMistake) mbarrier_wait(&barrier, 0);
}

// Not even the barrier of the cluster, which waits for threads and not for what they have sent.
template <bool kMistake>
__global__ void sync_for_wait(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_arrive_expect(&barrier, kBytesOfBlock);
  }
  cluster_sync();
  store_async(&slots[t], 7, &barrier, next_rank());  // [sync_for_wait.write]
  kMistake ? cluster_sync() : mbarrier_wait(&barrier, 0);
  m.out[own_element()] = slots[t];  // [sync_for_wait.read]
  mbarrier_wait(&barrier, 0);
}

// The thread that has waited tells the others by a barrier.
template <bool kMistake>
__global__ void wait_of_one(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_arrive_expect(&barrier, kBytesOfBlock);
  }
  cluster_sync();
  store_async(&slots[t], 7, &barrier, next_rank());  // [wait_of_one.write]
  if (t == 0) mbarrier_wait(&barrier, 0);
  if (!kMistake) __syncthreads();
  m.out[own_element()] = slots[t];  // [wait_of_one.read]
}

// An mbarrier must be there before another block counts bytes at it.
template <bool kMistake>
__global__ void send_at_once(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_arrive_expect(&barrier, kBytesOfBlock);
  }
  kMistake ? __syncthreads() : cluster_sync();
  store_async(&slots[t], 7, &barrier, next_rank());  // [send_at_once]
  mbarrier_wait(&barrier, 0);
  m.out[own_element()] = slots[t];
  cluster_sync();
}

// That the other block has begun is not enough.
template <bool kMistake>
__global__ void init_after_sync(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  cluster_sync();
  if (t == 0) {
    mbarrier_init(&barrier, 1);  // [init_after_sync.init]
    mbarrier_arrive_expect(&barrier, kBytesOfBlock);
  }
  kMistake ? __syncthreads() : cluster_sync();
  store_async(&slots[t], 7, &barrier, next_rank());  // [init_after_sync.use]
  mbarrier_wait(&barrier, 0);
  m.out[own_element()] = slots[t];
  cluster_sync();
}

// An atomic without a fence publishes nothing of what was before it.
template <bool kMistake>
__global__ void ready_without_fence(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  cluster_sync();
  if (t == 0) {
    mbarrier_init(&barrier, 1);  // [ready_without_fence.init]
    mbarrier_arrive_expect(&barrier, kBytesOfBlock);
  }
  __syncthreads();
  if (kMistake) {
    int* ready = &m.counts[blockIdx.x / kClusterSize];
    if (t == 0) atomicAdd(ready, 1);
    while (atomicAdd(ready, 0) < static_cast<int>(kClusterSize)) continue;
  } else {
    cluster_sync();
  }
  store_async(&slots[t], 7, &barrier, next_rank());  // [ready_without_fence.use]
  mbarrier_wait(&barrier, 0);
  m.out[own_element()] = slots[t];
  cluster_sync();
}

// And so for the threads of its own block.
template <bool kMistake>
__global__ void use_at_once(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  const unsigned t = threadIdx.x;
  if (t == 0) mbarrier_init(&barrier, kThreads);  // [use_at_once.init]
  if (!kMistake) __syncthreads();
  mbarrier_arrive_expect(&barrier, 0);  // [use_at_once.use]
  mbarrier_wait(&barrier, 0);
  m.out[own_element()] = 1;
}

// Also if another has used it before them.
template <bool kMistake>
__global__ void use_after_use(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  const unsigned t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(&barrier, 1);  // [use_after_use.init]
    mbarrier_arrive_expect(&barrier, 0);
  }
  __syncwarp();
  if (!kMistake) __syncthreads();
  mbarrier_wait(&barrier, 0);  // [use_after_use.wait]
  m.out[own_element()] = 1;
}

// A relaxed arrival tells of mbarriers, to all blocks and to the own one, if they are initialised
// before it.
template <bool kMistake>
__global__ void init_after_relaxed(const ClusterMemory m) {
  __shared__ Mbarrier barriers[2];
  const unsigned t = threadIdx.x;
  if (!kMistake && t % 32 == 0) mbarrier_init(&barriers[t / 32], kThreads);
  cluster_arrive_relaxed();
  if (kMistake && t % 32 == 0) {
    mbarrier_init(&barriers[t / 32], kThreads);  // [init_after_relaxed.init]
  }
  cluster_wait();
  mbarrier_arrive(&barriers[0], next_rank());  // [init_after_relaxed.use]
  mbarrier_arrive(&barriers[1]);
  mbarrier_wait(&barriers[0], 0);
  mbarrier_wait(&barriers[1], 0);
  m.out[own_element()] = 1;
  cluster_sync();
}

// It tells of nothing else that was written, though that was before.
template <bool kMistake>
__global__ void relaxed_for_release(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int numbers[kThreads];
  const unsigned t = threadIdx.x;
  numbers[t] = static_cast<int>(t);  // [relaxed_for_release.write]
  __syncthreads();
  if (t == 0) mbarrier_init(&barrier, 1);
  kMistake ? cluster_arrive_relaxed() : cluster_arrive();
  cluster_wait();
  if (t == 0) mbarrier_arrive(&barrier, next_rank());
  mbarrier_wait(&barrier, 0);
  const int* next = in_block_of_cluster(numbers, next_rank());
  m.out[own_element()] = next[t];  // [relaxed_for_release.read]
  cluster_sync();
}

// And not to the own block either.
template <bool kMistake>
__global__ void relaxed_in_the_block(const ClusterMemory m) {
  __shared__ int numbers[kThreads];
  const unsigned t = threadIdx.x;
  numbers[t] = static_cast<int>(t);  // [relaxed_in_the_block.write]
  kMistake ? cluster_arrive_relaxed() : cluster_arrive();
  cluster_wait();
  m.out[own_element()] = numbers[(t + 32) % kThreads];  // [relaxed_in_the_block.read]
}

// What was told before a relaxed arrival stays known, also to a thread that waits for its phase
// when others have arrived in the next one. The atomic makes it wait so long, and tells nothing.
template <bool kMistake>
__global__ void write_before_relaxed(const ClusterMemory m) {
  __shared__ int numbers[kThreads];
  const unsigned t = threadIdx.x;
  int* arrived = &m.counts[blockIdx.x / kClusterSize];
  const bool writes = cluster_rank() == 0;
  if (!kMistake && writes) numbers[t] = 7;
  cluster_sync();
  if (kMistake && writes) numbers[t] = 7;  // [write_before_relaxed.write]
  cluster_arrive_relaxed();
  if (writes) {
    cluster_wait();
    cluster_arrive();
    atomicAdd(arrived, 1);
  } else {
    while (atomicAdd(arrived, 0) < static_cast<int>(kThreads)) continue;
    cluster_wait();
    m.out[own_element()] = in_block_of_cluster(numbers, 0)[t];  // [write_before_relaxed.read]
    cluster_arrive();
  }
  cluster_wait();
}

// cluster_arrive_shared() tells of the block's own shared memory, and not of global memory.
template <bool kMistake>
__global__ void global_before_shared(const ClusterMemory m) {
  __shared__ int numbers[kThreads];
  const unsigned t = threadIdx.x;
  numbers[t] = 7;
  m.out[own_element()] = 1;  // [global_before_shared.write]
  __syncwarp();
  cluster_arrive_shared();
  cluster_wait();
  const unsigned other = (t + 33) % kThreads;
  const unsigned next = blockIdx.x - cluster_rank() + next_rank();
  int got = in_block_of_cluster(numbers, next_rank())[other];
  if (kMistake) got += m.out[next * kThreads + other];  // [global_before_shared.read]
  cluster_sync();
  if (got < 0) m.counts[0] = got;
}

// Nor of that of other blocks.
template <bool kMistake>
__global__ void send_before_shared(const ClusterMemory m) {
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  cluster_sync();
  in_block_of_cluster(slots, next_rank())[t] = 7;  // [send_before_shared.write]
  kMistake ? cluster_arrive_shared() : cluster_arrive();
  cluster_wait();
  m.out[own_element()] = slots[t];  // [send_before_shared.read]
}

// What is written after the arrival is not known to the threads that have waited for it.
template <bool kMistake>
__global__ void write_after_mbarrier(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  if (t == 0) mbarrier_init(&barrier, kThreads);
  __syncthreads();
  if (!kMistake) slots[t] = 7;
  mbarrier_arrive_expect(&barrier, 0);
  if (kMistake) slots[t] = 7;  // [write_after_mbarrier.write]
  mbarrier_wait(&barrier, 0);
  m.out[own_element()] = slots[(t + 32) % kThreads];  // [write_after_mbarrier.read]
}

// mbarrier_wait_cluster() tells of shared memory, and not of what the others did in global memory.
template <bool kMistake>
__global__ void global_after_message(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x, size = cluster_size();
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_arrive_expect(&barrier, kBytesOfBlock);
  }
  cluster_sync();
  m.out[own_element()] = 1;  // [global_after_message.write]
  store_async(&slots[t], 7, &barrier, next_rank());
  mbarrier_wait_cluster(&barrier, 0);
  const int message = slots[t];
  if (!kMistake) cluster_sync();
  const unsigned before = (cluster_rank() + size - 1) % size;
  const unsigned from = blockIdx.x - cluster_rank() + before;
  const int other = m.out[from * kThreads + t];  // [global_after_message.read]
  if (other + message < 0) m.counts[0] = other;
}

// Nor of what the own block did there.
template <bool kMistake>
__global__ void global_in_the_block(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x, other = (t + 32) % kThreads;
  if (t == 0) mbarrier_init(&barrier, kThreads);
  __syncthreads();
  slots[t] = 7;
  m.out[own_element()] = 1;  // [global_in_the_block.write]
  mbarrier_arrive(&barrier);
  kMistake ? mbarrier_wait_cluster(&barrier, 0) : mbarrier_wait(&barrier, 0);
  const int got =
      slots[other] + m.out[blockIdx.x * kThreads + other];  // [global_in_the_block.read]
  if (got < 0) m.counts[0] = got;
}

// A thread that has waited so can tell others of no more.
template <bool kMistake>
__global__ void told_by_a_waiter(const ClusterMemory m) {
  __shared__ Mbarrier first, second;
  __shared__ int slot;
  const unsigned t = threadIdx.x;
  if (t == 0) {
    mbarrier_init(&first, 1);
    mbarrier_init(&second, 1);
  }
  __syncthreads();
  if (t == 0) {
    slot = 7;
    m.out[own_element()] = 1;  // [told_by_a_waiter.write]
    mbarrier_arrive(&first);
  } else if (t == 32) {
    kMistake ? mbarrier_wait_cluster(&first, 0) : mbarrier_wait(&first, 0);
    mbarrier_arrive(&second);
  } else if (t == 33) {
    mbarrier_wait(&second, 0);
    const int got = slot + m.out[blockIdx.x * kThreads];  // [told_by_a_waiter.read]
    if (got < 0) m.counts[0] = got;
  }
}

// All send to all, in turn to two buffers: who has sent for the next round has read this one, and
// without that the buffer after it is not complete. With a single one, a block may still read.
template <bool kMistake>
__global__ void two_buffers(const ClusterMemory m) {
  constexpr unsigned kBuffers = kMistake ? 1 : 2, kWarps = kThreads / 32;
  __shared__ Mbarrier barriers[kBuffers];
  __shared__ int slots[kBuffers][kClusterSize][kWarps];
  const unsigned t = threadIdx.x;
  if (t < kBuffers) mbarrier_init(&barriers[t], 1);
  cluster_sync();
  int sum = static_cast<int>(t);
  for (unsigned round = 0; round < 6; ++round) {
    const unsigned b = round % kBuffers;
    if (t == 0) mbarrier_arrive_expect(&barriers[b], kClusterSize * kWarps * sizeof(int));
    int* slot = &slots[b][cluster_rank()][t / 32];
    const unsigned to = t % 32;
    if (to < kClusterSize) store_async(slot, sum, &barriers[b], to);  // [two_buffers.write]
    mbarrier_wait(&barriers[b], round / kBuffers % 2);
    for (unsigned r = 0; r < kClusterSize; ++r) {
      for (unsigned w = 0; w < kWarps; ++w) sum += slots[b][r][w] % 100;  // [two_buffers.read]
    }
    __syncwarp();  // the lanes that send tell also what the others have read
  }
  m.out[own_element()] = sum;
}

// Two buffers do if those who send know that their neighbours have read.
template <bool kMistake>
__global__ void tell_what_was_read(const ClusterMemory m) {
  constexpr unsigned kWarps = kThreads / 32;
  __shared__ Mbarrier barriers[2];
  __shared__ int slots[2][kClusterSize][kWarps];
  const unsigned t = threadIdx.x;
  if (t < 2) mbarrier_init(&barriers[t], 1);
  cluster_sync();
  int sum = static_cast<int>(t);
  for (unsigned round = 0; round < 6; ++round) {
    const unsigned b = round % 2, to = t % 32;
    if (t == 0) mbarrier_arrive_expect(&barriers[b], kClusterSize * kWarps * sizeof(int));
    int* slot = &slots[b][cluster_rank()][t / 32];
    if (to < kClusterSize) store_async(slot, sum, &barriers[b], to);  // [tell_what_was_read.write]
    mbarrier_wait(&barriers[b], round / 2 % 2);
    for (unsigned w = 0; w < kClusterSize * kWarps; ++w) {
      sum += slots[b][w / kWarps][w % kWarps] % 100;  // [tell_what_was_read.read]
    }
    if (!kMistake) __syncwarp();
  }
  m.out[own_element()] = sum;
}

// A block must not end before what is sent to it has come.
template <bool kMistake>
__global__ void send_and_return(const ClusterMemory m) {
  __shared__ Mbarrier barrier;
  __shared__ int slots[kThreads];
  const unsigned t = threadIdx.x;
  slots[t] = 0;
  if (t == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_arrive_expect(&barrier, kBytesOfBlock);
  }
  cluster_sync();
  store_async(&slots[t], 7, &barrier, next_rank());  // [send_and_return]
  if (!kMistake) mbarrier_wait(&barrier, 0);
  m.out[own_element()] = static_cast<int>(t);
  cluster_sync();
}

// The second reduction needs another array.
__global__ void reduce_twice_kernel(const ClusterMemory m) {
  __shared__ float partial[tile::kMaxWarpsOfCluster];
  cluster_sync();
  float sum = tile::reduce_cluster(1.0f, tile::Add{}, partial);  // [reduce_twice.first]
  sum = tile::reduce_cluster(sum, tile::Add{}, partial);         // [reduce_twice.second]
  m.out[own_element()] = static_cast<int>(sum);
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
    PAIR(wait_for_other_block),
    PAIR(past_the_end),
    PAIR(never_written),
    PAIR(rank_too_large),
    PAIR(copy_to_other_block),
    PAIR(read_before_wait),
    PAIR(sync_for_wait),
    PAIR(wait_of_one),
    PAIR(send_at_once),
    PAIR(init_after_sync),
    PAIR(ready_without_fence),
    PAIR(use_at_once),
    PAIR(use_after_use),
    PAIR(init_after_relaxed),
    PAIR(relaxed_for_release),
    PAIR(relaxed_in_the_block),
    PAIR(write_before_relaxed),
    PAIR(global_before_shared),
    PAIR(send_before_shared),
    PAIR(write_after_mbarrier),
    PAIR(global_after_message),
    PAIR(global_in_the_block),
    PAIR(told_by_a_waiter),
    PAIR(two_buffers),
    PAIR(tell_what_was_read),
    PAIR(send_and_return),
};

}  // namespace

const std::span<const ClusterPair> kClusterPairs = kPairs;

void reduce_twice(const ClusterMemory& memory) {
  launch_clusters("reduce_twice_kernel", __FILE__, __LINE__,
                  {kClusterBlocks, kThreads, kClusterSize}, reduce_twice_kernel, memory);
}

}  // namespace device_test
