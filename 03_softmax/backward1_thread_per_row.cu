// Backward, step 1: a thread for each row.
// Idea: write down the definition. A thread walks along its rows of y and dy twice: for the sum,
//       and to write the results.
// Change: compared with the forward pass's first step there is one sum and no maximum.
// Limit: as in that step, neighbouring threads read addresses a row apart, so each fetches 32 bytes
//        and uses a few of them. A short matrix has few threads.
#include "softmax.cuh"
#include "tile/host/launch.hpp"

namespace softmax {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void softmax_backward_thread_per_row(tile::Rows<const T> y,   // [rows][cols]
                                                tile::Rows<const T> dy,  // [rows][cols]
                                                tile::Rows<T> dx,        // [rows][cols]
                                                Params params) {         // sizes, scale, options
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= params.rows) return;
  const std::int64_t visible = params.visible(row);
  const Gradient<> gradient(params);

  float sum = 0;
  for (std::int64_t col = 0; col < visible; ++col) {
    sum += gradient.term(static_cast<float>(y[row][col]), static_cast<float>(dy[row][col]));
  }
  for (std::int64_t col = 0; col < params.cols; ++col) {
    float result = 0;
    if (col < visible) {
      result = gradient(static_cast<float>(y[row][col]), static_cast<float>(dy[row][col]), sum);
    }
    dx[row][col] = static_cast<T>(result);
  }
}

}  // namespace

tile::Status thread_per_row(const BackwardProblem& problem, const BackwardBuffers& buffers,
                            void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, kThreads, &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(
        softmax_backward_thread_per_row<T>, "softmax_backward_thread_per_row", blocks, kThreads, 0,
        stream, tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
        tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
        tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx}, params_of(problem));
  });
}

}  // namespace softmax
