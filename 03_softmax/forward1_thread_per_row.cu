// Forward, step 1: a thread for each row.
// Idea: write down the definition. A thread walks along its row three times: for the maximum, for
//       the sum, and to write the results.
// Change: chapters 01 and 02 had as many threads as results. Here a result needs its whole row.
// Limit: neighbouring threads read addresses a row apart, so each fetches 32 bytes and uses a few
//        of them. A short matrix has few threads.
#include "softmax.cuh"
#include "tile/host/launch.hpp"

namespace softmax {
namespace {

constexpr int kThreads = 128;

// snippet-begin kernel
template <class T>
__global__ void softmax_thread_per_row(tile::Rows<const T> x,  // [rows][cols]
                                       tile::Rows<T> y,        // [rows][cols]
                                       Params params) {        // sizes, scale, options
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= params.rows) return;
  const std::int64_t visible = params.visible(row);

  MaxSum seen{-INFINITY, 0};
  for (std::int64_t col = 0; col < visible; ++col) {
    seen.max = fmaxf(seen.max, static_cast<float>(x[row][col]));
  }
  const float max = finite_reference(seen.max);
  for (std::int64_t col = 0; col < visible; ++col) {
    seen.sum += tile::ptx::exp2_approx(params.factor * (static_cast<float>(x[row][col]) - max));
  }
  const Normalize<> normalize(params, seen);
  for (std::int64_t col = 0; col < params.cols; ++col) {
    const float result =
        col < visible ? normalize(static_cast<float>(x[row][col])) : params.hidden();
    y[row][col] = static_cast<T>(result);
  }
}
// snippet-end kernel

}  // namespace

tile::Status thread_per_row(const ForwardProblem& problem, const ForwardBuffers& buffers,
                            void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, kThreads, &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(softmax_thread_per_row<T>, "softmax_thread_per_row", blocks, kThreads, 0,
                        stream, tile::Rows<const T>{static_cast<const T*>(buffers.x), problem.ldx},
                        tile::Rows<T>{static_cast<T*>(buffers.y), problem.ldy}, params_of(problem));
  });
}

}  // namespace softmax
