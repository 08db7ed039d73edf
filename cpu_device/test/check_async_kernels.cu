#include "check_async_kernels.hpp"

#include <cuda_runtime.h>

#include "cluster_launch.hpp"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/tma.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace device_test {
namespace {

using namespace tile::ptx;

constexpr int kThreads = kAsyncThreads;
constexpr int kBox = 128;  // floats
constexpr unsigned kBoxBytes = kBox * sizeof(float);

__device__ int own() {
  return static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
}
__device__ BoxAt<2> box_of(int number) { return {{0, 4 * (number % 8)}}; }

__device__ void init(Mbarrier* barriers, int count, unsigned arrivals) {
  if (static_cast<int>(threadIdx.x) < count) mbarrier_init(&barriers[threadIdx.x], arrivals);
  __syncthreads();
}

// ---- Loads ----

// What a load brings is there for who has waited for it.
template <bool kMistake>
__global__ void load_without_wait(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  __shared__ Mbarrier full[1];
  init(full, 1, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&full[0], kBoxBytes);
    tma_load(box, m.map, box_of(0), &full[0]);  // [load_without_wait.load]
    mbarrier_wait(&full[0], 0);
  }
  if (!kMistake) mbarrier_wait(&full[0], 0);
  m.out[own()] = box[threadIdx.x];  // [load_without_wait.read]
}

// A barrier does not wait for a load.
template <bool kMistake>
__global__ void barrier_for_wait(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  __shared__ Mbarrier full[1];
  init(full, 1, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&full[0], kBoxBytes);
    bulk_load(box, m.in, kBoxBytes, &full[0]);
  }
  __syncthreads();
  if (!kMistake) mbarrier_wait(&full[0], 0);
  m.out[own()] = box[threadIdx.x];  // [barrier_for_wait.read]
  mbarrier_wait(&full[0], 0);
}

// A thread that arrives says that it has read the slot: the next load may follow.
template <bool kMistake>
__global__ void slot_reused(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  __shared__ Mbarrier full[1], empty[1];
  init(full, 1, 1);
  init(empty, 1, kThreads);
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    if (threadIdx.x == 0) {
      if (i > 0) mbarrier_wait(&empty[0], (i - 1) % 2);
      mbarrier_arrive_expect(&full[0], kBoxBytes);
      tma_load(box, m.map, box_of(i), &full[0]);  // [slot_reused.load]
    }
    mbarrier_wait(&full[0], i % 2);
    if (kMistake) mbarrier_arrive(&empty[0]);
    sum += box[threadIdx.x];  // [slot_reused.read]
    if (!kMistake) mbarrier_arrive(&empty[0]);
  }
  m.out[own()] = sum;
}

// Two slots: the one that is waited for is the one that is read.
template <bool kMistake>
__global__ void wait_for_other_slot(const AsyncMemory m) {
  __shared__ alignas(128) float boxes[2][kBox];
  __shared__ Mbarrier full[2];
  init(full, 2, 1);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_arrive_expect(&full[i], kBoxBytes);
      tma_load(boxes[i], m.map, box_of(i), &full[i]);  // [wait_for_other_slot.load]
    }
  }
  mbarrier_wait(&full[kMistake ? 1 : 0], 0);
  m.out[own()] = boxes[0][threadIdx.x];  // [wait_for_other_slot.read]
  mbarrier_wait(&full[0], 0);
  mbarrier_wait(&full[1], 0);
}

// A load into what another load is still to write.
template <bool kMistake>
__global__ void load_over_load(const AsyncMemory m) {
  __shared__ alignas(128) float boxes[2][kBox];
  __shared__ Mbarrier full[1];
  init(full, 1, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&full[0], 2 * kBoxBytes);
    tma_load(boxes[0], m.map, box_of(0), &full[0]);
    tma_load(boxes[kMistake ? 0 : 1], m.map, box_of(1), &full[0]);  // [load_over_load]
  }
  mbarrier_wait(&full[0], 0);
  m.out[own()] = boxes[0][threadIdx.x];
}

