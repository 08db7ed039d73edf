// Step 3: reductions by warp shuffles.
// Idea: the lanes of a warp read each other's registers with __shfl_xor_sync. Five rounds reduce a
//       warp without shared memory and without a barrier.
// Change: tile::reduce_block (tile/reduce.cuh) takes the place of the tree: shuffles in each warp,
//         and one barrier, after which every thread adds up the warps' results.
// Limit: memory. Forward still reads every row three times, backward reads both of its twice.
#include "softmax.cuh"

namespace softmax {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / tile::kWarp;

// snippet-begin kernel
template <class T>
__global__ void softmax_shuffles(tile::Rows<const T> x,  // [rows][cols]
                                 tile::Rows<T> y,        // [rows][cols]
                                 Options options) {
  // Two of them: no thread waits until all others have read the first.
  __shared__ float max_smem[kWarps], sum_smem[kWarps];
  const std::int64_t row = blockIdx.x;
  const std::int64_t visible = options.visible(row);

  tile::MaxSum seen{-INFINITY, 0};
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    seen.max = fmaxf(seen.max, static_cast<float>(x[row][col]));
  }
  seen.max = tile::reduce_block(seen.max, tile::Max{}, max_smem);
  const float max = tile::finite_reference(seen.max);
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    seen.sum += tile::ptx::exp2_approx(options.factor * (static_cast<float>(x[row][col]) - max));
  }
  seen.sum = tile::reduce_block(seen.sum, tile::Add{}, sum_smem);
  const Normalize<> normalize(options, seen);
  for (std::int64_t col = threadIdx.x; col < options.cols; col += kThreads) {
    const float result =
        col < visible ? normalize(static_cast<float>(x[row][col])) : options.hidden();
    y[row][col] = static_cast<T>(result);
  }
}
// snippet-end kernel

// snippet-begin backward
template <class T>
__global__ void softmax_backward_shuffles(tile::Rows<const T> y,   // [rows][cols]
                                          tile::Rows<const T> dy,  // [rows][cols]
                                          tile::Rows<T> dx,        // [rows][cols]
                                          Options options) {
  __shared__ float sum_smem[kWarps];
  const std::int64_t row = blockIdx.x;
  const std::int64_t visible = options.visible(row);
  const Gradient<> gradient(options);

  float sum = 0;
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    sum += gradient.term(static_cast<float>(y[row][col]), static_cast<float>(dy[row][col]));
  }
  sum = tile::reduce_block(sum, tile::Add{}, sum_smem);
  for (std::int64_t col = threadIdx.x; col < options.cols; col += kThreads) {
    float result = 0;
    if (col < visible) {
      result = gradient(static_cast<float>(y[row][col]), static_cast<float>(dy[row][col]), sum);
    }
    dx[row][col] = static_cast<T>(result);
  }
}
// snippet-end backward

}  // namespace

tile::Status shuffles(const Problem& problem, const Buffers& buffers, void* stream) {
  return launch_on_rows(problem, buffers, 1, [&]<class T>(const Arguments<T>& a, unsigned blocks) {
    if (problem.direction == tile::Direction::forward) {
      softmax_shuffles<T>
          <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a.x, a.y, a.options);
      return tile::launch_status("softmax_shuffles");
    }
    softmax_backward_shuffles<T>
        <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a.y_in, a.dy, a.dx, a.options);
    return tile::launch_status("softmax_backward_shuffles");
  });
}

}  // namespace softmax
