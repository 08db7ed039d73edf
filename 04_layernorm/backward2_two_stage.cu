// Backward, step 2: two stages, without atomics.
// Idea: a block adds up the dgamma and dbeta of some columns over a group of rows, and writes one
//       partial sum a column. A second kernel adds up the groups (partial_sums.cu). No two blocks
//       write the same element, and the order is always the same, so the bits are.
// Change: dx has a kernel of its own, which is step 1's without atomics.
// Limit: memory. x and dy are read three times in all: seven tensors move where three suffice.
#include "row_sums.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"

namespace layernorm {
namespace {

constexpr int kThreads = 256;
constexpr int kBlockCols = 64;                      // columns of a block of the column sums
constexpr int kRowsAtOnce = kThreads / kBlockCols;  // that it reads
constexpr std::int64_t kMaxGroups = 64;             // of rows

template <class T>
__global__ void layernorm_backward_two_stage_dx(tile::Rows<const T> x,   // [rows][cols]
                                                tile::Rows<const T> dy,  // [rows][cols]
                                                const T* gamma,     // [cols], or null: all ones
                                                const float* mean,  // [rows], or null: zeros
                                                const float* rstd,  // [rows]
                                                tile::Rows<T> dx,   // [rows][cols]
                                                std::int64_t cols,
                                                float per_col) {  // 1 / cols
  __shared__ RowSums sums_smem[kThreads / tile::kWarp];
  const std::int64_t row = blockIdx.x;
  const T *x_row = x[row], *dy_row = dy[row];
  const float row_mean = mean ? mean[row] : 0, row_rstd = rstd[row];
  // sum w and sum w xhat, with w = gamma dy
  RowSums sums{0, 0};
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
    const float w = (gamma ? static_cast<float>(gamma[col]) : 1) * static_cast<float>(dy_row[col]);
    sums.w += w;
    sums.w_xhat += w * ((static_cast<float>(x_row[col]) - row_mean) * row_rstd);
  }
  sums = tile::reduce_block(sums, AddRowSums{}, sums_smem);
  // dx = rstd (w - mean of w - xhat mean of w xhat)
  const float of_row = mean ? -row_rstd * (sums.w * per_col) : 0;
  const float of_xhat = -row_rstd * (sums.w_xhat * per_col);
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
    const float w = (gamma ? static_cast<float>(gamma[col]) : 1) * static_cast<float>(dy_row[col]);
    const float xhat = (static_cast<float>(x_row[col]) - row_mean) * row_rstd;
    dx[row][col] = static_cast<T>(row_rstd * w + (of_xhat * xhat + of_row));
  }
}

// snippet-begin kernel
template <class T>
__global__ void layernorm_backward_two_stage(tile::Rows<const T> x,   // [rows][cols]
                                             tile::Rows<const T> dy,  // [rows][cols]
                                             const float* mean,       // [rows], or null: zeros
                                             const float* rstd,       // [rows]
                                             float* dgamma_sums,      // [groups][cols]
                                             float* dbeta_sums,       // [groups][cols]
                                             std::int64_t rows, std::int64_t cols,
                                             std::int64_t groups) {
  __shared__ float dgamma_smem[kRowsAtOnce][kBlockCols], dbeta_smem[kRowsAtOnce][kBlockCols];
  const std::int64_t blocks_of_group = (cols + kBlockCols - 1) / kBlockCols;
  const std::int64_t group = blockIdx.x / blocks_of_group;
  const std::int64_t col = blockIdx.x % blocks_of_group * kBlockCols + threadIdx.x;
  const auto first = static_cast<int>(threadIdx.y);
  // dgamma = sum dy xhat and dbeta = sum dy over the rows of the group. They lie apart, so that
  // groups differ by one row at most.
  float dgamma = 0, dbeta = 0;
  if (col < cols) {
    for (std::int64_t row = group * kRowsAtOnce + first; row < rows; row += groups * kRowsAtOnce) {
      const float dy_row = static_cast<float>(dy[row][col]);
      const float distance = static_cast<float>(x[row][col]) - (mean ? mean[row] : 0);
      dgamma += dy_row * (distance * rstd[row]);
      dbeta += dy_row;
    }
  }
  dgamma_smem[first][threadIdx.x] = dgamma;
  dbeta_smem[first][threadIdx.x] = dbeta;
  __syncthreads();  // the sums of all threads are there
  if (first != 0 || col >= cols) return;
  for (int i = 1; i < kRowsAtOnce; ++i) {
    dgamma += dgamma_smem[i][threadIdx.x];
    dbeta += dbeta_smem[i][threadIdx.x];
  }
  dgamma_sums[group * cols + col] = dgamma;
  dbeta_sums[group * cols + col] = dbeta;
}
// snippet-end kernel

}  // namespace

tile::Status two_stage(const BackwardProblem& p, const BackwardBuffers& b, void* stream) {
  if (p.rows == 0) return sum_partial_sums(p, b, 0, stream);
  auto* sums = static_cast<float*>(b.workspace);
  const std::int64_t groups =
      std::min({kMaxGroups, max_partial_sums(p.cols), (p.rows + kRowsAtOnce - 1) / kRowsAtOnce});
  const std::int64_t blocks = groups * ((p.cols + kBlockCols - 1) / kBlockCols);
  unsigned dx_blocks = 0, sum_blocks = 0;
  TILE_TRY(tile::blocks_for("rows", p.rows, 1, &dx_blocks));
  TILE_TRY(tile::blocks_for("cols", blocks, 1, &sum_blocks));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    const tile::Rows<const T> x{static_cast<const T*>(b.x), p.ldx};
    const tile::Rows<const T> dy{static_cast<const T*>(b.dy), p.lddy};
    // First the sums: dx may be x or dy.
    if (b.dgamma || b.dbeta) {
      TILE_TRY(tile::launch(layernorm_backward_two_stage<T>, "layernorm_backward_two_stage",
                            sum_blocks, dim3(kBlockCols, kRowsAtOnce), 0, stream, x, dy, b.mean,
                            b.rstd, sums, sums + groups * p.cols, p.rows, p.cols, groups));
      TILE_TRY(sum_partial_sums(p, b, groups, stream));
    }
    return tile::launch(layernorm_backward_two_stage_dx<T>, "layernorm_backward_two_stage_dx",
                        dx_blocks, kThreads, 0, stream, x, dy, static_cast<const T*>(b.gamma),
                        b.mean, b.rstd, tile::Rows<T>{static_cast<T*>(b.dx), p.lddx}, p.cols,
                        static_cast<float>(1 / static_cast<double>(p.cols)));
  });
}

}  // namespace layernorm
