// Exercise 03.3: the backward pass, a warp for each row
//
// dx = y (dy - sum y dy). Step 3 gives a row to a block of 256 threads. If rows are short
// most of these have nothing to do, and still all meet at a barrier. A warp needs none: five
// shuffles add up what its lanes have. Here a block has four warps, and each warp a row of its own.
// Lane l takes the columns l, l + 32, … A row may have any number of columns, also fewer than 32.
// The number of rows need not be a multiple of four. Each matrix has an ld of its own: y[row] is
// where row `row` of y begins. The sum is of fp32, whatever T is.
// tile::reduce_lanes (tile/reduce.cuh) has the shuffles. Write them yourself once.
// Check it with: ./tour exercise 03.3
#include "exercises/exercises.hpp"
#include "softmax.cuh"

namespace softmax {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = kThreads / tile::kWarp;  // of a block

template <class T>
__global__ void softmax_backward_by_warp(tile::Rows<const T> y,   // [rows][cols]
                                         tile::Rows<const T> dy,  // [rows][cols]
                                         tile::Rows<T> dx,        // [rows][cols]
                                         std::int64_t rows, std::int64_t cols) {
  const int lane = static_cast<int>(threadIdx.x) % tile::kWarp;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / tile::kWarp;
  if (row >= rows) return;  // the whole warp, and there is no barrier

  float sum = 0;
  for (std::int64_t col = lane; col < cols; col += tile::kWarp) {
    sum += static_cast<float>(y[row][col]) * static_cast<float>(dy[row][col]);
  }
  for (int distance = tile::kWarp / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(tile::kAllLanes, sum, distance);
  }
  for (std::int64_t col = lane; col < cols; col += tile::kWarp) {
    const float result = static_cast<float>(y[row][col]) * (static_cast<float>(dy[row][col]) - sum);
    dx[row][col] = static_cast<T>(result);
  }
}

}  // namespace

tile::Status backward_by_warp(const BackwardProblem& problem, const BackwardBuffers& buffers) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", problem.rows, kRows, &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    softmax_backward_by_warp<T><<<blocks, kThreads>>>(
        tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
        tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
        tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx}, problem.rows, problem.cols);
    return tile::launch_status("softmax_backward_by_warp");
  });
}

}  // namespace softmax
