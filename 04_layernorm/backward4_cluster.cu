// Backward, step 4: a row in the shared memory of several blocks.
// Idea: as in the forward pass, the blocks of a cluster share a row that is too long for one of
//       them, and exchange their sums through distributed shared memory.
// Change: a cluster walks over its rows as a block of step 3 does. Each of its blocks has a part of
//         the columns, and the first one also the elements of a chunk before the row.
// Limit: memory, for rows that 16 blocks hold.
#include "layernorm_backward.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"

namespace layernorm {
namespace {

/// Threads of a block at most. Each needs 64 registers for its sums of dgamma and dbeta, and 16 or
/// 32 for gamma. With 256 threads on a multiprocessor it has 64 more, for w and xhat of a row.
constexpr int kMaxThreads = 256;
constexpr int kRowsAhead = 2;

template <class T, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads)
    layernorm_backward_cluster(tile::Rows<const T> x,   // [rows][cols]
                               tile::Rows<const T> dy,  // [rows][cols]
                               const T* gamma,          // [cols], or null: all ones
                               const float* mean,       // [rows], or null: zeros
                               const float* rstd,       // [rows]
                               tile::Rows<T> dx,        // [rows][cols]
                               float* dgamma_sums,      // [partial sums][cols]
                               float* dbeta_sums,       // [partial sums][cols]
                               std::int64_t rows, std::int64_t all_cols,
                               float per_col) {  // 1 / cols
  using Queue = RowQueue<T, kRowsAhead, kThreadElements, kWhole>;
  using Slices = typename Queue::Slices;
  extern __shared__ __align__(16) unsigned char smem[];  // of the queue
  // Two of them: a warp that is a row ahead must not write where a slow one still reads. It cannot
  // be two rows ahead, because of the barrier in between.
  __shared__ RowSums sums_smem[2][tile::kMaxBlocksOfCluster * kMaxThreads / tile::kWarp];
  tile::ptx::cluster_arrive();  // this block has begun: others may write into its sums
  // Who am I? A thread of a block that has some columns of the cluster's rows.
  const tile::ChunkColumns<Slices::kWidth> columns{static_cast<int>(threadIdx.x),
                                                   static_cast<int>(blockDim.x)};
  const int most = columns.threads * kThreadElements;
  // The first block of a cluster has what lies before the row. All rows of a thread begin alike.
  const int before = kWhole ? 0 : tile::misalignment(x[blockIdx.x / tile::ptx::cluster_size()]);
  const int lead = tile::ptx::cluster_rank() == 0 ? before : 0;
  const std::int64_t first_col = std::int64_t{tile::ptx::cluster_rank()} * most + lead - before;
  const std::int64_t left = all_cols - first_col, room = most - lead;
  const auto cols = static_cast<int>(left < 0 ? 0 : left < room ? left : room);
  const std::int64_t stride = gridDim.x / tile::ptx::cluster_size();
  const std::int64_t first = blockIdx.x / tile::ptx::cluster_size();

  x.data += first_col, dy.data += first_col, dx.data += first_col;
  Queue queue{x[first] - lead, dy[first] - lead, stride * x.ld, stride * dy.ld, mean, rstd, rows,
              first,           stride,           lead + cols,   columns,        smem};
  queue.start();
  ThreadColumns<T, kThreadElements, kWhole> mine(gamma ? gamma + first_col : nullptr, cols, columns,
                                                 lead);
  T* dx_row = dx[first] - lead;
  const std::int64_t dx_step = stride * dx.ld;
  tile::ptx::cluster_wait();  // all blocks have begun
  unsigned turn = 0;
  for (std::int64_t row = first; row < rows; row += stride, ++turn) {
    const Slices slices = queue.next();
    T* to = dx_row;
    dx_row += dx_step;
    // dgamma += dy xhat, dbeta += dy, and the sums of w = gamma dy and of w xhat over the row
    float w[slices.kChunks][slices.kWidth], xhat[slices.kChunks][slices.kWidth];
    RowSums sums = mine.add(slices, w, xhat);
    sums = tile::reduce_cluster(sums, AddRowSums{}, sums_smem[turn % 2]);
    // dx = rstd (w - mean of w - xhat mean of w xhat)
    mine.template write_dx<true>(slices, w, xhat, sums, per_col, mean != nullptr, lead, lead + cols,
                                 to);
  }
  dgamma_sums += first * all_cols + first_col;
  dbeta_sums += first * all_cols + first_col;
  mine.write_sums(dgamma_sums, dbeta_sums, columns, cols, lead);
}

/// How the blocks of a cluster share their rows.
struct ClusterPlan {
  bool fits;
  int threads;  // of a block
  unsigned blocks;
  std::int64_t shared_bytes;  // of a block
};

ClusterPlan plan_of(const BackwardProblem& p, const tile::Device& device) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type)), width = 16 / element;
  const std::int64_t chunks = (p.cols + row_starts(p).lead + width - 1) / width;
  for (unsigned blocks = 2; blocks <= tile::kMaxBlocksOfCluster; blocks *= 2) {
    const std::int64_t cols = (chunks + blocks - 1) / blocks * width;
    const std::int64_t threads = (cols + kThreadElements * 32 - 1) / (kThreadElements * 32) * 32;
    const std::int64_t bytes = 2 * (kRowsAhead + 1) * threads * kThreadElements * element;
    if (threads > kMaxThreads || bytes + BlockPlan::kStaticBytes > device.shared_bytes_of_block)
      continue;
    return {true, static_cast<int>(threads), blocks, bytes};
  }
  return {};
}

}  // namespace

