// Step 7: a row in the shared memory of several blocks.
// Idea: the blocks of a cluster run at the same time on neighbouring multiprocessors and write into
//       each other's shared memory. A row too long for one block is shared by up to 16 of them.
// Change: a block has a share of the columns, and the reduction goes over the cluster
//         (tile/cluster.cuh). Rows that fit into one block are step 6's.
// Limit: memory, at the speed of a copy, for rows that the shared memory of 16 blocks holds. Longer
//        ones go the way of step 6.
#include "parts.cuh"
#include "shares.cuh"
#include "tile/cluster.cuh"
#include "tile/cluster.cuh"

namespace softmax {
namespace {

// snippet-begin kernel
template <class T, int kChunks, bool kPlain>
__global__ void __launch_bounds__(tile::kMaxThreadsPerBlock)
    softmax_cluster(tile::Rows<const T> x,  // [rows][cols]
                    tile::Rows<T> y,        // [rows][cols]
                    Options options) {
  using Part = tile::SharedSlice<T, kChunks>;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a share of a row of x
  __shared__ tile::MaxSum seen_smem[tile::kMostWarpsOfCluster];
  tile::ptx::cluster_arrive();  // this block has begun: others may write into seen_smem
  const auto place = tile::columns_in_cluster<Part::kChunkWidth>();
  const auto in_block = tile::columns_in_block<Part::kChunkWidth>();
  const std::int64_t row = blockIdx.x / tile::ptx::cluster_size();
  const Columns columns = columns_of_row<kPlain>(options, row);

  const Part part(x[row], columns.visible, place, -INFINITY, row_smem, in_block);
  tile::ptx::cp_async_wait_all();
  const tile::MaxSum own = reduce_part<kPlain>(part, columns, options);
  tile::ptx::cluster_wait();  // all blocks have begun
  const tile::MaxSum seen = tile::reduce_cluster(own, tile::MergeMaxSum{options.factor}, seen_smem);
  store_part<kPlain>(part, y[row], columns, seen, options);
}
// snippet-end kernel

template <class T, int kChunks, bool kPlain>
__global__ void __launch_bounds__(tile::kMaxThreadsPerBlock)
    softmax_backward_cluster(tile::Rows<const T> y,   // [rows][cols]
                             tile::Rows<const T> dy,  // [rows][cols]
                             tile::Rows<T> dx,        // [rows][cols]
                             Options options) {
  using Part = tile::SharedSlice<T, kChunks>;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a share of y, then one of dy
  __shared__ float sum_smem[tile::kMostWarpsOfCluster];
  tile::ptx::cluster_arrive();  // this block has begun: others may write into sum_smem
  const auto place = tile::columns_in_cluster<Part::kChunkWidth>();
  const auto in_block = tile::columns_in_block<Part::kChunkWidth>();
  const std::int64_t row = blockIdx.x / tile::ptx::cluster_size();
  const Columns columns = columns_of_row<kPlain>(options, row);
  const Gradient<kPlain> gradient(options);

  const Part y_part(y[row], columns.visible, place, 0, row_smem, in_block);
  const Part dy_part(dy[row], columns.visible, place, 0, row_smem + Part::bytes(in_block.threads),
                     in_block);
  tile::ptx::cp_async_wait_all();
  const float own = reduce_part<kPlain>(y_part, dy_part, columns, gradient);
  tile::ptx::cluster_wait();  // all blocks have begun
  const float sum = tile::reduce_cluster(own, tile::Add{}, sum_smem);
  store_part<kPlain>(y_part, dy_part, dx[row], columns, sum, gradient);
}

}  // namespace

tile::Status cluster(const Problem& problem, const Buffers& buffers, void* stream) {
  unsigned blocks_of_row = 1;
  Share share{};
  if (tile::Status s = share_of_block(problem, buffers, blocks_of_row, &share); !s.ok()) return s;
  while (!share.fits && blocks_of_row < tile::kMostBlocksOfCluster) {
    blocks_of_row *= 2;
    if (tile::Status s = share_of_block(problem, buffers, blocks_of_row, &share); !s.ok()) return s;
  }
  if (!share.fits || blocks_of_row == 1) return shared(problem, buffers, stream);
  return launch_on_rows(problem, buffers, 1, [&]<class T>(const Arguments<T>& a, unsigned rows) {
    return with_share(share, [&](auto chunks, auto plain) -> tile::Status {
      unsigned blocks = 0;
      if (tile::Status s = tile::blocks_for("rows", std::int64_t{rows} * blocks_of_row, 1, &blocks);
          !s.ok())
        return s;

      constexpr int kChunks = chunks;
      constexpr bool kPlain = plain;
      if (problem.direction == tile::Direction::forward) {
        return tile::launch_in_clusters(softmax_cluster<T, kChunks, kPlain>, "softmax_cluster",
                                        blocks, share.threads, blocks_of_row, share.shared_bytes,
                                        stream, a.x, a.y, a.options);
      }
      return tile::launch_in_clusters(
          softmax_backward_cluster<T, kChunks, kPlain>, "softmax_backward_cluster", blocks,
          share.threads, blocks_of_row, share.shared_bytes, stream, a.y_in, a.dy, a.dx, a.options);
    });
  });
}

}  // namespace softmax
