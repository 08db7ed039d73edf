// Forward, step 1: the mean, then the variance around it.
// Idea: the definition. A block shares a row: it adds up the row for the mean, then the squares of
//       the distances from it for the variance, then writes.
// Change: the reduction of softmax (chapter 03, forward step 3), with two other sums.
// Limit: memory. Every row is read three times.
#include "layernorm.hpp"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"
#include "tile/reduce.cuh"

namespace layernorm {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
template <class T>
__global__ void layernorm_two_pass(tile::Rows<const T> x,  // [rows][cols]
                                   const T* gamma,         // [cols], or null: all ones
                                   const T* beta,          // [cols], or null: all zeros
                                   tile::Rows<T> y,        // [rows][cols]
                                   float* mean,            // [rows], or null
                                   float* rstd,            // [rows], or null
                                   std::int64_t cols, float eps,
                                   bool centred) {  // RMSNorm is not: its mean is 0
  __shared__ float sum_smem[kThreads / tile::kWarp], squares_smem[kThreads / tile::kWarp];
  const std::int64_t row = blockIdx.x;
  const T* x_row = x[row];

  // mean = x_0 + sum (x - x_0) / n; row_mean is the second term
  const float origin = centred ? static_cast<float>(x_row[0]) : 0;
  float row_mean = 0;
  if (centred) {
    float sum = 0;
    for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
      sum += static_cast<float>(x_row[col]) - origin;
    }
    row_mean = tile::reduce_block(sum, tile::Add{}, sum_smem) / static_cast<float>(cols);
  }
  // rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
  float squares = 0;
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
    const float distance = static_cast<float>(x_row[col]) - origin - row_mean;
    squares += distance * distance;
  }
  squares = tile::reduce_block(squares, tile::Add{}, squares_smem);
  const float row_rstd = rsqrtf(squares / static_cast<float>(cols) + eps);
  // y = gamma xhat + beta
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
    const float xhat = (static_cast<float>(x_row[col]) - origin - row_mean) * row_rstd;
    const float weight = gamma ? static_cast<float>(gamma[col]) : 1;
    const float shift = beta ? static_cast<float>(beta[col]) : 0;
    y[row][col] = static_cast<T>(weight * xhat + shift);
  }
  if (threadIdx.x != 0) return;
  if (mean) mean[row] = origin + row_mean;
  if (rstd) rstd[row] = row_rstd;
}
// snippet-end kernel

}  // namespace

tile::Status two_pass(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", p.rows, 1, &blocks));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(layernorm_two_pass<T>, "layernorm_two_pass", blocks, kThreads, 0, stream,
                        tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
                        static_cast<const T*>(b.gamma), static_cast<const T*>(b.beta),
                        tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, b.mean, b.rstd, p.cols, p.eps,
                        p.norm == Norm::layer);
  });
}

}  // namespace layernorm
