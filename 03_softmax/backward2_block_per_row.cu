// Backward, step 2: a block for each row.
// Idea: the threads of a block share a row. Neighbouring threads read neighbouring elements, so
//       that every byte that is fetched is used. Each reduces its own, and a tree in shared memory
//       reduces the 256 results.
// Change: `reduce` adds up over a block: 128 threads add, then 64, then 32 …, with a barrier after
//         each round.
// Limit: eight rounds with a barrier each, and both rows are still read twice.
#include "softmax.cuh"
#include "tile/host/launch.hpp"

namespace softmax {
namespace {

constexpr int kThreads = 256;
static_assert((kThreads & (kThreads - 1)) == 0, "the tree halves them until one is left");

/// The reduction over all threads of the block, in every thread.
template <class Merge>
__device__ float reduce(float value, Merge merge, float* tree_smem) {  // [kThreads]
  const int thread = static_cast<int>(threadIdx.x);
  tree_smem[thread] = value;
  __syncthreads();  // all values are there
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) {
      tree_smem[thread] = merge(tree_smem[thread], tree_smem[thread + half]);
    }
    __syncthreads();  // this round's results are there for the next
  }
  const float result = tree_smem[0];
  __syncthreads();  // all threads have read it: the tree may be used again
  return result;
}

template <class T>
__global__ void softmax_backward_block_per_row(tile::Rows<const T> y,   // [rows][cols]
                                               tile::Rows<const T> dy,  // [rows][cols]
                                               tile::Rows<T> dx,        // [rows][cols]
                                               Params params) {         // sizes, scale, options
  __shared__ float tree_smem[kThreads];
  const std::int64_t row = blockIdx.x;
  const std::int64_t visible = params.visible(row);
  const Gradient<> gradient(params);

  float sum = 0;
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    sum += gradient.term(static_cast<float>(y[row][col]), static_cast<float>(dy[row][col]));
  }
  sum = reduce(sum, tile::Add{}, tree_smem);
  for (std::int64_t col = threadIdx.x; col < params.cols; col += kThreads) {
    float result = 0;
    if (col < visible) {
      result = gradient(static_cast<float>(y[row][col]), static_cast<float>(dy[row][col]), sum);
    }
    dx[row][col] = static_cast<T>(result);
  }
}

}  // namespace

tile::Status block_per_row(const BackwardProblem& problem, const BackwardBuffers& buffers,
                           void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, 1, &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(
        softmax_backward_block_per_row<T>, "softmax_backward_block_per_row", blocks, kThreads, 0,
        stream, tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
        tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
        tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx}, params_of(problem));
  });
}

}  // namespace softmax
