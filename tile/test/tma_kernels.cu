#include "tma_kernels.hpp"

#include <cuda_runtime.h>

#include "tile/host/launch.hpp"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/tma.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace ptx_test {
namespace {

using namespace tile::ptx;
using tile::TensorMap;

constexpr int kThreads = 128;

template <int kRank>
__device__ auto box_at(const Corner& c) {
  if constexpr (kRank == 2) {
    return BoxAt{c.at[0], c.at[1]};
  } else if constexpr (kRank == 3) {
    return BoxAt{c.at[0], c.at[1], c.at[2]};
  } else {
    return BoxAt{c.at[0], c.at[1], c.at[2], c.at[3]};
  }
}

__device__ void fill(std::uint32_t* shared, const std::uint32_t* in, int words) {
  for (int i = threadIdx.x; i < words; i += kThreads) shared[i] = in ? in[i] : kNotLoaded;
  fence_async_proxy();
}

__device__ void copy_out(const std::uint32_t* shared, int words, std::uint32_t* out) {
  for (int i = threadIdx.x; i < words; i += kThreads) out[i] = shared[i];
}

template <int kRank>
__global__ void load_kernel(const __grid_constant__ TensorMap map, Corner corner, unsigned bytes,
                            std::uint32_t* out) {
  __shared__ alignas(1024) std::uint32_t box[kBoxWords];
  __shared__ Mbarrier barrier;
  fill(box, nullptr, kBoxWords);
  if (threadIdx.x == 0) {
    prefetch_tensor_map(map);
    mbarrier_init(&barrier, 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(&barrier, bytes);
    tma_load(box, map, box_at<kRank>(corner), &barrier);
  }
  mbarrier_wait(&barrier, 0);
  copy_out(box, kBoxWords, out);
}

__global__ void multicast_kernel(const __grid_constant__ TensorMap map, Corner corner,
                                 unsigned bytes, std::uint32_t* out) {
  __shared__ alignas(1024) std::uint32_t box[kBoxWords];
  __shared__ Mbarrier barrier;
  const unsigned rank = cluster_rank();
  fill(box, nullptr, kBoxWords);
  if (threadIdx.x == 0) {
    mbarrier_init(&barrier, 1);
    mbarrier_arrive_expect(&barrier, 2 * bytes);
  }
  cluster_sync();
  if (threadIdx.x == 0) {
    const BoxAt part{corner.at[0], corner.at[1] + 8 * static_cast<int>(rank)};
    tma_load_multicast(box + rank * bytes / sizeof(std::uint32_t), map, part, &barrier, 0b11);
  }
  mbarrier_wait_cluster(&barrier, 0);
  copy_out(box, kBoxWords, out + rank * kBoxWords);
}

template <int kRank>
__global__ void store_kernel(const __grid_constant__ TensorMap map, Corner corner,
                             const std::uint32_t* in, bool adds) {
  __shared__ alignas(1024) std::uint32_t box[kBoxWords];
  fill(box, in, kBoxWords);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (adds) {
    tma_reduce_add(map, box_at<kRank>(corner), box);
  } else {
    tma_store(map, box_at<kRank>(corner), box);
  }
  bulk_commit();
  bulk_wait<0>();
}

__global__ void copy_bulk_kernel(const std::uint32_t* in, int words, std::uint32_t* out) {
  __shared__ alignas(16) std::uint32_t run[kBoxWords];
  __shared__ Mbarrier barrier;
  if (threadIdx.x == 0) {
    const unsigned bytes = static_cast<unsigned>(words) * sizeof(std::uint32_t);
    mbarrier_init(&barrier, 1);
    mbarrier_arrive_expect(&barrier, bytes);
    bulk_load(run, in, bytes, &barrier);
    mbarrier_wait(&barrier, 0);
    bulk_store(out, run, bytes);
    bulk_commit();
    bulk_wait_read<0>();  // what is written there is seen when the kernel has ended
  }
}

__global__ void add_bulk_kernel(const float* in, int words, float* sums) {
  __shared__ alignas(16) float run[kBoxWords];
  for (int i = threadIdx.x; i < words; i += kThreads) run[i] = in[i];
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x != 0) return;
  bulk_reduce_add(sums, run, static_cast<unsigned>(words) * sizeof(float));
  bulk_commit();
  bulk_wait<0>();
}

__global__ void store_in_turn_kernel(int rounds, std::uint32_t* out) {
  constexpr int kBuffers = 3;
  __shared__ alignas(16) std::uint32_t buffers[kBuffers][kThreads];
  for (int round = 0; round < rounds; ++round) {
    // The store of three rounds ago has read its buffer: two may go on.
    if (threadIdx.x == 0) bulk_wait_read<kBuffers - 1>();
    __syncthreads();
    std::uint32_t* buffer = buffers[round % kBuffers];
    buffer[threadIdx.x] = static_cast<std::uint32_t>(round * kThreads) + threadIdx.x;
    fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(out + round * kThreads, buffer, sizeof buffers[0]);
      bulk_commit();
    }
  }
  if (threadIdx.x == 0) bulk_wait_read<0>();
}

