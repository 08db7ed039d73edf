// Refused: Of which type is the sum
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
  if (row >= rows) return;

  T sum = 0;
  for (std::int64_t col = lane; col < cols; col += tile::kWarp) {
    sum += y[row][col] * dy[row][col];
  }
  for (int distance = tile::kWarp / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(tile::kAllLanes, sum, distance);
  }
  for (std::int64_t col = lane; col < cols; col += tile::kWarp) {
    const float result = static_cast<float>(y[row][col]) *
                         (static_cast<float>(dy[row][col]) - static_cast<float>(sum));
    dx[row][col] = static_cast<T>(result);
  }
}

}  // namespace

tile::Status backward_by_warp(const Problem& problem, const Buffers& buffers) {
  return launch_on_rows(
      problem, buffers, kRows, [&]<class T>(const Arguments<T>& a, unsigned blocks) {
        softmax_backward_by_warp<T>
            <<<blocks, kThreads>>>(a.y_in, a.dy, a.dx, problem.rows, problem.cols);
        return tile::launch_status("softmax_backward_by_warp");
      });
}

}  // namespace softmax
