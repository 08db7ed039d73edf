#include "cluster_kernels.hpp"

#include <cuda_runtime.h>

#include "tile/host/launch.hpp"
#include "tile/ptx/cluster.cuh"

namespace ptx_test {
namespace {

using tile::ptx::cluster_arrive;
using tile::ptx::cluster_arrive_shared;
using tile::ptx::cluster_rank;
using tile::ptx::cluster_size;
using tile::ptx::cluster_sync;
using tile::ptx::cluster_wait;
using tile::ptx::in_block_of_cluster;

constexpr unsigned kThreads = kClusterThreads;
constexpr unsigned kLargest = 16;  // cluster

__host__ __device__ constexpr int number(unsigned block, unsigned thread) {
  return static_cast<int>(block * 1000 + thread * 3 + 1);
}

__global__ void ranks_kernel(int* out) {
  if (threadIdx.x != 0) return;
  out[2 * blockIdx.x] = static_cast<int>(cluster_rank());
  out[2 * blockIdx.x + 1] = static_cast<int>(cluster_size());
}

template <bool kShared>
__global__ void read_kernel(int* out) {
  __shared__ int before[7];  // so that the array lies somewhere
  __shared__ int numbers[kThreads];
  const unsigned t = threadIdx.x, size = cluster_size();
  if (t < 7) before[t] = 0;
  numbers[t] = number(blockIdx.x, t);
  kShared ? cluster_arrive_shared() : cluster_arrive();
  cluster_wait();
  for (unsigned r = 0; r < size; ++r) {
    // Of the array and of an element, which is the same.
    const int* whole = in_block_of_cluster(numbers, r);
    const int* one = in_block_of_cluster(&numbers[kThreads - 1 - t], r);
    const bool same = one == whole + (kThreads - 1 - t);
    out[(blockIdx.x * size + r) * kThreads + (kThreads - 1 - t)] = same ? *one : before[t % 7];
  }
  cluster_sync();
}

template <bool kSplit>
__global__ void write_kernel(int* out) {
  __shared__ int slots[kLargest][kThreads];
  const unsigned t = threadIdx.x, size = cluster_size(), rank = cluster_rank();
  cluster_sync();
  for (unsigned r = 0; r < size; ++r) {
    in_block_of_cluster(&slots[rank][0], r)[t] = number(blockIdx.x, t);
  }
  if (kSplit) {
    cluster_arrive();
    out[gridDim.x * size * kThreads + blockIdx.x * kThreads + t] = static_cast<int>(t * t);
    cluster_wait();
  } else {
    cluster_sync();
  }
  for (unsigned r = 0; r < size; ++r) {
    out[(blockIdx.x * size + r) * kThreads + t] = slots[r][t];
  }
}

__global__ void hand_on_kernel(int rounds, int bytes, int* out) {
  extern __shared__ int4 dynamic[];
  int* numbers = reinterpret_cast<int*>(reinterpret_cast<char*>(dynamic) + bytes) - kThreads;
  const unsigned t = threadIdx.x;
  int* next = in_block_of_cluster(numbers, (cluster_rank() + 1) % cluster_size());
  int mine = number(blockIdx.x, t);
  for (int round = 0; round < rounds; ++round) {
    cluster_sync();  // all have taken what they got in the round before
    next[t] = mine;
    cluster_sync();
    mine = numbers[t];
  }
  out[blockIdx.x * kThreads + t] = mine;
}

__global__ void count_kernel(int* out) {
  __shared__ int count;
  const unsigned t = threadIdx.x;
  if (t >= kThreads - 32) return;
  if (t == 0) count = 0;
  cluster_sync();
  atomicAdd(in_block_of_cluster(&count, 0), 1);
  cluster_sync();
  if (t == 0 && cluster_rank() == 0) out[blockIdx.x / cluster_size()] = count;
}

__global__ void nothing_kernel() {}

template <class... Parameters>
tile::Status launch(void (*kernel)(Parameters...), tile::LaunchName name, Clusters clusters,
                    std::size_t bytes, Parameters... parameters) {
  return tile::launch_in_clusters(kernel, name, clusters.count * clusters.size, kClusterThreads,
                                  clusters.size, bytes, nullptr, parameters...);
}

__global__ void number_kernel(int value, int* out) { out[0] = value; }
__global__ void shared_kernel() {}

}  // namespace

tile::Status ranks_and_sizes(Clusters clusters, int* out) {
  return launch(ranks_kernel, "ranks_kernel", clusters, 0, out);
}

int number_of(unsigned block, int thread) { return number(block, static_cast<unsigned>(thread)); }

tile::Status read_all_blocks(Clusters clusters, bool shared, int* out) {
  return launch(shared ? read_kernel<true> : read_kernel<false>, "read_kernel", clusters, 0, out);
}

tile::Status write_to_all_blocks(Clusters clusters, bool split, int* out) {
  return launch(split ? write_kernel<true> : write_kernel<false>, "write_kernel", clusters, 0, out);
}

tile::Status hand_on(Clusters clusters, int rounds, std::size_t bytes, int* out) {
  return launch(hand_on_kernel, "hand_on_kernel", clusters, bytes, rounds, static_cast<int>(bytes),
                out);
}

tile::Status count_in_first_block(Clusters clusters, int* out) {
  return launch(count_kernel, "count_kernel", clusters, 0, out);
}

tile::Status launch_nothing(unsigned blocks, unsigned cluster, int threads, std::size_t bytes) {
  return tile::launch_in_clusters(nothing_kernel, "nothing_kernel", blocks, threads, cluster, bytes,
                                  nullptr);
}

tile::Status count_clusters(unsigned cluster, int threads, std::size_t bytes, int* count) {
  return tile::clusters_at_once(nothing_kernel, "nothing_kernel", threads, cluster, bytes, count);
}

tile::Status write_number(std::int64_t value, int* out) {
  return tile::launch(number_kernel, "number_kernel", 1, 1, 0, nullptr, value, out);
}

tile::Status launch_with_shared_bytes(std::size_t bytes, int* allowed) {
  TILE_TRY(tile::launch(shared_kernel, "shared_kernel", 1, 1, bytes, nullptr));
  cudaFuncAttributes attributes{};
  TILE_RETURN_IF_CUDA_ERROR(cudaFuncGetAttributes(&attributes, shared_kernel));
  *allowed = attributes.maxDynamicSharedSizeBytes;
  return {};
}

}  // namespace ptx_test