__global__ void __launch_bounds__(96)
    ring_kernel(const __grid_constant__ TensorMap in, const __grid_constant__ TensorMap out,
                int boxes) {
  constexpr int kStages = 3, kBox = 256, kConsumers = 64;
  constexpr unsigned kBytes = kBox * sizeof(float);
  __shared__ alignas(128) float boxes_in[kStages][kBox], boxes_out[2][kBox];
  __shared__ Mbarrier full[kStages], empty[kStages];
  const int t = static_cast<int>(threadIdx.x);
  if (t < kStages) {
    mbarrier_init(&full[t], 1);
    mbarrier_init(&empty[t], kConsumers / 32);
  }
  __syncthreads();
  if (t < 32) {
    for (int i = 0; i < boxes && t == 0; ++i) {
      const int stage = i % kStages, turn = i / kStages;
      if (turn > 0) mbarrier_wait(&empty[stage], (turn - 1) % 2);
      mbarrier_arrive_expect(&full[stage], kBytes);
      tma_load(boxes_in[stage], in, BoxAt{0, 8 * i}, &full[stage]);
    }
    return;
  }
  const int consumer = t - 32;
  for (int i = 0; i < boxes; ++i) {
    const int stage = i % kStages;
    float values[kBox / kConsumers];
    mbarrier_wait(&full[stage], i / kStages % 2);
    for (int j = 0; j < kBox / kConsumers; ++j) {
      values[j] = boxes_in[stage][consumer + j * kConsumers];
    }
    __syncwarp();  // all lanes have read
    if (t % 32 == 0) mbarrier_arrive(&empty[stage]);
    if (consumer == 0) bulk_wait_read<1>();
    barrier_sync(1, kConsumers);  // the store before the last has read its buffer
    for (int j = 0; j < kBox / kConsumers; ++j) {
      boxes_out[i % 2][consumer + j * kConsumers] = 2 * values[j];
    }
    fence_async_proxy();
    barrier_sync(2, kConsumers);  // and all have written
    if (consumer == 0) {
      tma_store(out, BoxAt{0, 8 * i}, boxes_out[i % 2]);
      bulk_commit();
    }
  }
  if (consumer == 0) bulk_wait_read<0>();
}

}  // namespace

tile::Status load_box(int rank, const TensorMap& map, Corner corner, unsigned bytes,
                      std::uint32_t* out) {
  const auto kernel = rank == 2 ? load_kernel<2> : rank == 3 ? load_kernel<3> : load_kernel<4>;
  kernel<<<1, kThreads>>>(map, corner, bytes, out);
  return tile::launch_status("load_kernel");
}

tile::Status load_for_both(const TensorMap& map, Corner corner, unsigned bytes,
                           std::uint32_t* out) {
  return tile::launch_in_clusters(multicast_kernel, "multicast_kernel", 2, kThreads, 2, 0, nullptr,
                                  map, corner, bytes, out);
}

tile::Status store_box(int rank, const TensorMap& map, Corner corner, const std::uint32_t* in,
                       unsigned blocks) {
  const auto kernel = rank == 2 ? store_kernel<2> : rank == 3 ? store_kernel<3> : store_kernel<4>;
  kernel<<<blocks == 0 ? 1 : blocks, kThreads>>>(map, corner, in, blocks != 0);
  return tile::launch_status("store_kernel");
}

tile::Status copy_bulk(const std::uint32_t* in, int words, std::uint32_t* out) {
  copy_bulk_kernel<<<1, kThreads>>>(in, words, out);
  return tile::launch_status("copy_bulk_kernel");
}

tile::Status add_bulk(const float* in, int words, unsigned blocks, float* sums) {
  add_bulk_kernel<<<blocks, kThreads>>>(in, words, sums);
  return tile::launch_status("add_bulk_kernel");
}

tile::Status store_in_turn(int rounds, std::uint32_t* out) {
  store_in_turn_kernel<<<1, kThreads>>>(rounds, out);
  return tile::launch_status("store_in_turn_kernel");
}

tile::Status double_in_ring(const TensorMap& in, const TensorMap& out, int boxes) {
  ring_kernel<<<1, 96>>>(in, out, boxes);
  return tile::launch_status("ring_kernel");
}

}  // namespace ptx_test
