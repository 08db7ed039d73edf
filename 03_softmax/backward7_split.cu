// Backward, step 7: rows split over the card.
// Idea: rows that no cluster holds, or few that are to fill the card, have pieces of 16 KiB, and
// any
//       block may work on any of them. A block cannot keep its pieces until all others have read
//       theirs, since they may not have begun. It reads them again: from the L2, if not much was
//       read in between.
// Change: the sum of a row is merged in global memory, by the block that comes last
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
    softmax_backward_split(tile::Rows<const T> y,           // [rows][cols]
                           tile::Rows<const T> dy,          // [rows][cols]
                           tile::Rows<T> dx,                // [rows][cols]
                           Params params,                   // sizes, scale, options
                           tile::SplitRows<float> split) {  // what the blocks tell each other
  using Slice = tile::PieceSlice<T>;
  constexpr int kWidth = Slice::kWidth;
  __shared__ tile::SplitItem item_smem;
  __shared__ float sum_smem[2][tile::kSplitThreads / tile::kWarp];
  __shared__ bool is_last_smem;
  const tile::SplitItem item = split.take(&item_smem);
  if (!item.exists) return;
  T* dx_row = dx[item.row];
  const std::int64_t visible = params.visible(item.row);
  const std::int64_t first = tile::first_column(item, dx_row);
  const Slice y_slice(y[item.row], first, visible, 0), dy_slice(dy[item.row], first, visible, 0);
  const Gradient<> gradient(params);
  float value[kWidth], dvalue[kWidth];  // a chunk of y and of dy

  if (!item.writes) {
    // sum y dy, of this thread's own elements, of the block's, and of the row's
    float sum = 0;
#pragma unroll
    for (int i = 0; i < tile::kSplitChunks; ++i) {
      y_slice.chunk[i].to_floats(value);
      dy_slice.chunk[i].to_floats(dvalue);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum += gradient.term(value[e], dvalue[e]);
    }
    sum = tile::reduce_block(sum, tile::Add{}, sum_smem[0]);
    split.publish(item, sum, tile::Add{}, sum_smem[1], &is_last_smem);
    return;
  }

  // dx = scale y (dy - sum)
  const float sum = split.wait(item);
#pragma unroll
  for (int i = 0; i < tile::kSplitChunks; ++i) {
    y_slice.chunk[i].to_floats(value);
    dy_slice.chunk[i].to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[e] = y_slice.column(i) + e < visible ? gradient(value[e], dvalue[e], sum) : 0;
    }
    tile::store_anywhere(dx_row, y_slice.column(i), params.cols, value);
  }
}
// snippet-end kernel

}  // namespace

tile::Status takes_split(const BackwardProblem& problem, const BackwardBuffers& buffers,
                         const tile::Device& device) {
  if (is_read_once(problem, buffers) && !tile::is_short_of_rows(problem, device)) {
    return tile::unsupported("cols", std::to_string(problem.cols) + " are read once by a cluster");
  }
  return tile::check_workspace(split_bytes(problem), buffers.workspace_bytes);
}

tile::Status split(const BackwardProblem& problem, const BackwardBuffers& buffers, void* stream) {
  const tile::SplitPlan plan =
      tile::split_plan(problem.rows, problem.cols, tile::size_bytes(problem.type));
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", plan.items(), 1, &blocks));
  tile::SplitRows<float> rows;
  TILE_TRY(tile::prepare_split(plan, buffers.workspace, stream, &rows));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(
        softmax_backward_split<T>, "softmax_backward_split", blocks, tile::kSplitThreads, 0, stream,
        tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
        tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
        tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx}, params_of(problem), rows);
  });
}

}  // namespace softmax
