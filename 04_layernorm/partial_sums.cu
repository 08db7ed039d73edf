// The second stage of dgamma and dbeta, for all backward steps: columns of partial sums.
#include "column_sums.hpp"
#include "row_sums.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"

namespace layernorm {
namespace {

constexpr int kWarps = 32;  // of a block, each with 128 bytes of a row of sums at a time

template <class T>
__global__ void sum_columns(ColumnSums sums,
                            T* dgamma,  // [cols], or null
                            T* dbeta,   // [cols], or null
                            std::int64_t cols,
                            int groups) {  // warps that share the rows of 32 columns
  __shared__ float groups_smem[2][kWarps][tile::kWarp];
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const int group = warp % groups, first_warp = warp - group;
  const std::int64_t col =
      (std::int64_t{blockIdx.x} * (kWarps / groups) + warp / groups) * tile::kWarp + lane;

  float of_dgamma = 0, of_dbeta = 0;
  if (col < cols) {
    for (std::int64_t i = group; i < sums.count; i += groups) {
      const std::int64_t at = i * sums.ld + (sums.leads ? sums.leads[i] : 0) + col;
      if (dgamma) of_dgamma += sums.dgamma[at];
      if (dbeta) of_dbeta += sums.dbeta[at];
    }
  }
  groups_smem[0][warp][lane] = of_dgamma;
  groups_smem[1][warp][lane] = of_dbeta;
  __syncthreads();  // the sums of all groups are there
  if (col >= cols) return;
  for (int which = group; which < 2; which += groups) {  // the first warp or two of the groups
    T* result = which == 0 ? dgamma : dbeta;
    if (!result) continue;
    float sum = 0;
    for (int i = 0; i < groups; ++i) sum += groups_smem[which][first_warp + i][lane];
    result[col] = static_cast<T>(sum);
  }
}

}  // namespace

tile::Status sum_partial_sums(const BackwardProblem& p, const BackwardBuffers& b,
                              const ColumnSums& sums, void* stream) {
  if (!b.dgamma && !b.dbeta) return {};
  // A warp has eight rows or more to add up, if there are warps enough for two blocks on each
  // multiprocessor.
  int groups = kWarps;
  const std::int64_t warps = (p.cols + tile::kWarp - 1) / tile::kWarp;
  while (groups > 1 && sums.count < 8 * groups &&
         warps * groups / 2 >= 2 * kWarps * tile::device().multiprocessors) {
    groups /= 2;
  }
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("cols", p.cols, kWarps / groups * tile::kWarp, &blocks));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(sum_columns<T>, "sum_columns", blocks, dim3(tile::kWarp, kWarps), 0, stream,
                        sums, static_cast<T*>(b.dgamma), static_cast<T*>(b.dbeta), p.cols, groups);
  });
}

tile::Status sum_partial_sums(const BackwardProblem& p, const BackwardBuffers& b,
                              std::int64_t count, void* stream) {
  auto* sums = static_cast<float*>(b.workspace);
  return sum_partial_sums(p, b, {sums, sums + count * p.cols, count, p.cols, nullptr}, stream);
}

}  // namespace layernorm
