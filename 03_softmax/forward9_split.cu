// Forward, step 9: a row split over the card.
// Idea: a row that no cluster holds, or one of few that are to fill the card, has pieces of 16 KiB,
//       and any block may work on any of them. A block cannot keep its piece until all others have
//       read theirs, since they may not have begun. It reads the piece again: from the L2, if not
//       much was read in between.
// Change: maximum and sum of a row are merged in global memory, by the block that comes last
//         (tile/split_rows.cuh). Rows may begin anywhere: what is stored is aligned, and what is
//         loaded is shifted (tile/unaligned.cuh).
// Limit: memory, while the L2 has what is read twice; and the wait for the slowest piece of a row.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/host/tensor_argument.hpp"
#include "tile/split_rows.cuh"

namespace softmax {
namespace {

// snippet-begin kernel
template <class T>
__global__ void __launch_bounds__(tile::kSplitThreads)
    softmax_split(tile::Rows<const T> x,            // [rows][cols]
                  tile::Rows<T> y,                  // [rows][cols]
                  Params params,                    // sizes, scale, options
                  tile::SplitRows<MaxSum> split) {  // what the blocks tell each other
  using Slice = tile::PieceSlice<T>;
  constexpr int kWidth = Slice::kWidth;
  __shared__ tile::SplitItem item_smem;
  __shared__ MaxSum seen_smem[2][tile::kSplitThreads / tile::kWarp];
  __shared__ bool is_last_smem;
  const tile::SplitItem item = split.take(&item_smem);
  if (!item.exists) return;
  T* y_row = y[item.row];
  const std::int64_t visible = params.visible(item.row);
  const Slice x_slice(x[item.row], tile::first_column(item, y_row), visible, -INFINITY);
  float value[kWidth];  // a chunk of x, then of y

  if (!item.writes) {
    // Maximum and sum of this thread's own elements, of the block's, and of the row's.
    MaxSum own{-INFINITY, 0};
#pragma unroll
    for (const auto& chunk : x_slice.chunk) own.max = fmaxf(own.max, chunk.max());
    const float reference = finite_reference(own.max);
#pragma unroll
    for (const auto& chunk : x_slice.chunk) {
      chunk.to_floats(value);
#pragma unroll
      for (const float each : value) {
        own.sum += tile::ptx::exp2_approx(params.factor * (each - reference));
      }
    }
    const MergeMaxSum merge{params.factor};
    const MaxSum seen = tile::reduce_block(own, merge, seen_smem[0]);
    split.publish(item, seen, merge, seen_smem[1], &is_last_smem);
    return;
  }

  // y = exp(z - max) / sum
  const Normalize<> normalize(params, split.wait(item));
#pragma unroll
  for (int i = 0; i < tile::kSplitChunks; ++i) {
    x_slice.chunk[i].to_floats(value);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[e] = x_slice.column(i) + e < visible ? normalize(value[e]) : params.hidden();
    }
    tile::store_anywhere(y_row, x_slice.column(i), params.cols, value);
  }
}
// snippet-end kernel

}  // namespace

tile::Status takes_split(const ForwardProblem& problem, const ForwardBuffers& buffers,
                         const tile::Device& device) {
  if (is_read_once(problem, buffers) && !tile::is_short_of_rows(problem, device)) {
    return tile::unsupported("cols", std::to_string(problem.cols) + " are read once by a cluster");
  }
  return tile::check_workspace(split_bytes(problem), buffers.workspace_bytes);
}

tile::Status split(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  const tile::SplitPlan plan =
      tile::split_plan(problem.rows, problem.cols, tile::size_bytes(problem.type));
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", plan.items(), 1, &blocks));
  tile::SplitRows<MaxSum> rows;
  TILE_TRY(tile::prepare_split(plan, buffers.workspace, stream, &rows));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(softmax_split<T>, "softmax_split", blocks, tile::kSplitThreads, 0, stream,
                        tile::Rows<const T>{static_cast<const T*>(buffers.x), problem.ldx},
                        tile::Rows<T>{static_cast<T*>(buffers.y), problem.ldy}, params_of(problem),
                        rows);
  });
}

}  // namespace softmax
