// Exercise 03.1: log-sum-exp
//
// log(sum exp(x)) of every row. With this number, any y can be computed from its x without the rest
// of the row: y = exp(x - log-sum-exp). The backward pass of attention (chapter 05) does so. A
// classifier's loss is this number less the x of the right class.
// The kernel below writes the definition down: a block has a row, and reduce_block of step 3 adds
// up. Try (1000, 1001) in your head: what is expf(1000), and what should come out? The answer is
// never far from the greatest x, however large or small that is. Make it right for every row.
// A row without any weight, with only -infinity or no column at all, gives -infinity. One with
// +infinity gives +infinity. One with a NaN gives NaN, whatever else it holds.
// Check it with: ./tour exercise 03.1
#include "exercises/exercises.hpp"
#include "softmax.cuh"

namespace softmax {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / tile::kWarp;

__global__ void log_sum_exp_kernel(tile::Rows<const float> x,  // [rows][cols]
                                   float* result,              // [rows]
                                   std::int64_t cols) {
  // Two arrays: when a fast warp stores its sum, a slow one may still be reading maxima.
  __shared__ float max_smem[kWarps], sum_smem[kWarps];
  const float* row = x[blockIdx.x];
  float max = -INFINITY;
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) max = fmaxf(max, row[col]);
  max = tile::reduce_block(max, tile::Max{}, max_smem);
  // Infinity minus itself is NaN. With nothing subtracted exp is 0, or infinity, and so is the sum.
  if (fabsf(max) == INFINITY) max = 0;
  float sum = 0;
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) sum += expf(row[col] - max);
  sum = tile::reduce_block(sum, tile::Add{}, sum_smem);
  if (threadIdx.x == 0) result[blockIdx.x] = max + logf(sum);
}

}  // namespace

tile::Status log_sum_exp(const float* x, std::int64_t ldx, float* result, std::int64_t rows,
                         std::int64_t cols) {
  if (rows == 0) return {};
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", rows, 1, &blocks));
  log_sum_exp_kernel<<<blocks, kThreads>>>(tile::Rows<const float>{x, ldx}, result, cols);
  return tile::launch_status("log_sum_exp_kernel");
}

}  // namespace softmax
