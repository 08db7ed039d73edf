#include "order_kernels.hpp"

#include <cuda_runtime.h>

namespace device_test {
namespace {

// Barrier number kNumber, of a kernel without barrier number kWithout.
template <int kNumber, int kWithout>
__device__ void barrier() {
  if constexpr (kNumber != kWithout) __syncthreads();
}

template <int kWithout>
__global__ void tiled_matmul(const float* in, float* out) {
  __shared__ float a[kTile][kTile], b[kTile][kTile];
  const unsigned x = threadIdx.x, y = threadIdx.y;
  const unsigned row = blockIdx.y * kTile + y, col = blockIdx.x * kTile + x;
  float sum = 0;
  for (unsigned k = 0; k < kMatrix; k += kTile) {
    a[y][x] = in[row * kMatrix + k + x];
    b[y][x] = in[(kMatrix + k + y) * kMatrix + col];
    barrier<1, kWithout>();  // the tiles are complete
    for (unsigned i = 0; i < kTile; ++i) sum += a[y][i] * b[i][x];
    barrier<2, kWithout>();  // all have read them
  }
  out[row * kMatrix + col] = sum;
}

template <int kWithout>
__global__ void reverse(const float* in, float* out) {
  __shared__ float row[kRow];
  const unsigned first = blockIdx.x * kRow, t = threadIdx.x;
  row[t] = in[first + t];
  barrier<1, kWithout>();
  out[first + t] = row[kRow - 1 - t];
}

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Max {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

// The total over the block, for all its threads. Barrier kComplete stands between the warps' writes
// to shared memory and the reads.
template <int kComplete, int kWithout, class Combine>
__device__ float block_reduce(float value, Combine combine, float* of_warps) {
  for (int step = 16; step > 0; step /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  barrier<kComplete, kWithout>();
  float total = of_warps[0];
  for (unsigned w = 1; w < kRow / 32; ++w) total = combine(total, of_warps[w]);
  return total;
}

template <int kWithout>
__global__ void block_reduction(const float* in, float* out) {
  __shared__ float of_warps[kRow / 32];
  __shared__ float total;
  const unsigned i = blockIdx.x * kRow + threadIdx.x, warp = threadIdx.x / 32;
  float value = in[i];
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) of_warps[warp] = value;
  barrier<1, kWithout>();
  if (warp == 0) {
    value = threadIdx.x < kRow / 32 ? of_warps[threadIdx.x] : 0;
    for (int step = 4; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
    if (threadIdx.x == 0) total = value;
  }
  barrier<2, kWithout>();
  out[i] = total;
}

template <int kWithout>
__global__ void scan(const float* in, float* out) {
  __shared__ float sums[kRow];
  const unsigned first = blockIdx.x * kRow, t = threadIdx.x;
  sums[t] = in[first + t];
  for (unsigned step = 1; step < kRow; step *= 2) {
    barrier<1, kWithout>();
    const float more = t >= step ? sums[t - step] : 0;
    barrier<2, kWithout>();
    sums[t] += more;
  }
  out[first + t] = sums[t];
}

template <int kWithout>
__global__ void softmax(const float* in, float* out) {
  __shared__ float of_warps[kRow / 32];
  const unsigned i = blockIdx.x * kRow + threadIdx.x;
  const float max = block_reduce<1, kWithout>(in[i], Max(), of_warps);
  const float power = exp2f(in[i] - max);
  barrier<2, kWithout>();  // all have read the maxima
  out[i] = power / block_reduce<3, kWithout>(power, Sum(), of_warps);
}

__device__ unsigned places[2];

__global__ void record_order_kernel(int* starts, int* resumed) {
  const int me = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  starts[atomicAdd(&places[0], 1u)] = me;
  __syncthreads();
  resumed[atomicAdd(&places[1], 1u)] = me;
}

// Calls launch.operator()<without>().
template <int kBarriers, class Launch>
void dispatch(int without, Launch launch) {
  if (without == 0) launch.template operator()<0>();
  if (without == 1) launch.template operator()<1>();
  if constexpr (kBarriers >= 2) {
    if (without == 2) launch.template operator()<2>();
  }
  if constexpr (kBarriers >= 3) {
    if (without == 3) launch.template operator()<3>();
  }
}

void launch_tiled_matmul(const float* in, float* out, int without) {
  const dim3 grid(kMatrix / kTile, kMatrix / kTile), block(kTile, kTile);
  dispatch<2>(without, [&]<int kWithout>() { tiled_matmul<kWithout><<<grid, block>>>(in, out); });
}
void launch_reverse(const float* in, float* out, int without) {
  dispatch<1>(without, [&]<int kWithout>() { reverse<kWithout><<<kBlocks, kRow>>>(in, out); });
}
void launch_reduction(const float* in, float* out, int without) {
  dispatch<2>(without,
              [&]<int kWithout>() { block_reduction<kWithout><<<kBlocks, kRow>>>(in, out); });
}
void launch_scan(const float* in, float* out, int without) {
  dispatch<2>(without, [&]<int kWithout>() { scan<kWithout><<<kBlocks, kRow>>>(in, out); });
}
void launch_softmax(const float* in, float* out, int without) {
  dispatch<3>(without, [&]<int kWithout>() { softmax<kWithout><<<kBlocks, kRow>>>(in, out); });
}

}  // namespace

const Subject kTiledMatmul{"tiled matmul", 2, launch_tiled_matmul, 2 * kMatrix* kMatrix};
const Subject kReverse{"reverse", 1, launch_reverse, kBlocks* kRow};
const Subject kBlockReduction{"block reduction", 2, launch_reduction, kBlocks* kRow};
const Subject kScan{"scan", 2, launch_scan, kBlocks* kRow};
const Subject kSoftmax{"softmax", 3, launch_softmax, kBlocks* kRow};

void record_order(int* starts, int* resumed, unsigned blocks, unsigned threads) {
  const unsigned zero[2] = {};
  cudaMemcpyToSymbol(places, zero, sizeof zero);
  record_order_kernel<<<blocks, threads>>>(starts, resumed);
}

}  // namespace device_test
