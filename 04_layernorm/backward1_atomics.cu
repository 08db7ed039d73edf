// Step 4: backward, every row adds to dgamma and dbeta.
// Idea: dx is a row's own affair, like the forward pass: two sums over the row, then its elements.
//       dgamma and dbeta sum over all rows, which no block has. Each row adds its terms to them
//       with atomics, in fp32 in the workspace.
// Change: from the forward pass two inputs, and sums that cross the blocks.
// Limit: the atomics. All rows meet at the same `cols` addresses; and the order in which they come,
//        and so the rounding of dgamma and dbeta, is another in every run.
#include "layernorm.cuh"
#include "partial_sums.cuh"

namespace layernorm {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
template <class T>
__global__ void layernorm_backward_atomics(Arguments<T> a,
                                           PartialSums sums) {  // one of each, zero at first
  __shared__ RowSums sums_smem[kThreads / tile::kWarp];
  const std::int64_t row = blockIdx.x;
  const T *x = a.x[row], *dy = a.dy[row];
  const Statistics statistics(a, row);

  RowSums own{0, 0};
  for (std::int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
    const float w = a.gamma_of(col) * static_cast<float>(dy[col]);
    own.w += w;
    own.w_xhat += w * statistics.xhat(static_cast<float>(x[col]));
  }
  const GradientOfX gradient(a, statistics.rstd, tile::reduce_block(own, AddRowSums{}, sums_smem));
  for (std::int64_t col = threadIdx.x; col < a.cols; col += kThreads) {
    const float dy_col = static_cast<float>(dy[col]);
    const float xhat = statistics.xhat(static_cast<float>(x[col]));
    atomicAdd(&sums.dgamma[col], dy_col * xhat);
    atomicAdd(&sums.dbeta[col], dy_col);
    a.dx[row][col] = static_cast<T>(gradient(a.gamma_of(col) * dy_col, xhat));
  }
}
// snippet-end kernel

}  // namespace

tile::Status atomics(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = backward_only(problem); !s.ok()) return s;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  return with_arguments(problem, buffers, [&]<class T>(const Arguments<T>& a) -> tile::Status {
    if (a.rows == 0) return write_zeros(problem, buffers, stream);
    unsigned blocks = 0;
    if (tile::Status s = tile::blocks_for("rows", a.rows, 1, &blocks); !s.ok()) return s;
    const PartialSums sums(problem, buffers, 1);
    const std::size_t bytes = 2 * static_cast<std::size_t>(a.cols) * sizeof(float);
    TILE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(sums.dgamma, 0, bytes, cuda_stream));
    layernorm_backward_atomics<T><<<blocks, kThreads, 0, cuda_stream>>>(a, sums);
    if (tile::Status s = tile::launch_status("layernorm_backward_atomics"); !s.ok()) return s;
    return sum_partial_sums(problem, buffers, sums, stream);
  });
}

}  // namespace layernorm
