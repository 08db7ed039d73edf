#include "large.hpp"

#include "tile/host/cuda_check.hpp"

namespace vector_add {
namespace {

constexpr int kBlocks = 1024, kThreads = 256;

__device__ float a_at(std::int64_t i) { return static_cast<float>(i % 4096); }
__device__ float b_at(std::int64_t i) { return static_cast<float>(i % 977); }

__global__ void fill(float* a, float* b, float* c, std::int64_t n) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    a[i] = a_at(i);
    b[i] = b_at(i);
    if (c != a) c[i] = __int_as_float(0x7fc00000);  // NaN
  }
}

__global__ void check(const float* c, std::int64_t n, unsigned long long* wrong) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    if (!(c[i] == a_at(i) + b_at(i))) atomicAdd(wrong, 1ull);
  }
}

}  // namespace

tile::Status fill_large(float* a, float* b, float* c, std::int64_t n) {
  fill<<<kBlocks, kThreads>>>(a, b, c, n);
  return tile::launch_status("fill");
}

tile::Status count_wrong(const float* c, std::int64_t n, std::int64_t* wrong) {
  unsigned long long* count = nullptr;
  unsigned long long result = 0;
  TILE_RETURN_IF_CUDA_ERROR(cudaMalloc(&count, sizeof *count));
  TILE_RETURN_IF_CUDA_ERROR(cudaMemset(count, 0, sizeof *count));
  check<<<kBlocks, kThreads>>>(c, n, count);
  TILE_TRY(tile::launch_status("check"));
  TILE_RETURN_IF_CUDA_ERROR(cudaMemcpy(&result, count, sizeof result, cudaMemcpyDeviceToHost));
  TILE_RETURN_IF_CUDA_ERROR(cudaFree(count));
  *wrong = static_cast<std::int64_t>(result);
  return {};
}

}  // namespace vector_add
