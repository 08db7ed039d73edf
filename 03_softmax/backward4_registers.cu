// Backward, step 4: both rows in registers.
// Idea: enough threads share a row to hold y and dy in their registers. Each loads its
//       elements once, 16 bytes with an instruction and all of them at once, and stores once.
// Change: a thread has up to 32 elements of each (tile/host/row_plan.hpp), in long rows up to 16. A
//         row of up to 1,024 belongs to a warp or to part of one, so that it needs no barrier;
//         longer ones belong to a block.
// Limit: memory, at the speed of a copy. A block has registers for 16,384 elements of both, and for
//        8,192 with causal or log, or element by element. Step 3 takes longer rows.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/register_slice.cuh"

namespace softmax {
namespace {

constexpr int kMaxElements = 16;  // of a thread, in rows that a block shares

template <class T, int kWidth, int kElements, bool kSeveralRows, bool kPlain>
__global__ void __launch_bounds__(kSeveralRows ? tile::kThreadsOfSeveralRows
                                               : tile::kMaxThreadsPerBlock,
                                  kSeveralRows ? 3 : 1)
    softmax_backward_registers(tile::Rows<const T> y,   // [rows][cols]
                               tile::Rows<const T> dy,  // [rows][cols]
                               tile::Rows<T> dx,        // [rows][cols]
                               Params params) {         // sizes, scale, options
  using Slice = tile::RegisterSlice<T, kWidth, kElements>;
  __shared__ float sum_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  const tile::ChunkColumns<kWidth> columns{static_cast<int>(threadIdx.x),
                                           static_cast<int>(blockDim.x)};
  const std::int64_t row = tile::row_of_thread<kSeveralRows>();
  // Lanes without a row still take part in shuffles.
  const int cols = row < params.rows ? static_cast<int>(params.cols) : 0;
  const int visible = cols == 0 ? 0 : static_cast<int>(params.visible<kPlain>(row));
  const Gradient<kPlain> gradient(params);

  const Slice y_slice(y[row], visible, columns, 0);
  const Slice dy_slice(dy[row], visible, columns, 0);
  float value[kWidth], dvalue[kWidth];  // a chunk of y and of dy

  // sum y dy, first of this thread's own elements
  float sum = 0;
#pragma unroll Slice::kUnroll
  for (int i = 0; i < Slice::kChunks; ++i) {
    y_slice.chunk(i).to_floats(value);
    dy_slice.chunk(i).to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (kPlain || columns.column(i) + e < visible) sum += gradient.term(value[e], dvalue[e]);
    }
  }
  sum = tile::reduce_row<kSeveralRows>(sum, tile::Add{}, sum_smem);

  // dx = scale y (dy - sum)
  T* dx_row = dx[row];
#pragma unroll Slice::kUnroll
  for (int i = 0; i < Slice::kChunks; ++i) {
    const int col = columns.column(i);
    if (col >= cols) continue;
    y_slice.chunk(i).to_floats(value);
    dy_slice.chunk(i).to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[e] = kPlain || col + e < visible ? gradient(value[e], dvalue[e], sum) : 0;
    }
    Slice::Chunk::from_floats(value).store(dx_row + col);
  }
}

tile::RowPlan plan_of(const BackwardProblem& problem, const BackwardBuffers& buffers) {
  return tile::plan_row(problem.cols, check_chunks(problem, buffers).ok(), is_plain(problem),
                        kMaxElements);
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
    const auto launch = [&](auto width, auto elements, auto several_rows, auto plain) {
      return tile::launch(softmax_backward_registers<T, width, elements, several_rows, plain>,
                          "softmax_backward_registers", blocks, block, 0, stream,
                          tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
                          tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
                          tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx},
                          params_of(problem));
    };
    return tile::with_plan<T, kMaxElements>(plan, launch);
  });
}

}  // namespace softmax
