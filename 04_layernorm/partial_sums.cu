// The second stage of dgamma and dbeta, for all backward steps: columns of partial sums.
#include "row_sums.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"

namespace layernorm {
namespace {

constexpr int kBlockCols = 32;  // columns of a block: a warp reads 128 bytes of a row of sums
constexpr int kGroups = 16;     // of rows: as many warps share them

template <class T>
__global__ void sum_columns(const float* dgamma_sums,  // [count][cols]
                            const float* dbeta_sums,   // [count][cols]
                            T* dgamma,                 // [cols], or null
                            T* dbeta,                  // [cols], or null
                            std::int64_t count, std::int64_t cols) {
  __shared__ float groups_smem[2][kGroups][kBlockCols];
  const std::int64_t col = std::int64_t{blockIdx.x} * kBlockCols + threadIdx.x;
  const int group = static_cast<int>(threadIdx.y);

  float of_dgamma = 0, of_dbeta = 0;
  if (col < cols) {
    for (std::int64_t i = group; i < count; i += kGroups) {
      if (dgamma) of_dgamma += dgamma_sums[i * cols + col];
      if (dbeta) of_dbeta += dbeta_sums[i * cols + col];
    }
  }
  groups_smem[0][group][threadIdx.x] = of_dgamma;
  groups_smem[1][group][threadIdx.x] = of_dbeta;
  __syncthreads();  // the sums of all groups are there
  if (group > 1 || col >= cols) return;
  // One warp for dgamma, one for dbeta.
  T* result = group == 0 ? dgamma : dbeta;
  if (!result) return;
  float sum = 0;
  for (int i = 0; i < kGroups; ++i) sum += groups_smem[group][i][threadIdx.x];
  result[col] = static_cast<T>(sum);
}

}  // namespace

tile::Status sum_partial_sums(const BackwardProblem& p, const BackwardBuffers& b,
                              std::int64_t count, void* stream) {
  if (!b.dgamma && !b.dbeta) return {};
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("cols", p.cols, kBlockCols, &blocks));
  const auto* dgamma_sums = static_cast<const float*>(b.workspace);
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(sum_columns<T>, "sum_columns", blocks, dim3(kBlockCols, kGroups), 0, stream,
                        dgamma_sums, dgamma_sums + count * p.cols, static_cast<T*>(b.dgamma),
                        static_cast<T*>(b.dbeta), count, p.cols);
  });
}

}  // namespace layernorm
