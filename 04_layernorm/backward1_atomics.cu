// Backward, step 1: every row adds to dgamma and dbeta.
// Idea: dx depends on its own row only, as in the forward pass: two sums over the row, then its
//       elements. dgamma and dbeta are sums over all rows, and no block has all rows. Each row adds
//       its terms to them with atomics, in fp32 in the workspace.
// Change: compared with the forward pass there are two inputs, and sums over all blocks.
// Limit: the atomics. All rows add to the same `cols` addresses; and the order in which they come,
//        and so the rounding of dgamma and dbeta, differs from run to run.
#include "row_sums.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"

namespace layernorm {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
template <class T>
__global__ void layernorm_backward_atomics(tile::Rows<const T> x,   // [rows][cols]
                                           tile::Rows<const T> dy,  // [rows][cols]
                                           const T* gamma,          // [cols], or null: all ones
                                           const float* mean,       // [rows], or null: zeros
                                           const float* rstd,       // [rows]
                                           tile::Rows<T> dx,        // [rows][cols]
                                           float* dgamma_sum,       // [cols], zero at first
                                           float* dbeta_sum,        // [cols], zero at first
                                           std::int64_t cols,
                                           float per_col) {  // 1 / cols
  __shared__ RowSums sums_smem[kThreads / tile::kWarp];
  const std::int64_t row = blockIdx.x;
  const T *x_row = x[row], *dy_row = dy[row];
  const float row_mean = mean ? mean[row] : 0, row_rstd = rstd[row];

  // sum w and sum w xhat, with w = gamma dy
  RowSums sums{0, 0};
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
    const float weight = gamma ? static_cast<float>(gamma[col]) : 1;
    const float w = weight * static_cast<float>(dy_row[col]);
    sums.w += w;
    sums.w_xhat += w * ((static_cast<float>(x_row[col]) - row_mean) * row_rstd);
  }
  sums = tile::reduce_block(sums, AddRowSums{}, sums_smem);
  // dgamma += dy xhat, dbeta += dy, and dx = rstd (w - mean of w - xhat mean of w xhat)
  const float of_row = mean ? -row_rstd * (sums.w * per_col) : 0;
  const float of_xhat = -row_rstd * (sums.w_xhat * per_col);
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
    const float weight = gamma ? static_cast<float>(gamma[col]) : 1;
    const float dy_col = static_cast<float>(dy_row[col]);
    const float xhat = (static_cast<float>(x_row[col]) - row_mean) * row_rstd;
    atomicAdd(&dgamma_sum[col], dy_col * xhat);
    atomicAdd(&dbeta_sum[col], dy_col);
    dx[row][col] = static_cast<T>(row_rstd * (weight * dy_col) + (of_xhat * xhat + of_row));
  }
}
// snippet-end kernel

}  // namespace

tile::Status atomics(const BackwardProblem& p, const BackwardBuffers& b, void* stream) {
  if (p.rows == 0) return sum_partial_sums(p, b, 0, stream);
  auto* dgamma_sum = static_cast<float*>(b.workspace);
  const std::size_t bytes = 2 * static_cast<std::size_t>(p.cols) * sizeof(float);
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", p.rows, 1, &blocks));
  TILE_RETURN_IF_CUDA_ERROR(
      cudaMemsetAsync(dgamma_sum, 0, bytes, static_cast<cudaStream_t>(stream)));
  const auto launch = [&](auto element) {
    using T = decltype(element);
    return tile::launch(
        layernorm_backward_atomics<T>, "layernorm_backward_atomics", blocks, kThreads, 0, stream,
        tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
        tile::Rows<const T>{static_cast<const T*>(b.dy), p.lddy}, static_cast<const T*>(b.gamma),
        b.mean, b.rstd, tile::Rows<T>{static_cast<T*>(b.dx), p.lddx}, dgamma_sum,
        dgamma_sum + p.cols, p.cols, static_cast<float>(1 / static_cast<double>(p.cols)));
  };
  TILE_TRY(tile::with_element_type(p.type, launch));
  return sum_partial_sums(p, b, 1, stream);
}

}  // namespace layernorm