tile::Status takes_cluster(const BackwardProblem& p, const BackwardBuffers& b,
                           const tile::Device& device) {
  TILE_TRY(check_rows_begin_alike(p, b));
  if (fits_block(p, b, device)) {
    return tile::unsupported("cols", std::to_string(p.cols) + " fit into a block");
  }
  const ClusterPlan plan = plan_of(p, device);
  if (!plan.fits) {
    return tile::unsupported("cols", std::to_string(p.cols) + " are more than a cluster holds");
  }
  // The clusters are a multiple of the ways in which rows begin. Of 8 blocks 15 clusters fit on an
  // H200, so there would be 8: measured there, step 5 is as fast or faster.
  if (row_starts(p).period * plan.blocks <= 32) return {};
  return tile::unsupported("cols", std::to_string(p.cols) + " leave too few clusters");
}

tile::Status cluster(const BackwardProblem& p, const BackwardBuffers& b, void* stream) {
  if (p.rows == 0) return sum_partial_sums(p, b, 0, stream);
  const ClusterPlan plan = plan_of(p, tile::device());
  const auto bytes = static_cast<std::size_t>(plan.shared_bytes);
  auto* sums = static_cast<float*>(b.workspace);
  std::int64_t clusters = 0;
  const auto launch_of_type = [&](auto element) -> tile::Status {
    using T = decltype(element);
    const auto launch = [&](auto* kernel) -> tile::Status {
      int fit = 0;
      TILE_TRY(tile::clusters_at_once(kernel, "layernorm_backward_cluster", plan.threads,
                                      plan.blocks, bytes, &fit));
      clusters = persistent_count(p, std::min<std::int64_t>(fit, max_partial_sums(p.cols)), 1);
      return tile::launch_in_clusters(
          kernel, "layernorm_backward_cluster", static_cast<unsigned>(clusters) * plan.blocks,
          plan.threads, plan.blocks, bytes, stream,
          tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
          tile::Rows<const T>{static_cast<const T*>(b.dy), p.lddy}, static_cast<const T*>(b.gamma),
          b.mean, b.rstd, tile::Rows<T>{static_cast<T*>(b.dx), p.lddx}, sums,
          sums + clusters * p.cols, p.rows, p.cols,
          static_cast<float>(1 / static_cast<double>(p.cols)));
    };
    return check_chunks(p, b).ok() ? launch(layernorm_backward_cluster<T, true>)
                                   : launch(layernorm_backward_cluster<T, false>);
  };
  TILE_TRY(tile::with_element_type(p.type, launch_of_type));
  return sum_partial_sums(p, b, clusters, stream);
}

}  // namespace layernorm
