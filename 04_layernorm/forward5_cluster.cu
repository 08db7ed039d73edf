// Forward, step 5: a row in the shared memory of several blocks.
// Idea: as in chapter 03, the blocks of a cluster share a row that is too long for one of them, and
//       exchange their sums through distributed shared memory.
// Change: from step 3, a block has a part of the columns, in shared memory and not in registers.
// Limit: memory, for rows that 16 blocks hold.
#include "layernorm.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"
#include "tile/shared_slice.cuh"

namespace layernorm {
namespace {

constexpr int kMaxThreads = 512;  // two blocks or more on a multiprocessor
constexpr int kChunks = 8;        // of a thread
constexpr int kMaxChunks = kMaxThreads * kChunks;

template <class T>
__global__ void __launch_bounds__(kMaxThreads)
    layernorm_cluster(tile::Rows<const T> x,  // [rows][cols]
                      const T* gamma,         // [cols], or null: all ones
                      const T* beta,          // [cols], or null: all zeros
                      tile::Rows<T> y,        // [rows][cols]
                      float* mean,            // [rows], or null
                      float* rstd,            // [rows], or null
                      std::int64_t cols,
                      float per_col,  // 1 / cols: a division takes ten instructions
                      float eps,
                      bool centred) {  // RMSNorm is not: its mean is 0
  using Slice = tile::SharedSlice<T, kChunks>;
  extern __shared__ __align__(16) unsigned char row_smem[];  // this block's columns of a row of x
  __shared__ float sum_smem[tile::kMaxWarpsOfCluster], squares_smem[tile::kMaxWarpsOfCluster];
  tile::ptx::cluster_arrive();  // this block has begun: others may write into its sums
  const tile::ChunkColumns<Slice::kChunkWidth> columns{static_cast<int>(threadIdx.x),
                                                       static_cast<int>(blockDim.x)};
  const std::int64_t row = blockIdx.x / tile::ptx::cluster_size();
  // As many columns as its threads have chunks for, or what is left.
  const int most = columns.threads * kChunks * Slice::kChunkWidth;
  const std::int64_t first = std::int64_t{tile::ptx::cluster_rank()} * most;
  const std::int64_t left = cols - first;
  const auto block_cols = static_cast<int>(left < 0 ? 0 : left < most ? left : most);

  const float origin = centred ? static_cast<float>(x[row][0]) : 0;
  SliceValues<Slice, true> values(Slice(x[row] + first, block_cols, columns, 0, row_smem), origin);
  tile::ptx::cp_async_wait_all();
  tile::ptx::cluster_wait();  // all blocks have begun
  // mean = x_0 + sum (x - x_0) / n; row_mean is the second term
  float row_mean = 0;
  if (centred) {
    row_mean = tile::reduce_cluster(values.sum(block_cols), tile::Add{}, sum_smem) * per_col;
  }
  // rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
  const float squares =
      tile::reduce_cluster(values.centre(row_mean, block_cols), tile::Add{}, squares_smem);
  const float row_rstd = rsqrtf(squares * per_col + eps);
  // y = gamma xhat + beta
  values.store(gamma ? gamma + first : nullptr, beta ? beta + first : nullptr, y[row] + first,
               row_rstd, block_cols);
  if (threadIdx.x != 0 || first != 0) return;
  if (mean) mean[row] = origin + row_mean;
  if (rstd) rstd[row] = row_rstd;
}

std::int64_t chunks_of(const ForwardProblem& p) {
  return p.cols * static_cast<std::int64_t>(tile::size_bytes(p.type)) / 16;
}

}  // namespace

tile::Status takes_cluster(const ForwardProblem& p, const ForwardBuffers& b, const tile::Device&) {
  TILE_TRY(check_chunks(p, b));
  if (register_plan(p, b).fits) {
    return tile::unsupported("cols", std::to_string(p.cols) + " fit into a block's registers");
  }
  if (chunks_of(p) <= tile::kMaxBlocksOfCluster * kMaxChunks) return {};
  return tile::unsupported("cols", std::to_string(p.cols) + " are more than a cluster holds");
}

tile::Status cluster(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  unsigned blocks_of_row = 1;
  while (chunks_of(p) > blocks_of_row * kMaxChunks) blocks_of_row *= 2;
  const std::int64_t most = (chunks_of(p) + blocks_of_row - 1) / blocks_of_row;
  const auto threads = static_cast<int>((most + kChunks * 32 - 1) / (kChunks * 32) * 32);
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", p.rows * blocks_of_row, 1, &blocks));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch_in_clusters(
        layernorm_cluster<T>, "layernorm_cluster", blocks, threads, blocks_of_row,
        tile::SharedSlice<T, kChunks>::bytes(threads), stream,
        tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx}, static_cast<const T*>(b.gamma),
        static_cast<const T*>(b.beta), tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, b.mean, b.rstd,
        p.cols, static_cast<float>(1 / static_cast<double>(p.cols)), p.eps, p.norm == Norm::layer);
  });
}

}  // namespace layernorm
