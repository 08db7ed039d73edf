// Forward, step 5: a row in registers.
// Idea: enough threads share a row to hold all of it in their registers. Each loads
//       its elements once, 16 bytes with an instruction and all of them at once, and stores once.
// Change: a thread has up to 32 elements (tile/host/row_plan.hpp). A row of up to 1,024 belongs to
//         a warp or to part of one, so that it needs no barrier; longer ones belong to a block. A
//         row may begin anywhere: lanes have one element of its ends each, or two.
// Limit: memory, at the speed of a copy. A block has registers for 32,768 elements, and for 8,192
//        with causal or log, or element by element. Step 4 takes longer rows.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/register_slice.cuh"

namespace softmax {
namespace {

constexpr int kMaxElements = 32;  // of a thread
constexpr int kFewestLanes = 8;   // of a row that begins anywhere

// snippet-begin kernel
template <class T, int kWidth, int kElements, bool kSeveralRows, bool kPlain, int kEndLanes>
__global__ void __launch_bounds__(kSeveralRows ? tile::kThreadsOfSeveralRows
                                               : tile::kMaxThreadsPerBlock,
                                  kSeveralRows ? 6 : 1)
    softmax_registers(tile::Rows<const T> x,  // [rows][cols]
                      tile::Rows<T> y,        // [rows][cols]
                      Params params) {        // sizes, scale, options
  using Slice = tile::RegisterSlice<T, kWidth, kElements, kEndLanes>;
  __shared__ MaxSum seen_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  const int threads = kSeveralRows && kEndLanes ? kEndLanes : static_cast<int>(blockDim.x);
  const tile::ChunkColumns<kWidth> columns{static_cast<int>(threadIdx.x), threads};
  const std::int64_t row = tile::row_of_thread<kSeveralRows>();
  // Lanes without a row still take part in shuffles.
  const int cols = row < params.rows ? static_cast<int>(params.cols) : 0;
  const int visible = cols == 0 ? 0 : static_cast<int>(params.visible<kPlain>(row));

  // x, all loads under way at once; then 2^(factor (x - own maximum)); then y.
  float value[Slice::kParts][kWidth];
  const Slice x_slice(x[row], visible, columns, -INFINITY, cols);
#pragma unroll
  for (int i = 0; i < Slice::kParts; ++i) load_visible<kPlain>(x_slice, i, visible, value[i]);

  // Maximum and sum of this thread's own elements.
  MaxSum own{-INFINITY, 0};
#pragma unroll
  for (int i = 0; i < Slice::kParts; ++i) {
#pragma unroll
    for (int e = 0; e < Slice::width(i); ++e) own.max = fmaxf(own.max, value[i][e]);
  }
  const float reference = finite_reference(own.max);
#pragma unroll
  for (int i = 0; i < Slice::kParts; ++i) {
#pragma unroll
    for (int e = 0; e < Slice::width(i); ++e) {
      const float power = tile::ptx::exp2_approx(params.factor * (value[i][e] - reference));
      own.sum += power;
      if (kPlain || !params.log) value[i][e] = power;  // the logarithm is computed from x itself
    }
  }
  const MaxSum seen =
      tile::reduce_row<kSeveralRows>(own, MergeMaxSum{params.factor}, seen_smem, threads);

  // y. No exponential is computed twice: one factor makes 2^(f (x - row)) / sum of each
  // 2^(f (x - own)); 0 if there are only -infinities here.
  const Normalize<kPlain> normalize(params, seen);
  const float correction =
      tile::ptx::exp2_approx(params.factor * (own.max - normalize.max)) * normalize.last;
  T* y_row = y[row];
#pragma unroll
  for (int i = 0; i < Slice::kParts; ++i) {
    if (!x_slice.has(i, cols)) continue;
#pragma unroll
    for (int e = 0; e < Slice::width(i); ++e) {
      float& each = value[i][e];
      each = kPlain || !params.log ? each * correction : normalize(each);
      if (!kPlain && x_slice.column(i, e) >= visible) each = params.hidden();
    }
    x_slice.store(i, y_row, cols, value[i]);
  }
}
// snippet-end kernel

tile::RowPlan plan_of(const ForwardProblem& p, const ForwardBuffers& b) {
  const bool whole = check_chunks(p, b).ok();
  if (whole || !begin_alike(p, b)) return tile::plan_row(p.cols, whole, is_plain(p), kMaxElements);
  return tile::plan_ends(p.type, p.cols, is_plain(p), kFewestLanes, kMaxElements);
}

}  // namespace

tile::Status takes_registers(const ForwardProblem& problem, const ForwardBuffers& buffers,
                             const tile::Device&) {
  if (plan_of(problem, buffers).fits) return {};
  return tile::unsupported("cols", std::to_string(problem.cols) + " do not fit into registers");
}

tile::Status registers(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  const tile::RowPlan plan = plan_of(problem, buffers);
  const dim3 block(plan.threads, plan.rows());
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, plan.rows(), &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&](auto... constants) {
      return tile::launch(
          softmax_registers<T, constants...>, "softmax_registers", blocks, block, 0, stream,
          tile::Rows<const T>{static_cast<const T*>(buffers.x), problem.ldx},
          tile::Rows<T>{static_cast<T*>(buffers.y), problem.ldy}, params_of(problem));
    };
    return tile::with_any_plan<T, kFewestLanes, kMaxElements>(plan, launch);
  });
}

}  // namespace softmax
