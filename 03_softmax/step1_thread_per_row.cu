// Step 1: a thread for each row.
// Idea: write down the definition. A thread walks along its row three times: for the maximum, for
//       the sum, and to write the results.
// Change: chapters 01 and 02 had as many threads as results. Here a result needs its whole row.
// Limit: neighbouring threads read addresses a row apart, so each fetches 32 bytes and uses a few
//        of them. A short matrix has few threads.
#include "softmax.cuh"

namespace softmax {
namespace {

constexpr int kThreads = 128;

// snippet-begin kernel
template <class T>
__global__ void softmax_thread_per_row(tile::Rows<const T> x,  // [rows][cols]
                                       tile::Rows<T> y,        // [rows][cols]
                                       Options options) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= options.rows) return;
  const std::int64_t visible = options.visible(row);

  tile::MaxSum seen{-INFINITY, 0};
  for (std::int64_t col = 0; col < visible; ++col) {
    seen.max = fmaxf(seen.max, static_cast<float>(x[row][col]));
  }
  const float max = tile::finite_reference(seen.max);
  for (std::int64_t col = 0; col < visible; ++col) {
    seen.sum += tile::ptx::exp2_approx(options.factor * (static_cast<float>(x[row][col]) - max));
  }
  const Normalize<> normalize(options, seen);
  for (std::int64_t col = 0; col < options.cols; ++col) {
    const float result =
        col < visible ? normalize(static_cast<float>(x[row][col])) : options.hidden();
    y[row][col] = static_cast<T>(result);
  }
}
// snippet-end kernel

template <class T>
__global__ void softmax_backward_thread_per_row(tile::Rows<const T> y,   // [rows][cols]
                                                tile::Rows<const T> dy,  // [rows][cols]
                                                tile::Rows<T> dx,        // [rows][cols]
                                                Options options) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= options.rows) return;
  const std::int64_t visible = options.visible(row);
  const Gradient<> gradient(options);

  float sum = 0;
  for (std::int64_t col = 0; col < visible; ++col) {
    sum += gradient.term(static_cast<float>(y[row][col]), static_cast<float>(dy[row][col]));
  }
  for (std::int64_t col = 0; col < options.cols; ++col) {
    float result = 0;
    if (col < visible) {
      result = gradient(static_cast<float>(y[row][col]), static_cast<float>(dy[row][col]), sum);
    }
    dx[row][col] = static_cast<T>(result);
  }
}

}  // namespace

tile::Status thread_per_row(const Problem& problem, const Buffers& buffers, void* stream) {
  return launch_on_rows(
      problem, buffers, kThreads, [&]<class T>(const Arguments<T>& a, unsigned blocks) {
        if (problem.direction == tile::Direction::forward) {
          softmax_thread_per_row<T>
              <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a.x, a.y, a.options);
          return tile::launch_status("softmax_thread_per_row");
        }
        softmax_backward_thread_per_row<T>
            <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a.y_in, a.dy, a.dx,
                                                                         a.options);
        return tile::launch_status("softmax_backward_thread_per_row");
      });
}

}  // namespace softmax
