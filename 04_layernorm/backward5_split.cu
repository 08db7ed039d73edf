// Backward, step 5: rows split over the card.
// Idea: a row that no cluster holds is read twice: for its sums, and then for dx. In the first
//       kernel each block has some columns of many rows, so that the sums of dgamma and dbeta stay
//       in registers, as in steps 3 and 4. In the last one each block has a piece of a row. It
//       begins with the rows that were read last: the L2 has some of them.
// Change: no block waits for another, and the sums over a row go through global memory, in a kernel
//         between the two. Rows may begin anywhere (tile/row_edges.cuh): columns of many rows are
//         loaded shifted, and dx is stored aligned.
// Limit: memory: five tensors move where three suffice.
#include "row_sums.cuh"
#include "tile/host/launch.hpp"
#include "tile/host/split_plan.hpp"
#include "tile/row_edges.cuh"

namespace layernorm {
namespace {

constexpr int kThreads = tile::kSplitThreads, kWarps = kThreads / tile::kWarp;
constexpr int kRowsAtOnce = 16;  // between two barriers, so that warps do not wait for each other

/// Columns of a block of the first kernel: a chunk for each thread.
template <class T>
constexpr int kBlockCols = kThreads * 16 / static_cast<int>(sizeof(T));

template <class T>
__global__ void __launch_bounds__(kThreads)
    layernorm_backward_split_sums(tile::Rows<const T> x,   // [rows][cols]
                                  tile::Rows<const T> dy,  // [rows][cols]
                                  const T* gamma,          // [cols], or null: all ones
                                  const float* mean,       // [rows], or null: zeros
                                  const float* rstd,       // [rows]
                                  RowSums* of_piece,       // [rows][pieces]
                                  float* dgamma_sums,      // [groups][cols]; null if 1 group
                                  float* dbeta_sums,       // [groups][cols]; null if 1 group
                                  T* dgamma,               // [cols], or null
                                  T* dbeta,                // [cols], or null
                                  std::int64_t rows, std::int64_t cols, int pieces, int groups) {
  constexpr int kWidth = 16 / sizeof(T);
  using Chunk = tile::Chunk<T, kWidth>;
  __shared__ RowSums sums_smem[kRowsAtOnce][kWarps];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / tile::kWarp;
  const int piece = static_cast<int>(blockIdx.x) % pieces;
  const int group = static_cast<int>(blockIdx.x) / pieces;
  const std::int64_t col = std::int64_t{piece} * kBlockCols<T> + thread * kWidth;
  Chunk chunk[1] = {Chunk::filled(1)};
  float weight[kWidth], of_dgamma[kWidth] = {}, of_dbeta[kWidth] = {};
  if (gamma) tile::load_anywhere<T, kWidth>(gamma, col, 0, cols, 0, chunk);
  chunk[0].to_floats(weight);

  // snippet-begin sums
  const std::int64_t stride = std::int64_t{groups} * kRowsAtOnce;
  for (std::int64_t first = std::int64_t{group} * kRowsAtOnce; first < rows; first += stride) {
    const auto count = static_cast<int>(min(rows - first, std::int64_t{kRowsAtOnce}));
    for (int i = 0; i < count; ++i) {
      // dgamma += dy xhat, dbeta += dy, and this lane's sums of w = gamma dy and of w xhat
      float x_value[kWidth], dy_value[kWidth];
      tile::load_anywhere<T, kWidth>(x[first + i], col, 0, cols, 0, chunk);
      chunk[0].to_floats(x_value);
      tile::load_anywhere<T, kWidth>(dy[first + i], col, 0, cols, 0, chunk);
      chunk[0].to_floats(dy_value);
      const float row_mean = mean ? mean[first + i] : 0, row_rstd = rstd[first + i];
      RowSums sums{0, 0};
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if (col + e >= cols) continue;  // 0 times an infinite rstd would be NaN
        const float xhat = (x_value[e] - row_mean) * row_rstd, w = weight[e] * dy_value[e];
        sums.w += w;
        sums.w_xhat += w * xhat;
        of_dgamma[e] += dy_value[e] * xhat;
        of_dbeta[e] += dy_value[e];
      }
      sums = reduce_lanes(sums, AddRowSums{});
      if (thread % tile::kWarp == 0) sums_smem[i][warp] = sums;
    }
    __syncthreads();  // the sums of all warps are there
    if (thread < count) {
      RowSums sums{0, 0};
      for (int i = 0; i < kWarps; ++i) sums = AddRowSums{}(sums, sums_smem[thread][i]);
      of_piece[(first + thread) * pieces + piece] = sums;
    }
    __syncthreads();  // they have been read
  }
  // snippet-end sums