// And a thread's write there.
template <bool kMistake>
__global__ void write_over_load(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  __shared__ Mbarrier full[1];
  init(full, 1, 1);
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&full[0], kBoxBytes);
    tma_load(box, m.map, box_of(0), &full[0]);
    if (!kMistake) mbarrier_wait(&full[0], 0);
    box[5] = 1;  // [write_over_load]
  }
  mbarrier_wait(&full[0], 0);
  __syncthreads();
  m.out[own()] = box[threadIdx.x];
}

// ---- Stores ----

// TMA sees what threads have written after their fences and a barrier.
template <bool kMistake>
__global__ void store_without_fence(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  for (int i = threadIdx.x; i < kBox; i += kThreads) box[i] = 1;  // [store_without_fence.write]
  if (!kMistake) fence_async_proxy();
  __syncthreads();
  if (threadIdx.x != 0) return;
  tma_store(m.map_of_out, box_of(static_cast<int>(blockIdx.x)), box);  // [store_without_fence]
  bulk_commit();
  bulk_wait<0>();
}

template <bool kMistake>
__global__ void fence_of_one_thread(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  for (int i = threadIdx.x; i < kBox; i += kThreads) box[i] = 1;
  if (!kMistake || threadIdx.x == 0) fence_async_proxy();
  __syncthreads();
  if (threadIdx.x != 0) return;
  bulk_store(m.out + blockIdx.x * kBox, box, kBoxBytes);  // [fence_of_one_thread]
  bulk_commit();
  bulk_wait_read<0>();
}

template <bool kMistake>
__global__ void fence_after_barrier(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  for (int i = threadIdx.x; i < kBox; i += kThreads) box[i] = 1;
  if (!kMistake) fence_async_proxy();
  __syncthreads();
  fence_async_proxy();
  if (threadIdx.x != 0) return;
  bulk_store(m.out + blockIdx.x * kBox, box, kBoxBytes);  // [fence_after_barrier]
  bulk_commit();
  bulk_wait_read<0>();
}

// A fence is no barrier.
template <bool kMistake>
__global__ void fence_for_barrier(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  for (int i = threadIdx.x; i < kBox; i += kThreads) box[i] = 1;  // [fence_for_barrier.write]
  fence_async_proxy();
  if (!kMistake) __syncthreads();
  if (threadIdx.x == kThreads - 1) {
    bulk_store(m.out + blockIdx.x * kBox, box, kBoxBytes);  // [fence_for_barrier.store]
    bulk_commit();
    bulk_wait_read<0>();
  }
  __syncthreads();
}

// A store reads shared memory until its thread has waited for that.
template <bool kMistake>
__global__ void write_under_store(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  for (int i = 0; i < 2; ++i) {
    for (int j = threadIdx.x; j < kBox; j += kThreads) box[j] = i;  // [write_under_store.write]
    fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(m.out + (blockIdx.x * 2 + i) * kBox, box, kBoxBytes);  // [write_under_store.store]
      bulk_commit();
      if (!kMistake || i == 1) bulk_wait_read<0>();
    }
    __syncthreads();
  }
}

// What it has written is there for who waits until it is done.
template <bool kMistake>
__global__ void read_under_store(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  for (int j = threadIdx.x; j < kBox; j += kThreads) box[j] = 1;
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x != 0) return;
  float* out = m.out + blockIdx.x * kBox;
  bulk_store(out, box, kBoxBytes);  // [read_under_store.store]
  bulk_commit();
  bulk_wait_read<0>();
  if (!kMistake) bulk_wait<0>();
  out[1] = out[0] + 1;  // [read_under_store.read]
}

// Additions of two blocks need no order; a store beside them does.
template <bool kMistake>
__global__ void add_and_store(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  for (int j = threadIdx.x; j < kBox; j += kThreads) box[j] = 1;
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (kMistake && blockIdx.x == 1) {
    bulk_store(m.out, box, kBoxBytes);  // [add_and_store.store]
  } else {
    bulk_reduce_add(m.out, box, kBoxBytes);  // [add_and_store.add]
  }
  bulk_commit();
  bulk_wait<0>();
}

// ---- Named barriers ----

