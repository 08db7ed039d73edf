// Forward, step 2: a block for each row.
// Idea: the threads of a block share a row. Neighbouring threads read neighbouring elements, so
//       that every byte that is fetched is used. Each reduces its own, and a tree in shared memory
//       reduces the 256 results.
// Change: `reduce` adds up over a block: 128 threads add, then 64, then 32 …, with a barrier after
//         each round.
// Limit: eight rounds with a barrier each, twice a row, and every row is still read three times.
#include "softmax.cuh"
#include "tile/host/launch.hpp"

namespace softmax {
namespace {

constexpr int kThreads = 256;
static_assert((kThreads & (kThreads - 1)) == 0, "the tree halves them until one is left");

// snippet-begin reduce
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
// snippet-end reduce

// snippet-begin kernel
template <class T>
__global__ void softmax_block_per_row(tile::Rows<const T> x,  // [rows][cols]
                                      tile::Rows<T> y,        // [rows][cols]
                                      Params params) {        // sizes, scale, options
  __shared__ float tree_smem[kThreads];
  const std::int64_t row = blockIdx.x;
  const std::int64_t visible = params.visible(row);

  MaxSum seen{-INFINITY, 0};
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    seen.max = fmaxf(seen.max, static_cast<float>(x[row][col]));
  }
  seen.max = reduce(seen.max, tile::Max{}, tree_smem);
  const float max = finite_reference(seen.max);
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    seen.sum += tile::ptx::exp2_approx(params.factor * (static_cast<float>(x[row][col]) - max));
  }
  seen.sum = reduce(seen.sum, tile::Add{}, tree_smem);
  const Normalize<> normalize(params, seen);
  for (std::int64_t col = threadIdx.x; col < params.cols; col += kThreads) {
    const float result =
        col < visible ? normalize(static_cast<float>(x[row][col])) : params.hidden();
    y[row][col] = static_cast<T>(result);
  }
}
// snippet-end kernel

}  // namespace

tile::Status block_per_row(const ForwardProblem& problem, const ForwardBuffers& buffers,
                           void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, 1, &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(softmax_block_per_row<T>, "softmax_block_per_row", blocks, kThreads, 0,
                        stream, tile::Rows<const T>{static_cast<const T*>(buffers.x), problem.ldx},
                        tile::Rows<T>{static_cast<T*>(buffers.y), problem.ldy}, params_of(problem));
  });
}

}  // namespace softmax
