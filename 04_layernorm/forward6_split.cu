// Forward, step 6: a row split over the card.
// Idea: a row is cut into pieces of 16 KiB if no cluster holds it or if rows are too few to fill
//       the card. A block finds the moments of a piece. The block that comes last merges those of
//       the row's pieces, as step 2 merged those of its threads. Then blocks read the pieces again,
//       from the L2, to write y.
// Change: from step 5, the sums over a row are merged in global memory (split_rows.cuh), as
//         count, mean and squares: a mean before the squares would be a second wait. Rows may begin
//         anywhere (tile/row_edges.cuh), and gamma and beta are shifted with them.
// Limit: memory, while the L2 has what is read twice; and the wait for the slowest piece of a row.
#include "moments.cuh"
#include "split_rows.cuh"
#include "tile/host/launch.hpp"
#include "tile/host/tensor_argument.hpp"

namespace layernorm {
namespace {

// snippet-begin kernel
template <class T>
__global__ void __launch_bounds__(tile::kSplitThreads)
    layernorm_split(tile::Rows<const T> x,  // [rows][cols]
                    const T* gamma,         // [cols], or null: all ones
                    const T* beta,          // [cols], or null: all zeros
                    tile::Rows<T> y,        // [rows][cols]
                    float* mean,            // [rows], or null
                    float* rstd,            // [rows], or null
                    float* origins,         // [rows], x_0 of each: y may be x
                    std::int64_t cols,
                    float per_col,  // 1 / cols: a division takes ten instructions
                    float eps,
                    bool centred,                // RMSNorm is not: its mean is 0
                    SplitRows<Moments> split) {  // what the blocks tell each other
  using Slice = PieceSlice<T>;
  constexpr int kWidth = Slice::kWidth, kWarps = tile::kSplitThreads / tile::kWarp;
  __shared__ SplitItem item_smem;
  __shared__ float sum_smem[kWarps], squares_smem[kWarps];
  __shared__ Moments moments_smem[kWarps];
  __shared__ bool is_last_smem;
  const SplitItem item = split.take(&item_smem);
  if (!item.exists) return;
  T* y_row = y[item.row];
  const T* x_row = x[item.row];
  const Slice x_slice(x_row, first_column(item, y_row), cols, 0);
  float value[kWidth];  // a chunk of x, then of y

  if (!item.writes) {
    // Count, mean - x_0 and squares of the piece, whose last chunk may have columns past the row.
    const float origin = centred ? static_cast<float>(x_row[0]) : 0;
    if (item.piece == 0 && threadIdx.x == 0) origins[item.row] = origin;
    const std::int64_t left = cols - item.piece * Slice::kColumns;
    const auto count =
        static_cast<int>(max(min(left, std::int64_t{Slice::kColumns}), std::int64_t{0}));
    const int first = static_cast<int>(threadIdx.x) * kWidth;  // within the piece
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < tile::kSplitChunks; ++i) {
      x_slice.chunk[i].to_floats(value);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if (first + i * Slice::kApart + e < count) sum += value[e] - origin;
      }
    }
    float piece_mean = 0;
    if (centred && count > 0) {
      piece_mean = tile::reduce_block(sum, tile::Add{}, sum_smem) / static_cast<float>(count);
    }
#pragma unroll
    for (int i = 0; i < tile::kSplitChunks; ++i) {
      x_slice.chunk[i].to_floats(value);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const float distance = value[e] - origin - piece_mean;
        if (first + i * Slice::kApart + e < count) squares += distance * distance;
      }
    }
    squares = tile::reduce_block(squares, tile::Add{}, squares_smem);
    const Moments seen{static_cast<float>(count), piece_mean, squares};
    split.publish(item, seen, MergeMoments{}, moments_smem, &is_last_smem);
    return;
  }

  // y = gamma xhat + beta
  const Moments seen = split.wait(item);
  const float origin = origins[item.row], row_rstd = rsqrtf(seen.squares * per_col + eps);
#pragma unroll
  for (int i = 0; i < tile::kSplitChunks; ++i) {
    typename Slice::Chunk chunk[1] = {Slice::Chunk::filled(1)};
    float weight[kWidth], shift[kWidth];
    if (gamma) tile::load_anywhere<T, kWidth>(gamma, x_slice.column(i), 0, cols, 1, chunk);
    chunk[0].to_floats(weight);
    chunk[0] = Slice::Chunk::filled(0);
    if (beta) tile::load_anywhere<T, kWidth>(beta, x_slice.column(i), 0, cols, 0, chunk);
    chunk[0].to_floats(shift);
    x_slice.chunk[i].to_floats(value);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[e] = weight[e] * ((value[e] - origin - seen.mean) * row_rstd) + shift[e];
    }
    tile::store_anywhere(y_row, x_slice.column(i), cols, value);
  }
  if (threadIdx.x != 0 || item.piece != 0) return;
  if (mean) mean[item.row] = origin + seen.mean;
  if (rstd) rstd[item.row] = row_rstd;
}
// snippet-end kernel

}  // namespace

tile::Status takes_split(const ForwardProblem& p, const ForwardBuffers& b,
                         const tile::Device& device) {
  if (is_read_once(p, b) && !tile::is_short_of_rows(p, device)) {
    return tile::unsupported("cols", std::to_string(p.cols) + " are read once by a cluster");
  }
  return tile::check_workspace(split_bytes(p), b.workspace_bytes);
}

tile::Status split(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  const tile::SplitPlan plan = tile::split_plan(p.rows, p.cols, tile::size_bytes(p.type));
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", plan.items(), 1, &blocks));
  SplitRows<Moments> rows;
  TILE_TRY(prepare_split(plan, b.workspace, stream, &rows));
  auto* origins = reinterpret_cast<float*>(rows.of_piece + plan.rows * plan.pieces);
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(layernorm_split<T>, "layernorm_split", blocks, tile::kSplitThreads, 0,
                        stream, tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
                        static_cast<const T*>(b.gamma), static_cast<const T*>(b.beta),
                        tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, b.mean, b.rstd, origins, p.cols,
                        static_cast<float>(1 / static_cast<double>(p.cols)), p.eps,
                        p.norm == Norm::layer, rows);
  });
}

}  // namespace layernorm
