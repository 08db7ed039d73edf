#include "divergent_kernels.hpp"

#include <cuda_runtime.h>

namespace device_test {
namespace {

constexpr unsigned kFull = 0xffffffffu;

__device__ unsigned thread_number() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ unsigned threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }
__device__ unsigned lane() { return thread_number() % 32; }

__global__ void half_block(Lines* lines) {
  if (thread_number() < threads_of_block() / 2) {
    lines->first = __LINE__ + 1;
    __syncthreads();
  }
}

__global__ void two_barriers(Lines* lines) {
  if (thread_number() % 2 == 0) {
    lines->first = __LINE__ + 1;
    __syncthreads();
  } else {
    lines->second = __LINE__ + 1;
    __syncthreads();
  }
}

__global__ void two_kinds(Lines* lines) {
  if (thread_number() % 2 == 0) {
    lines->first = __LINE__ + 1;
    __syncthreads();
  } else {
    lines->second = __LINE__ + 1;
    __syncthreads_count(1);
  }
}

__global__ void early_return(Lines* lines) {
  if (thread_number() == threads_of_block() - 1) return;
  lines->first = __LINE__ + 1;
  __syncthreads_or(1);
}

__global__ void trip_counts(Lines* lines) {
  for (unsigned round = 0; round <= thread_number() % 2; ++round) {
    lines->first = __LINE__ + 1;
    __syncthreads();
  }
}

__global__ void missing_lane(Lines* lines) {
  if (lane() != 3) {
    lines->first = __LINE__ + 1;
    __shfl_down_sync(kFull, 1.0f, 1);
  }
  lines->second = __LINE__ + 1;
  __syncthreads();
}

__global__ void exited_lane(Lines* lines) {
  if (lane() == 5) return;
  lines->first = __LINE__ + 1;
  __shfl_xor_sync(kFull, 1, 1);
}

__global__ void own_bit(Lines* lines) {
  lines->first = __LINE__ + 1;
  __shfl_sync(0xfffffffeu, 1, 2);
}

__global__ void different_masks(Lines* lines) {
  if (lane() < 16) {
    lines->first = __LINE__ + 1;
    __any_sync(0x0001ffff, 1);
  } else {
    lines->second = __LINE__ + 1;
    __any_sync(kFull, 1);
  }
}

__global__ void disjoint_starts(Lines* lines) {
  if (lane() < 16) {
    lines->first = __LINE__ + 1;
    __syncwarp();
  } else {
    __syncwarp(0xffff0000);
  }
}

__global__ void different_calls(Lines* lines) {
  if (lane() % 2 == 0) {
    lines->first = __LINE__ + 1;
    __ballot_sync(kFull, 1);
  } else {
    lines->second = __LINE__ + 1;
    __any_sync(kFull, 1);
  }
}

}  // namespace

void diverge(Divergence kind, dim3 block, Lines* lines) {
  constexpr void (*kKernels[])(Lines*) = {
      half_block,  two_barriers, two_kinds,       early_return,    trip_counts,    missing_lane,
      exited_lane, own_bit,      different_masks, disjoint_starts, different_calls};
  const auto kernel = kKernels[static_cast<int>(kind)];
  lines->launch = __LINE__ + 1;
  kernel<<<2, block>>>(lines);
}

const char* divergent_file() { return __FILE__; }

}  // namespace device_test
