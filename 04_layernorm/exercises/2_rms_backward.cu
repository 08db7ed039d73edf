// Exercise 04.2: the gradient of RMSNorm
//
// y = gamma xhat, where xhat = x rstd and rstd = 1 / sqrt(sum x^2 / n + eps). Given is dy; wanted
// is dx. The walkthrough has derived it for LayerNorm, where x acts by itself, through the mean,
// and through rstd. Here there is no mean. With w = gamma dy and ms = sum x^2 / n:
//
//     d ms     / d x_j = 2 x_j / n
//     d rstd   / d x_j = -rstd^3 / 2 * d ms / d x_j
//     d xhat_i / d x_j = rstd (1 if i = j) + x_i * d rstd / d x_j
//
// Put the second into the third, multiply by w_i, and add up over i. Which sums over the row are
// left? The forward pass has saved nothing this time, so rstd is one more. How often must the row
// be read before dx can be written, and how many barriers does it take?
// Check it with: ./tour exercise 04.2
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"
#include "tile/reduce.cuh"
#include "tile/rows.cuh"

namespace layernorm {
namespace {

constexpr int kThreads = 256;

__global__ void rms_backward_kernel(tile::Rows<const float> x,   // [rows][cols]
                                    const float* gamma,          // [cols], or null: all ones
                                    tile::Rows<const float> dy,  // [rows][cols]
                                    tile::Rows<float> dx,        // [rows][cols]
                                    std::int64_t cols, float eps) {
  // TODO: The sums over row blockIdx.x, then its dx. The row begins at x[row], dy[row] and dx[row].
  // gamma may be null. tile::reduce_block() takes a shared array with a value for each warp.
}

}  // namespace

tile::Status rms_backward(const BackwardProblem& problem, float eps,
                          const BackwardBuffers& buffers) {
  TILE_TRY(validate_sizes(problem));
  if (problem.rows == 0 || problem.cols == 0) return {};
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, 1, &blocks));
  rms_backward_kernel<<<blocks, kThreads>>>(
      tile::Rows<const float>{static_cast<const float*>(buffers.x), problem.ldx},
      static_cast<const float*>(buffers.gamma),
      tile::Rows<const float>{static_cast<const float*>(buffers.dy), problem.lddy},
      tile::Rows<float>{static_cast<float*>(buffers.dx), problem.lddx}, problem.cols, eps);
  return tile::launch_status("rms_backward_kernel");
}

}  // namespace layernorm
