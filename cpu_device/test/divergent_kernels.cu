#include "divergent_kernels.hpp"

#include <cuda_runtime.h>

namespace device_test {
namespace {

constexpr unsigned kFull = 0xffffffffu;

__device__ Lines here;  // of the running kernel

__device__ unsigned thread_number() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ unsigned threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }
__device__ unsigned lane() { return thread_number() % 32; }

__global__ void half_block() {
  if (thread_number() < threads_of_block() / 2) {
    here.first = __LINE__ + 1;
    __syncthreads();
  }
}

__global__ void two_barriers() {
  if (thread_number() % 2 == 0) {
    here.first = __LINE__ + 1;
    __syncthreads();
  } else {
    here.second = __LINE__ + 1;
    __syncthreads();
  }
}

__global__ void two_kinds() {
  if (thread_number() % 2 == 0) {
    here.first = __LINE__ + 1;
    __syncthreads();
  } else {
    here.second = __LINE__ + 1;
    __syncthreads_count(1);
  }
}

__global__ void early_return() {
  if (thread_number() == threads_of_block() - 1) return;
  here.first = __LINE__ + 1;
  __syncthreads_or(1);
}

__global__ void trip_counts() {
  for (unsigned round = 0; round <= thread_number() % 2; ++round) {
    here.first = __LINE__ + 1;
    __syncthreads();
  }
}

__global__ void missing_lane() {
  if (lane() != 3) {
    here.first = __LINE__ + 1;
    __shfl_down_sync(kFull, 1.0f, 1);
  }
  here.second = __LINE__ + 1;
  __syncthreads();
}

__global__ void exited_lane() {
  if (lane() == 5) return;
  here.first = __LINE__ + 1;
  __shfl_xor_sync(kFull, 1, 1);
}

__global__ void own_bit() {
  here.first = __LINE__ + 1;
  __shfl_sync(0xfffffffeu, 1, 2);
}

__global__ void different_masks() {
  if (lane() < 16) {
    here.first = __LINE__ + 1;
    __any_sync(0x0001ffff, 1);
  } else {
    here.second = __LINE__ + 1;
    __any_sync(kFull, 1);
  }
}

__global__ void disjoint_starts() {
  if (lane() < 16) {
    here.first = __LINE__ + 1;
    __syncwarp();
  } else {
    __syncwarp(0xffff0000);
  }
}

__global__ void different_calls() {
  if (lane() % 2 == 0) {
    here.first = __LINE__ + 1;
    __ballot_sync(kFull, 1);
  } else {
    here.second = __LINE__ + 1;
    __any_sync(kFull, 1);
  }
}

}  // namespace

void diverge(Divergence kind, dim3 block, Lines* lines) {
  constexpr void (*kKernels[])() = {half_block,      two_barriers,    two_kinds,      early_return,
                                    trip_counts,     missing_lane,    exited_lane,    own_bit,
                                    different_masks, disjoint_starts, different_calls};
  const auto kernel = kKernels[static_cast<int>(kind)];
  const int launch = __LINE__ + 1;
  kernel<<<2, block>>>();
  cudaMemcpyFromSymbol(lines, here, sizeof *lines);
  lines->launch = launch;
}

const char* divergent_file() { return __FILE__; }

}  // namespace device_test
