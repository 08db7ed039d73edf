#include "kernels.hpp"

namespace cpu_device_bench {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;

__global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

// 2 n / 32 barriers a thread, 16 for n = 256.
__global__ void tiled_matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float tile_a[kTile][kTile], tile_b[kTile][kTile];
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * kTile + y, column = blockIdx.x * kTile + x;
  float sum = 0;
  for (int k = 0; k < n; k += kTile) {
    tile_a[y][x] = a[row * n + k + x];
    tile_b[y][x] = b[(k + y) * n + column];
    __syncthreads();  // the tiles are complete
    for (int i = 0; i < kTile; ++i) sum += tile_a[y][i] * tile_b[i][x];
    __syncthreads();  // all have read them
  }
  c[row * n + column] = sum;
}

// Combines the values of all threads; every thread gets the result.
template <class Combine>
__device__ float reduce_block(float value, float* partial, Combine combine) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();  // all warps have written
  float total = partial[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) total = combine(total, partial[warp]);
  __syncthreads();  // all threads have read
  return total;
}

__global__ void softmax_rows(const float* x, float* y, int columns) {
  __shared__ float partial[kThreads / 32];
  const float* from = x + static_cast<size_t>(blockIdx.x) * columns;
  float* to = y + static_cast<size_t>(blockIdx.x) * columns;
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < columns; i += kThreads) largest = fmaxf(largest, from[i]);
  largest = reduce_block(largest, partial, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += kThreads) sum += expf(from[i] - largest);
  sum = reduce_block(sum, partial, [](float a, float b) { return a + b; });
  for (int i = threadIdx.x; i < columns; i += kThreads) to[i] = expf(from[i] - largest) / sum;
}

}  // namespace

void vector_add(const float* a, const float* b, float* c, int n) {
  add<<<(n + kThreads - 1) / kThreads, kThreads>>>(a, b, c, n);
}

void matmul(const float* a, const float* b, float* c, int n) {
  tiled_matmul<<<dim3(n / kTile, n / kTile), dim3(kTile, kTile)>>>(a, b, c, n);
}

void softmax(const float* x, float* y, int rows, int columns) {
  softmax_rows<<<rows, kThreads>>>(x, y, columns);
}

}  // namespace cpu_device_bench