  if (!dgamma_sums) {  // one group has all rows
    if (dgamma) tile::store_anywhere(dgamma, col, cols, of_dgamma);
    if (dbeta) tile::store_anywhere(dbeta, col, cols, of_dbeta);
    return;
  }
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    if (col + e >= cols) continue;
    dgamma_sums[group * cols + col + e] = of_dgamma[e];
    dbeta_sums[group * cols + col + e] = of_dbeta[e];
  }
}

/// The sums over each row, a block for each, always in the same order.
__global__ void layernorm_backward_split_rows(const RowSums* of_piece,  // [rows][pieces]
                                              RowSums* of_row,          // [rows]
                                              int pieces) {
  __shared__ RowSums sums_smem[kWarps];
  const std::int64_t row = blockIdx.x;
  RowSums sums{0, 0};
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) {
    sums = AddRowSums{}(sums, of_piece[row * pieces + i]);
  }
  sums = tile::reduce_block(sums, AddRowSums{}, sums_smem);
  if (threadIdx.x == 0) of_row[row] = sums;
}

// snippet-begin dx
template <class T>
__global__ void __launch_bounds__(kThreads)
    layernorm_backward_split(tile::Rows<const T> x,   // [rows][cols]
                             tile::Rows<const T> dy,  // [rows][cols]
                             const T* gamma,          // [cols], or null: all ones
                             const float* mean,       // [rows], or null: zeros
                             const float* rstd,       // [rows]
                             const RowSums* of_row,   // [rows]
                             tile::Rows<T> dx,        // [rows][cols]
                             std::int64_t rows, std::int64_t cols, std::int64_t pieces,
                             float per_col) {  // 1 / cols
  constexpr int kWidth = 16 / sizeof(T), kApart = kThreads * kWidth;
  using Chunk = tile::Chunk<T, kWidth>;
  // The first blocks have the rows that the first kernel read last.
  const std::int64_t row = rows - 1 - blockIdx.x / pieces, piece = blockIdx.x % pieces;
  T* dx_row = dx[row];
  // A thread's first column, below 0 if the row begins within a chunk; kApart to each of the next.
  const std::int64_t first =
      (piece * (kThreads * tile::kSplitChunks) + threadIdx.x) * kWidth - tile::misalignment(dx_row);
  Chunk x_chunk[tile::kSplitChunks], dy_chunk[tile::kSplitChunks];
  tile::load_anywhere<T, kWidth>(x[row], first, kApart, cols, 0, x_chunk);
  tile::load_anywhere<T, kWidth>(dy[row], first, kApart, cols, 0, dy_chunk);
  const float row_mean = mean ? mean[row] : 0, row_rstd = rstd[row];
  const RowSums sums = of_row[row];
  // dx = rstd (w - mean of w - xhat mean of w xhat)
  const float of_w = mean ? -row_rstd * (sums.w * per_col) : 0;
  const float of_xhat = -row_rstd * (sums.w_xhat * per_col);
#pragma unroll
  for (int i = 0; i < tile::kSplitChunks; ++i) {
    const std::int64_t col = first + i * kApart;
    Chunk chunk[1] = {Chunk::filled(1)};
    float weight[kWidth], x_value[kWidth], dy_value[kWidth];
    if (gamma) tile::load_anywhere<T, kWidth>(gamma, col, 0, cols, 1, chunk);
    chunk[0].to_floats(weight);
    x_chunk[i].to_floats(x_value);
    dy_chunk[i].to_floats(dy_value);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const float xhat = (x_value[e] - row_mean) * row_rstd;
      x_value[e] = row_rstd * (weight[e] * dy_value[e]) + (of_xhat * xhat + of_w);
    }
    tile::store_anywhere(dx_row, col, cols, x_value);
  }
}
// snippet-end dx

}  // namespace

