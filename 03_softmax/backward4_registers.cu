// Backward, step 4: both rows in registers.
// Idea: enough threads share a row to hold y and dy in their registers. Each loads its
//       elements once, 16 bytes with an instruction and all of them at once, and stores once.
// Change: a thread has up to 32 elements of each (tile/host/row_plan.hpp), in long rows up to 16. A
//         row of up to 1,024 belongs to a warp or to part of one, so that it needs no barrier;
//         longer ones belong to a block. Rows may begin anywhere: lanes have one element of the
//         ends each.
// Limit: memory, at the speed of a copy. A block has registers for 16,384 elements of both, and for
//        8,192 with causal or log, or element by element. Step 3 takes longer rows.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/register_slice.cuh"

namespace softmax {
namespace {

constexpr int kMaxElements = 16;  // of a thread, in rows that a block shares
constexpr int kFewestLanes = 16;  // of a row that begins anywhere

template <class T, int kWidth, int kElements, bool kSeveralRows, bool kPlain, int kEndLanes>
__global__ void __launch_bounds__(kSeveralRows ? tile::kThreadsOfSeveralRows
                                               : tile::kMaxThreadsPerBlock,
                                  kSeveralRows ? 3 : 1)
    softmax_backward_registers(tile::Rows<const T> y,   // [rows][cols]
                               tile::Rows<const T> dy,  // [rows][cols]
                               tile::Rows<T> dx,        // [rows][cols]
                               Params params) {         // sizes, scale, options
  using Slice = tile::RegisterSlice<T, kWidth, kElements, kEndLanes>;
  __shared__ float sum_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  const int threads = kSeveralRows && kEndLanes ? kEndLanes : static_cast<int>(blockDim.x);
  const tile::ChunkColumns<kWidth> columns{static_cast<int>(threadIdx.x), threads};
  const std::int64_t row = tile::row_of_thread<kSeveralRows>();
  // Lanes without a row still take part in shuffles.
  const int cols = row < params.rows ? static_cast<int>(params.cols) : 0;
  const int visible = cols == 0 ? 0 : static_cast<int>(params.visible<kPlain>(row));
  const Gradient<kPlain> gradient(params);

  const Slice y_slice(y[row], visible, columns, 0, cols);
  const Slice dy_slice(dy[row], visible, columns, 0, cols);
  float value[kWidth], dvalue[kWidth];  // a chunk of y and of dy

  // sum y dy, first of this thread's own elements
  float sum = 0;
#pragma unroll Slice::kUnroll
  for (int i = 0; i < Slice::kParts; ++i) {
    y_slice.chunk(i).to_floats(value);
    dy_slice.chunk(i).to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < Slice::width(i); ++e) {
      if (kPlain || y_slice.column(i, e) < visible) sum += gradient.term(value[e], dvalue[e]);
    }
  }
  sum = tile::reduce_row<kSeveralRows>(sum, tile::Add{}, sum_smem, threads);

  // dx = scale y (dy - sum)
  T* dx_row = dx[row];
#pragma unroll Slice::kUnroll
  for (int i = 0; i < Slice::kParts; ++i) {
    if (!y_slice.has(i, cols)) continue;
    y_slice.chunk(i).to_floats(value);
    dy_slice.chunk(i).to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < Slice::width(i); ++e) {
      value[e] = kPlain || y_slice.column(i, e) < visible ? gradient(value[e], dvalue[e], sum) : 0;
    }
    y_slice.store(i, dx_row, cols, value);
  }
}

tile::RowPlan plan_of(const BackwardProblem& p, const BackwardBuffers& b) {
  const bool whole = check_chunks(p, b).ok();
  if (whole || !begin_alike(p, b)) return tile::plan_row(p.cols, whole, is_plain(p), kMaxElements);
  return tile::plan_ends(p.type, p.cols, is_plain(p), kFewestLanes, kMaxElements);
}

}  // namespace

tile::Status takes_registers(const BackwardProblem& problem, const BackwardBuffers& buffers,
                             const tile::Device&) {
  if (plan_of(problem, buffers).fits) return {};
  return tile::unsupported("cols", std::to_string(problem.cols) + " do not fit into registers");
}

tile::Status registers(const BackwardProblem& problem, const BackwardBuffers& buffers,
                       void* stream) {
  const tile::RowPlan plan = plan_of(problem, buffers);
  const dim3 block(plan.threads, plan.rows());
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, plan.rows(), &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&](auto... constants) {
      return tile::launch(
          softmax_backward_registers<T, constants...>, "softmax_backward_registers", blocks, block,
          0, stream, tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
          tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
          tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx}, params_of(problem));
    };
    return tile::with_any_plan<T, kFewestLanes, kMaxElements>(plan, launch);
  });
}

}  // namespace softmax
