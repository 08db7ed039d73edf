// Step 4: maximum and sum in one pass.
// Idea: when a greater maximum turns up, the sum so far is scaled down to it. The pair of maximum
//       and sum is then right after every number, and two such pairs merge into one.
// Change: one loop and one reduction of pairs in place of two of each (03_softmax/online_softmax.cuh).
//         Backward has no maximum to wait for and is step 3's.
// Limit: memory. Every row is read twice, and each load fetches one element.
#include "softmax.cuh"

namespace softmax {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / tile::kWarp;

// snippet-begin kernel
template <class T>
__global__ void softmax_online(tile::Rows<const T> x,  // [rows][cols]
                               tile::Rows<T> y,        // [rows][cols]
                               Options options) {
  __shared__ tile::MaxSum seen_smem[kWarps];
  const std::int64_t row = blockIdx.x;
  const std::int64_t visible = options.visible(row);
  const tile::MergeMaxSum merge{options.factor};

  tile::MaxSum seen = merge.identity();
  for (std::int64_t col = threadIdx.x; col < visible; col += kThreads) {
    seen = merge(seen, static_cast<float>(x[row][col]));
  }
  seen = tile::reduce_block(seen, merge, seen_smem);
  const Normalize<> normalize(options, seen);
  for (std::int64_t col = threadIdx.x; col < options.cols; col += kThreads) {
    const float result =
        col < visible ? normalize(static_cast<float>(x[row][col])) : options.hidden();
    y[row][col] = static_cast<T>(result);
  }
}
// snippet-end kernel

}  // namespace

tile::Status online(const Problem& problem, const Buffers& buffers, void* stream) {
  if (problem.direction == tile::Direction::backward) return shuffles(problem, buffers, stream);
  return launch_on_rows(problem, buffers, 1, [&]<class T>(const Arguments<T>& a, unsigned blocks) {
    softmax_online<T>
        <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a.x, a.y, a.options);
    return tile::launch_status("softmax_online");
  });
}

}  // namespace softmax
