// Step 1: the mean, then the variance around it.
// Idea: the definition. A block shares a row: it adds up the row for the mean, then the squares of
//       the distances from it for the variance, then writes.
// Change: from softmax (chapter 03, step 3) the reduction, with two other sums.
// Limit: memory. Every row is read three times.
#include "layernorm.cuh"

namespace layernorm {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
template <class T>
__global__ void layernorm_two_pass(Arguments<T> a) {
  __shared__ float sum_smem[kThreads / tile::kWarp], squares_smem[kThreads / tile::kWarp];
  const std::int64_t row = blockIdx.x;
  const T* x = a.x[row];

  float mean = 0;
  if (a.centred) {
    float sum = 0;
    for (std::int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
      sum += static_cast<float>(x[col]);
    }
    mean = tile::reduce_block(sum, tile::Add{}, sum_smem) / static_cast<float>(a.cols);
  }
  float squares = 0;
  for (std::int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
    const float centred = static_cast<float>(x[col]) - mean;
    squares += centred * centred;
  }
  const float rstd = a.rstd_of(tile::reduce_block(squares, tile::Add{}, squares_smem));
  for (std::int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
    const float xhat = (static_cast<float>(x[col]) - mean) * rstd;
    a.y[row][col] = static_cast<T>(a.gamma_of(col) * xhat + a.beta_of(col));
  }
  if (threadIdx.x == 0) a.save(row, mean, rstd);
}
// snippet-end kernel

}  // namespace

tile::Status two_pass(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = forward_only(problem); !s.ok()) return s;
  return with_arguments(problem, buffers, [&]<class T>(const Arguments<T>& a) -> tile::Status {
    unsigned blocks = 0;
    if (tile::Status s = tile::blocks_for("rows", a.rows, 1, &blocks); !s.ok()) return s;
    layernorm_two_pass<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
    return tile::launch_status("layernorm_two_pass");
  });
}

}  // namespace layernorm
