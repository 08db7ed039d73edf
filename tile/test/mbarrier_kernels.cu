#include "mbarrier_kernels.hpp"

#include <cuda_runtime.h>

#include "tile/host/launch.hpp"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/mbarrier.cuh"
#include "tile/ptx/store_async.cuh"

namespace ptx_test {
namespace {

using namespace tile::ptx;

constexpr unsigned kThreads = kSenders;
constexpr unsigned kLargest = 16;  // cluster

__host__ __device__ constexpr int word_at(unsigned block, unsigned thread, unsigned word) {
  return static_cast<int>((block * 100 + thread) * 10 + word);
}

template <unsigned kWords>
struct alignas(4 * kWords) Words {
  int word[kWords];
};

template <unsigned kWords>
__global__ void send_kernel(int* out) {
  __shared__ Mbarrier barrier;
  __shared__ Words<kWords> slots[kLargest][kThreads];
  const unsigned t = threadIdx.x, size = cluster_size(), rank = cluster_rank();
  if (t == 0) mbarrier_init(&barrier, 1);
  cluster_sync();
  if (t == 0) mbarrier_arrive_expect(&barrier, size * kThreads * sizeof(Words<kWords>));
  Words<kWords> value;
  for (unsigned w = 0; w < kWords; ++w) value.word[w] = word_at(blockIdx.x, t, w);
  for (unsigned r = 0; r < size; ++r) store_async(&slots[rank][t], value, &barrier, r);
  mbarrier_wait_cluster(&barrier, 0);
  for (unsigned r = 0; r < size; ++r) {
    for (unsigned w = 0; w < kWords; ++w) {
      // Of another thread than the one that has sent it here.
      const unsigned from = (t + 33) % kThreads;
      const unsigned element = (blockIdx.x * size + r) * kThreads + from;
      out[element * kWords + w] = slots[r][from].word[w];
    }
  }
}

__global__ void hand_on_async_kernel(int rounds, int* out) {
  __shared__ Mbarrier barriers[2];
  __shared__ int slots[2][kThreads];
  const unsigned t = threadIdx.x, size = cluster_size(), next = (cluster_rank() + 1) % size;
  if (t < 2) mbarrier_init(&barriers[t], kThreads);
  cluster_sync();
  int mine = word_at(blockIdx.x, t, 0);
  for (int round = 0; round < rounds; ++round) {
    const int buffer = round % 2;
    mbarrier_arrive_expect(&barriers[buffer], sizeof mine);
    store_async(&slots[buffer][t], mine, &barriers[buffer], next);
    mbarrier_wait_cluster(&barriers[buffer], round / 2 % 2);
    mine = slots[buffer][t];
    if (buffer == 1) cluster_sync();  // the next block has read both of its buffers
  }
  out[blockIdx.x * kThreads + t] = mine;
}

__global__ void free_kernel(int items, int* out) {
  __shared__ Mbarrier full[2], empty[2];
  __shared__ int slots[2][kThreads];
  const unsigned t = threadIdx.x, size = cluster_size(), rank = cluster_rank();
  if (t < 2) {
    mbarrier_init(&full[t], 1);
    mbarrier_init(&empty[t], size);
  }
  cluster_arrive_relaxed();
  cluster_wait();
  for (int i = 0; i < items; ++i) {
    const int slot = i % 2, parity = i / 2 % 2;
    if (t == 0) mbarrier_arrive_expect(&full[slot], sizeof slots[0]);
    if (rank == 0) {
      if (i >= 2) mbarrier_wait_cluster(&empty[slot], 1 - parity);
      for (unsigned r = 0; r < size; ++r) {
        store_async(&slots[slot][t], i * 100 + static_cast<int>(t), &full[slot], r);
      }
    }
    mbarrier_wait_cluster(&full[slot], parity);
    out[(blockIdx.x * items + i) * kThreads + t] = slots[slot][t];
    __syncthreads();
    if (t == 0) mbarrier_arrive(&empty[slot], 0);
  }
  cluster_sync();
}

}  // namespace

int word_of(unsigned block, int thread, int word) {
  return word_at(block, static_cast<unsigned>(thread), static_cast<unsigned>(word));
}

tile::Status send_to_all(unsigned blocks, unsigned cluster, int words, int* out) {
  void (*kernel)(int*) = words == 1 ? send_kernel<1> : words == 2 ? send_kernel<2> : send_kernel<4>;
  return tile::launch_in_clusters(kernel, "send_kernel", blocks, kSenders, cluster, 0, nullptr,
                                  out);
}

tile::Status hand_on_async(unsigned blocks, unsigned cluster, int rounds, int* out) {
  return tile::launch_in_clusters(hand_on_async_kernel, "hand_on_async_kernel", blocks, kSenders,
                                  cluster, 0, nullptr, rounds, out);
}

tile::Status free_by_arrivals(unsigned cluster, int items, int* out) {
  return tile::launch_in_clusters(free_kernel, "free_kernel", cluster, kSenders, cluster, 0,
                                  nullptr, items, out);
}

}  // namespace ptx_test
