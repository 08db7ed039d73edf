// The second stage of dgamma and dbeta: columns of partial sums.
#include "partial_sums.cuh"

namespace layernorm {
namespace {

constexpr int kColumns = 32;  // of a block: a warp reads 128 bytes of a row of sums
constexpr int kGroups = 16;   // of rows: as many warps share them

// snippet-begin kernel
template <class T>
__global__ void sum_columns(PartialSums sums,     // [count][cols], twice
                            T* dgamma, T* dbeta,  // [cols], or null
                            std::int64_t cols) {
  __shared__ float groups_smem[2][kGroups][kColumns];
  const std::int64_t col = std::int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const int group = static_cast<int>(threadIdx.y);

  float of_dgamma = 0, of_dbeta = 0;
  if (col < cols) {
    for (std::int64_t i = group; i < sums.count; i += kGroups) {
      if (dgamma) of_dgamma += sums.dgamma[i * cols + col];
      if (dbeta) of_dbeta += sums.dbeta[i * cols + col];
    }
  }
  groups_smem[0][group][threadIdx.x] = of_dgamma;
  groups_smem[1][group][threadIdx.x] = of_dbeta;
  __syncthreads();  // all groups are there
  if (group > 1 || col >= cols) return;
  // One warp for dgamma, one for dbeta.
  T* result = group == 0 ? dgamma : dbeta;
  if (!result) return;
  float sum = 0;
  for (int i = 0; i < kGroups; ++i) sum += groups_smem[group][i][threadIdx.x];
  result[col] = static_cast<T>(sum);
}
// snippet-end kernel

}  // namespace

tile::Status sum_partial_sums(const Problem& problem, const Buffers& buffers,
                              const PartialSums& sums, void* stream) {
  if (!buffers.dgamma && !buffers.dbeta) return {};
  return tile::with_element_type(problem.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    unsigned blocks = 0;
    if (tile::Status s = tile::blocks_for("cols", problem.cols, kColumns, &blocks); !s.ok()) {
      return s;
    }
    sum_columns<T><<<blocks, dim3(kColumns, kGroups), 0, static_cast<cudaStream_t>(stream)>>>(
        sums, static_cast<T*>(buffers.dgamma), static_cast<T*>(buffers.dbeta), problem.cols);
    return tile::launch_status("sum_columns");
  });
}

tile::Status write_zeros(const Problem& problem, const Buffers& buffers, void* stream) {
  return sum_partial_sums(problem, buffers, PartialSums(problem, buffers, 0), stream);
}

}  // namespace layernorm