template <bool kMistake>
__global__ void named_barrier(const AsyncMemory m) {
  __shared__ float numbers[kThreads];
  numbers[threadIdx.x] = 1;  // [named_barrier.write]
  if (!kMistake) {
    barrier_sync(1, kThreads);
  } else {
    barrier_sync(1 + static_cast<int>(threadIdx.x) / 32, 32);
  }
  m.out[own()] = numbers[(threadIdx.x + 32) % kThreads];  // [named_barrier.read]
}

// A thread that only arrives learns nothing.
template <bool kMistake>
__global__ void arrive_and_read(const AsyncMemory m) {
  __shared__ float numbers[kThreads];
  numbers[threadIdx.x] = 1;
  if (kMistake && threadIdx.x < 32) {
    barrier_arrive(1, kThreads);
  } else {
    barrier_sync(1, kThreads);
  }
  m.out[own()] = numbers[(threadIdx.x + 32) % kThreads];
}

// ---- Clusters ----

// A thread that loads for both blocks must know that both have read.
template <bool kMistake>
__global__ void multicast(const AsyncMemory m) {
  __shared__ alignas(128) float box[kBox];
  __shared__ Mbarrier full[1], empty[1];
  init(full, 1, 1);
  init(empty, 1, kMistake ? kThreads : 2 * kThreads);
  cluster_sync();
  const bool leads = cluster_rank() == 0 && threadIdx.x == 0;
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    if (threadIdx.x == 0) mbarrier_arrive_expect(&full[0], kBoxBytes);
    if (leads) {
      if (i > 0) mbarrier_wait(&empty[0], (i - 1) % 2);
      tma_load_multicast(box, m.map, box_of(i), &full[0], 0b11);  // [multicast.load]
    }
    mbarrier_wait(&full[0], i % 2);
    sum += box[threadIdx.x];  // [multicast.read]
    if (!kMistake || cluster_rank() == 0) mbarrier_arrive(&empty[0], 0);
  }
  m.out[own()] = sum;
  cluster_sync();
}

// No thread may arrive in a block that may have ended.
template <bool kMistake>
__global__ void arrive_at_last(const AsyncMemory m) {
  __shared__ Mbarrier empty[1];
  init(empty, 1, kThreads);
  cluster_sync();
  if (cluster_rank() == 1) mbarrier_arrive(&empty[0], 0);  // [arrive_at_last]
  if (!kMistake) cluster_sync();
  m.out[own()] = 1;
}

#define PAIR(kernel)                                                              \
  {                                                                               \
#kernel, [](bool mistake, const AsyncMemory& memory) {                          \
     launch_clusters(#kernel, __FILE__, __LINE__, {kAsyncBlocks, kThreads, 2},       \
                     mistake ? kernel<true> : kernel<false>, memory);                \
   } \
  }
#define PAIR_OF_BLOCKS(kernel)                                                    \
  {                                                                               \
#kernel, [](bool mistake, const AsyncMemory& memory) {                          \
     launch_clusters(#kernel, __FILE__, __LINE__, {kAsyncBlocks, kThreads, 1},       \
                     mistake ? kernel<true> : kernel<false>, memory);                \
   } \
  }

constexpr AsyncPair kPairs[] = {
    PAIR_OF_BLOCKS(load_without_wait),
    PAIR_OF_BLOCKS(barrier_for_wait),
    PAIR_OF_BLOCKS(slot_reused),
    PAIR_OF_BLOCKS(wait_for_other_slot),
    PAIR_OF_BLOCKS(load_over_load),
    PAIR_OF_BLOCKS(write_over_load),
    PAIR_OF_BLOCKS(store_without_fence),
    PAIR_OF_BLOCKS(fence_of_one_thread),
    PAIR_OF_BLOCKS(fence_after_barrier),
    PAIR_OF_BLOCKS(fence_for_barrier),
    PAIR_OF_BLOCKS(write_under_store),
    PAIR_OF_BLOCKS(read_under_store),
    PAIR_OF_BLOCKS(add_and_store),
    PAIR_OF_BLOCKS(named_barrier),
    PAIR_OF_BLOCKS(arrive_and_read),
    PAIR(multicast),
    PAIR(arrive_at_last),
};

}  // namespace

const std::span<const AsyncPair> kAsyncPairs = kPairs;

}  // namespace device_test
