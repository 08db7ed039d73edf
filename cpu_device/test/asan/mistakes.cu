#include "mistakes.hpp"

#include <cuda_runtime.h>

#include "../cluster_launch.hpp"
#include "tile/ptx/cluster.cuh"

namespace device_test {
namespace {

constexpr int kThreads = 64;
constexpr int kLocal = 5;

__device__ volatile int zero = 0;  // the compiler must believe that it changes

__global__ void mistaken(AsanMistake mistake, float* array) {
  __shared__ float first[kElements];
  __shared__ float second[kElements];
  extern __shared__ float dynamic[];
  float local[kLocal];
  const int t = static_cast<int>(threadIdx.x);
  for (int i = 0; i < kLocal; ++i) local[(i + zero) % kLocal] = static_cast<float>(i + t);
  first[t] = second[t] = dynamic[t] = 1;
  __syncthreads();  // the thread is on a stack of its own, and has changed to it and from it

  if (blockIdx.x == 1 && t == 3) {
    switch (mistake) {
      case AsanMistake::none: break;
      case AsanMistake::past_local: local[kLocal + zero] = 1; break;
      case AsanMistake::after_free: array[zero] = 1; break;
      case AsanMistake::past_global: array[kElements + zero] = 1; break;
      case AsanMistake::past_shared: first[kElements + zero] = 1; break;
      case AsanMistake::past_dynamic: dynamic[kThreads + zero] = 1; break;
      default: break;
    }
  }
  __syncthreads();
  const bool owner = mistake != AsanMistake::after_free && blockIdx.x == 0;
  if (owner) array[t] = first[t] + second[t] + dynamic[t] + local[(t + zero) % kLocal];
}

__device__ int ended = 0;  // threads of block 0

__global__ void mistaken_in_cluster(AsanMistake mistake) {
  __shared__ float first[kElements];
  __shared__ float second[kElements];
  const int t = static_cast<int>(threadIdx.x);
  first[t] = second[t] = 1;
  float* other = tile::ptx::in_block_of_cluster(first, 0);
  tile::ptx::cluster_sync();
  if (blockIdx.x == 1 && t == 3) {
    other[t + zero] = 2;
    if (mistake == AsanMistake::past_shared_in_cluster) other[kElements + zero] = 1;
    if (mistake == AsanMistake::ended_in_cluster) {
      while (atomicAdd(&ended, 0) != kThreads) __nanosleep(100);
      other[t + zero] = 1;
    }
  }
  if (mistake != AsanMistake::ended_in_cluster) tile::ptx::cluster_sync();
  if (blockIdx.x == 0) atomicAdd(&ended, 1);
}

}  // namespace

void make_asan_mistake(AsanMistake mistake, float* array) {
  if (mistake >= AsanMistake::none_in_cluster) {
    launch_clusters("mistaken_in_cluster", __FILE__, __LINE__, {2, kThreads, 2},
                    mistaken_in_cluster, mistake);
    return;
  }
  mistaken<<<2, kThreads, kThreads * sizeof(float)>>>(mistake, array);
}

}  // namespace device_test
