#include "warpgroup_kernels.hpp"

#include <cuda_runtime.h>

#include "tile/host/cuda_check.hpp"
#include "tile/ptx/elect.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace ptx_test {
namespace {

using namespace tile::ptx;

__global__ void pass_kernel(int items, int* out) {
  constexpr int kFull = 1, kEmpty = 2, kThreads = 96;
  __shared__ int slots[64];
  const int t = threadIdx.x;
  if (t < 32) {
    for (int i = 0; i < items; ++i) {
      if (i > 0) barrier_sync(kEmpty, kThreads);
      slots[t] = i * 1000 + t;
      slots[t + 32] = i * 1000 + t + 32;
      barrier_arrive(kFull, kThreads);
    }
  } else {
    for (int i = 0; i < items; ++i) {
      barrier_sync(kFull, kThreads);
      out[i * 64 + t - 32] = slots[t - 32];
      if (i + 1 < items) barrier_arrive(kEmpty, kThreads);
    }
  }
}

__global__ void groups_kernel(int rounds0, int rounds1, int* out) {
  __shared__ int numbers[2][64];
  const int group = threadIdx.x / 64, t = threadIdx.x % 64;
  const int rounds = group == 0 ? rounds0 : rounds1;
  int sum = 0;
  for (int i = 0; i < rounds; ++i) {
    numbers[group][t] = t;
    barrier_sync(group == 0 ? 7 : 15, 64);
    sum += numbers[group][(t + 1) % 64];
    barrier_sync(3 + group, 64);
  }
  out[threadIdx.x] = sum;
}

// All warps elect a lane, then the odd ones again.
__global__ void elect_kernel(int* out) {
  int elected = elect_one();
  if (threadIdx.x / 32 % 2 == 1) elected += 2 * elect_one();
  out[blockIdx.x * blockDim.x + threadIdx.x] = elected;
}

__global__ void __launch_bounds__(384, 1) registers_kernel(int* out) {
  if (threadIdx.x < tile::kWarpgroup) {
    setmaxnreg_dec<24>();
  } else {
    setmaxnreg_inc<240>();
  }
  int sum = 0;
  for (int i = 0; i <= static_cast<int>(threadIdx.x) % 50; ++i) sum += i;
  out[threadIdx.x] = sum;
}

}  // namespace

tile::Status pass_by_named_barriers(int items, int* out) {
  pass_kernel<<<1, 96>>>(items, out);
  return tile::launch_status("pass_kernel");
}

tile::Status meet_in_groups(int rounds0, int rounds1, int* out) {
  groups_kernel<<<1, 128>>>(rounds0, rounds1, out);
  return tile::launch_status("groups_kernel");
}

tile::Status elect_lanes(int blocks, int threads, int* out) {
  elect_kernel<<<blocks, threads>>>(out);
  return tile::launch_status("elect_kernel");
}

tile::Status move_registers(int* out) {
  registers_kernel<<<1, 384>>>(out);
  return tile::launch_status("registers_kernel");
}

}  // namespace ptx_test
