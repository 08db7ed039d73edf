// Forward, step 4: maximum and sum in one pass.
// Idea: when a greater maximum appears, the sum so far is scaled down to it. So the pair of maximum
//       and sum is right after every number, and two such pairs merge into one.
// Change: one loop and one reduction of pairs instead of two of each.
// Limit: memory. Every row is read twice, and each load fetches one element.
#include "softmax.cuh"
#include "tile/host/launch.hpp"

namespace softmax {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / tile::kWarp;

// snippet-begin add
/// The numbers seen so far and one more. A greater maximum than before scales the sum down.
__device__ __forceinline__ MaxSum add_number(MaxSum seen, float x, MergeMaxSum merge) {
  if (x > seen.max) {
    // The new number's own term is 2^0 = 1, but NaN for infinity, whose row has no softmax.
    return {x, merge.rescaled(seen, x) + (1 + (x - x))};
  }
  const float power = tile::ptx::exp2_approx(merge.factor * (x - finite_reference(seen.max)));
  return {seen.max, seen.sum + power};
}
// snippet-end add

// snippet-begin kernel
template <class T>
__global__ void softmax_online(tile::Rows<const T> x,  // [rows][cols]
                               tile::Rows<T> y,        // [rows][cols]
                               Params params) {        // sizes, scale, options
  __shared__ MaxSum seen_smem[kWarps];
  const std::int64_t row = blockIdx.x;
  const std::int64_t visible = params.visible(row);
  const MergeMaxSum merge{params.factor};

  MaxSum seen = merge.identity();
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    seen = add_number(seen, static_cast<float>(x[row][col]), merge);
  }
  seen = tile::reduce_block(seen, merge, seen_smem);
  const Normalize<> normalize(params, seen);
  for (std::int64_t col = threadIdx.x; col < params.cols; col += kThreads) {
    const float result =
        col < visible ? normalize(static_cast<float>(x[row][col])) : params.hidden();
    y[row][col] = static_cast<T>(result);
  }
}
// snippet-end kernel

}  // namespace

tile::Status online(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, 1, &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(softmax_online<T>, "softmax_online", blocks, kThreads, 0, stream,
                        tile::Rows<const T>{static_cast<const T*>(buffers.x), problem.ldx},
                        tile::Rows<T>{static_cast<T*>(buffers.y), problem.ldy}, params_of(problem));
  });
}

}  // namespace softmax
