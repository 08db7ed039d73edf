// Backward, step 3: reductions by warp shuffles.
// Idea: the lanes of a warp read each other's registers with __shfl_xor_sync. Five rounds reduce a
//       warp without shared memory and without a barrier.
// Change: tile::reduce_block (tile/reduce.cuh) replaces the tree: shuffles in each warp,
//         and one barrier, after which every thread adds up the warps' results.
// Limit: memory. Both rows are still read twice.
#include "softmax.cuh"
#include "tile/host/launch.hpp"

namespace softmax {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / tile::kWarp;

// snippet-begin kernel
template <class T>
__global__ void softmax_backward_shuffles(tile::Rows<const T> y,   // [rows][cols]
                                          tile::Rows<const T> dy,  // [rows][cols]
                                          tile::Rows<T> dx,        // [rows][cols]
                                          Params params) {         // sizes, scale, options
  __shared__ float sum_smem[kWarps];
  const std::int64_t row = blockIdx.x;
  const std::int64_t visible = params.visible(row);
  const Gradient<> gradient(params);

  float sum = 0;
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    sum += gradient.term(static_cast<float>(y[row][col]), static_cast<float>(dy[row][col]));
  }
  sum = tile::reduce_block(sum, tile::Add{}, sum_smem);
  for (std::int64_t col = threadIdx.x; col < params.cols; col += kThreads) {
    float result = 0;
    if (col < visible) {
      result = gradient(static_cast<float>(y[row][col]), static_cast<float>(dy[row][col]), sum);
    }
    dx[row][col] = static_cast<T>(result);
  }
}
// snippet-end kernel

}  // namespace

tile::Status shuffles(const BackwardProblem& problem, const BackwardBuffers& buffers,
                      void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, 1, &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(
        softmax_backward_shuffles<T>, "softmax_backward_shuffles", blocks, kThreads, 0, stream,
        tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
        tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
        tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx}, params_of(problem));
  });
}

}  // namespace softmax
