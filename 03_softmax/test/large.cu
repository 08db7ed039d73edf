#include "large.hpp"

#include "harness/random.cuh"
#include "tile/basics.cuh"
#include "tile/host/cuda_check.hpp"
#include "tile/rows.cuh"

namespace softmax {
namespace {

constexpr int kBlocks = 1024, kThreads = 256;

__device__ float x_at(std::int64_t row, std::int64_t col) {
  return tile::random_bits(1, row, col) % 2 == 0 ? 0.f : -INFINITY;
}
__device__ float y_at(std::int64_t row, std::int64_t col) {
  return tile::random_bits(2, row, col) % 4 == 0 ? 1.f : 0.f;
}
__device__ float dy_at(std::int64_t row, std::int64_t col) {
  return static_cast<float>(tile::random_bits(3, row, col) % 3) - 1;
}

template <class T>
__global__ void fill(tile::Rows<T> first,  // [rows][cols]: x forward, y backward
                     tile::Rows<T> dy,     // [rows][cols], backward
                     std::int64_t rows, std::int64_t cols, bool forward) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i < rows * cols; i += std::int64_t{kBlocks} * kThreads) {
    const std::int64_t row = i / cols, col = i % cols;
    first[row][col] = static_cast<T>(forward ? x_at(row, col) : y_at(row, col));
    if (!forward) dy[row][col] = static_cast<T>(dy_at(row, col));
  }
}

// A block for each row, one after another. Forward it counts the zeros, backward it adds y dy.
template <class T>
__global__ void check(tile::Rows<const T> output,  // [rows][cols]: y forward, dx backward
                      std::int64_t rows, std::int64_t cols, bool forward,
                      unsigned long long* wrong) {
  __shared__ int sum_smem;
  for (std::int64_t row = blockIdx.x; row < rows; row += kBlocks) {
    if (threadIdx.x == 0) sum_smem = 0;
    __syncthreads();  // it is 0 before any thread adds to it
    int own = 0;
    for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
      own += forward ? x_at(row, col) == 0 : static_cast<int>(y_at(row, col) * dy_at(row, col));
    }
    atomicAdd(&sum_smem, own);
    __syncthreads();  // all have added
    const auto sum = static_cast<float>(sum_smem);
    __syncthreads();  // all have read it, so the next row may begin
    for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
      const float right =
          forward ? (x_at(row, col) == 0 ? 1 / sum : 0) : y_at(row, col) * (dy_at(row, col) - sum);
      if (!(static_cast<float>(output[row][col]) == static_cast<float>(static_cast<T>(right)))) {
        atomicAdd(wrong, 1ull);
      }
    }
  }
}

tile::Status count(tile::DType type, const void* output, std::int64_t rows, std::int64_t cols,
                   std::int64_t ld, bool forward, std::int64_t* wrong) {
  return tile::with_element_type(type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    unsigned long long* count = nullptr;
    unsigned long long result = 0;
    TILE_RETURN_IF_CUDA_ERROR(cudaMalloc(&count, sizeof *count));
    TILE_RETURN_IF_CUDA_ERROR(cudaMemset(count, 0, sizeof *count));
    check<T><<<kBlocks, kThreads>>>(tile::Rows<const T>{static_cast<const T*>(output), ld}, rows,
                                    cols, forward, count);
    TILE_TRY(tile::launch_status("check"));
    TILE_RETURN_IF_CUDA_ERROR(cudaMemcpy(&result, count, sizeof result, cudaMemcpyDeviceToHost));
    TILE_RETURN_IF_CUDA_ERROR(cudaFree(count));
    *wrong = static_cast<std::int64_t>(result);
    return {};
  });
}

}  // namespace

tile::Status fill_exact(const ForwardProblem& p, void* x) {
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    fill<T><<<kBlocks, kThreads>>>(tile::Rows<T>{static_cast<T*>(x), p.ldx}, tile::Rows<T>{},
                                   p.rows, p.cols, true);
    return tile::launch_status("fill");
  });
}

tile::Status fill_exact(const BackwardProblem& p, void* y, void* dy) {
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    fill<T><<<kBlocks, kThreads>>>(tile::Rows<T>{static_cast<T*>(y), p.ldy},
                                   tile::Rows<T>{static_cast<T*>(dy), p.lddy}, p.rows, p.cols,
                                   false);
    return tile::launch_status("fill");
  });
}

tile::Status count_wrong(const ForwardProblem& p, const void* y, std::int64_t* wrong) {
  return count(p.type, y, p.rows, p.cols, p.ldy, true, wrong);
}

tile::Status count_wrong(const BackwardProblem& p, const void* dx, std::int64_t* wrong) {
  return count(p.type, dx, p.rows, p.cols, p.lddx, false, wrong);
}

}  // namespace softmax
