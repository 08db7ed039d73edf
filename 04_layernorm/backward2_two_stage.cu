// Step 5: backward in two stages, without atomics.
// Idea: a block adds up the dgamma and dbeta of some columns over a group of rows, and writes one
//       partial sum a column. A second kernel adds up the groups (partial_sums.cu). Nobody meets
//       anybody, and the order is always the same: so are the bits.
// Change: dx has a kernel of its own, which is step 4's without atomics.
// Limit: memory. x and dy are read twice for dx, and once more for dgamma and dbeta: seven tensors
//        move where three would do.
#include "layernorm.cuh"
#include "partial_sums.cuh"

namespace layernorm {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 64;                // of a block of the column sums
constexpr int kRows = kThreads / kColumns;  // that it reads at a time
constexpr std::int64_t kMostGroups = 64;    // of rows

template <class T>
__global__ void layernorm_backward_dx(Arguments<T> a) {
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
    const float w = a.gamma_of(col) * static_cast<float>(dy[col]);
    a.dx[row][col] = static_cast<T>(gradient(w, statistics.xhat(static_cast<float>(x[col]))));
  }
}

// snippet-begin kernel
template <class T>
__global__ void layernorm_column_sums(Arguments<T> a, PartialSums sums) {  // [groups][cols], twice
  __shared__ float dgamma_smem[kRows][kColumns], dbeta_smem[kRows][kColumns];
  const std::int64_t tiles = (a.cols + kColumns - 1) / kColumns;
  const std::int64_t group = blockIdx.x / tiles;
  const std::int64_t col = blockIdx.x % tiles * kColumns + threadIdx.x;
  const auto first = static_cast<int>(threadIdx.y);

  float dgamma = 0, dbeta = 0;
  if (col < a.cols) {
    // The rows of a group lie apart, so that groups differ by one row at most.
    for (std::int64_t row = group * kRows + first; row < a.rows; row += sums.count * kRows) {
      const float dy = static_cast<float>(a.dy[row][col]);
      dgamma += dy * Statistics(a, row).xhat(static_cast<float>(a.x[row][col]));
      dbeta += dy;
    }
  }
  dgamma_smem[first][threadIdx.x] = dgamma;
  dbeta_smem[first][threadIdx.x] = dbeta;
  __syncthreads();  // the sums of all threads are there
  if (first != 0 || col >= a.cols) return;
  for (int i = 1; i < kRows; ++i) {
    dgamma += dgamma_smem[i][threadIdx.x];
    dbeta += dbeta_smem[i][threadIdx.x];
  }
  sums.dgamma[group * a.cols + col] = dgamma;
  sums.dbeta[group * a.cols + col] = dbeta;
}
// snippet-end kernel

}  // namespace

tile::Status two_stage(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = backward_only(problem); !s.ok()) return s;
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  return with_arguments(problem, buffers, [&]<class T>(const Arguments<T>& a) -> tile::Status {
    if (a.rows == 0) return write_zeros(problem, buffers, stream);
    const PartialSums sums(
        problem, buffers,
        std::min({kMostGroups, most_partial_sums(a.cols), (a.rows + kRows - 1) / kRows}));
    const std::int64_t tiles = (a.cols + kColumns - 1) / kColumns;
    unsigned rows = 0, blocks = 0;
    if (tile::Status s = tile::blocks_for("rows", a.rows, 1, &rows); !s.ok()) return s;
    if (tile::Status s = tile::blocks_for("cols", tiles * sums.count, 1, &blocks); !s.ok()) {
      return s;
    }
    // First the sums: dx may be x or dy.
    if (buffers.dgamma || buffers.dbeta) {
      layernorm_column_sums<T><<<blocks, dim3(kColumns, kRows), 0, cuda_stream>>>(a, sums);
      if (tile::Status s = tile::launch_status("layernorm_column_sums"); !s.ok()) return s;
      if (tile::Status s = sum_partial_sums(problem, buffers, sums, stream); !s.ok()) return s;
    }
    layernorm_backward_dx<T><<<rows, kThreads, 0, cuda_stream>>>(a);
    return tile::launch_status("layernorm_backward_dx");
  });
}

}  // namespace layernorm
