// Forward, step 3: reductions by warp shuffles.
// Idea: the lanes of a warp read each other's registers with __shfl_xor_sync. Five rounds reduce a
//       warp without shared memory and without a barrier.
// Change: tile::reduce_block (tile/reduce.cuh) replaces the tree: shuffles in each warp,
//         and one barrier, after which every thread adds up the warps' results.
// Limit: memory. Every row is still read three times.
#include "softmax.cuh"
#include "tile/host/launch.hpp"

namespace softmax {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / tile::kWarp;

// snippet-begin kernel
template <class T>
__global__ void softmax_shuffles(tile::Rows<const T> x,  // [rows][cols]
                                 tile::Rows<T> y,        // [rows][cols]
                                 Params params) {        // sizes, scale, options
  // Two of them: no thread waits until all others have read the first.
  __shared__ float max_smem[kWarps], sum_smem[kWarps];
  const std::int64_t row = blockIdx.x;
  const std::int64_t visible = params.visible(row);

  MaxSum seen{-INFINITY, 0};
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    seen.max = fmaxf(seen.max, static_cast<float>(x[row][col]));
  }
  seen.max = tile::reduce_block(seen.max, tile::Max{}, max_smem);
  const float max = finite_reference(seen.max);
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    seen.sum += tile::ptx::exp2_approx(params.factor * (static_cast<float>(x[row][col]) - max));
  }
  seen.sum = tile::reduce_block(seen.sum, tile::Add{}, sum_smem);
  const Normalize<> normalize(params, seen);
  for (std::int64_t col = threadIdx.x; col < params.cols; col += kThreads) {
    const float result =
        col < visible ? normalize(static_cast<float>(x[row][col])) : params.hidden();
    y[row][col] = static_cast<T>(result);
  }
}
// snippet-end kernel

}  // namespace

tile::Status shuffles(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, 1, &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(softmax_shuffles<T>, "softmax_shuffles", blocks, kThreads, 0, stream,
                        tile::Rows<const T>{static_cast<const T*>(buffers.x), problem.ldx},
                        tile::Rows<T>{static_cast<T*>(buffers.y), problem.ldy}, params_of(problem));
  });
}

}  // namespace softmax