tile::Status takes_split(const BackwardProblem& p, const BackwardBuffers& b,
                         const tile::Device& device) {
  if (is_read_once(p, b) && !tile::is_short_of_rows(p, device)) {
    return tile::unsupported("cols", std::to_string(p.cols) + " are read once by a cluster");
  }
  if (has_pieces(p)) return {};
  return tile::unsupported("cols", std::to_string(p.cols) + " leave most threads without a column");
}

tile::Status split(const BackwardProblem& p, const BackwardBuffers& b, void* stream) {
  if (p.rows == 0) return sum_partial_sums(p, b, 0, stream);
  const auto launch_of_type = [&](auto element, std::int64_t* groups) -> tile::Status {
    using T = decltype(element);
    const tile::Rows<const T> x{static_cast<const T*>(b.x), p.ldx};
    const tile::Rows<const T> dy{static_cast<const T*>(b.dy), p.lddy};
    const auto* gamma = static_cast<const T*>(b.gamma);
    // As many groups of rows as give each multiprocessor four blocks.
    const std::int64_t pieces = (p.cols + kBlockCols<T> - 1) / kBlockCols<T>;
    const std::int64_t wanted = (4 * tile::device().multiprocessors + pieces - 1) / pieces;
    *groups =
        std::min({wanted, max_partial_sums(p.cols), (p.rows + kRowsAtOnce - 1) / kRowsAtOnce});
    auto* sums = *groups > 1 ? static_cast<float*>(b.workspace) : nullptr;
    auto* of_row =
        reinterpret_cast<RowSums*>(static_cast<char*>(b.workspace) + column_sums_bytes(p));
    RowSums* of_piece = of_row + p.rows;
    unsigned blocks = 0, row_blocks = 0, dx_blocks = 0;
    const tile::SplitPlan plan = tile::split_plan(p.rows, p.cols, sizeof(T));
    TILE_TRY(tile::blocks_for("cols", pieces * *groups, 1, &blocks));
    TILE_TRY(tile::blocks_for("rows", p.rows, 1, &row_blocks));
    TILE_TRY(tile::blocks_for("rows", p.rows * plan.pieces, 1, &dx_blocks));
    TILE_TRY(tile::launch(layernorm_backward_split_sums<T>, "layernorm_backward_split_sums", blocks,
                          kThreads, 0, stream, x, dy, gamma, b.mean, b.rstd, of_piece, sums,
                          sums ? sums + *groups * p.cols : nullptr, static_cast<T*>(b.dgamma),
                          static_cast<T*>(b.dbeta), p.rows, p.cols, pieces, *groups));
    TILE_TRY(tile::launch(layernorm_backward_split_rows, "layernorm_backward_split_rows",
                          row_blocks, kThreads, 0, stream, of_piece, of_row, pieces));
    return tile::launch(layernorm_backward_split<T>, "layernorm_backward_split", dx_blocks,
                        kThreads, 0, stream, x, dy, gamma, b.mean, b.rstd, of_row,
                        tile::Rows<T>{static_cast<T*>(b.dx), p.lddx}, p.rows, p.cols, plan.pieces,
                        static_cast<float>(1 / static_cast<double>(p.cols)));
  };
  std::int64_t groups = 0;
  TILE_TRY(tile::with_element_type(p.type,
                                   [&](auto element) { return launch_of_type(element, &groups); }));
  return groups > 1 ? sum_partial_sums(p, b, groups, stream) : tile::Status{};
}

}  // namespace layernorm
