// Step 8: a row in the shared memory of several blocks.
// Idea: as in chapter 03, the blocks of a cluster share a row that is too long for one of them, and
//       exchange their sums through distributed shared memory.
// Change: forward a block has a share of the columns (chapter 03, step 7); backward a cluster walks
//         over its rows like a block of step 6. Rows that fit into one block are those of steps
//         3, 6 and 7.
// Limit: memory, for rows that 16 blocks hold. Longer ones go the way of steps 2 and 5.
#include "layernorm.cuh"
#include "partial_sums.cuh"
#include "persistent.cuh"
#include "tile/cluster.cuh"
#include "tile/cluster.cuh"

namespace layernorm {
namespace {

/// A block's share of the columns: `most` of them, or what is left.
struct Columns {
  std::int64_t first;
  int cols;

  __device__ Columns(std::int64_t all, int most)
      : first(std::int64_t{tile::ptx::cluster_rank()} * most) {
    const std::int64_t left = all - first;
    cols = static_cast<int>(left < 0 ? 0 : left < most ? left : most);
  }
};

constexpr int kForwardThreads = 512;  // two blocks or more on a multiprocessor
constexpr int kForwardChunks = 8;     // of a thread

// snippet-begin forward
template <class T>
__global__ void __launch_bounds__(kForwardThreads) layernorm_cluster(Arguments<T> a) {
  using Part = tile::SharedSlice<T, kForwardChunks>;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a share of a row of x
  __shared__ float sum_smem[tile::kMostWarpsOfCluster], squares_smem[tile::kMostWarpsOfCluster];
  tile::ptx::cluster_arrive();  // this block has begun: others may write into its sums
  const tile::ChunkColumns<Part::kChunkWidth> place{static_cast<int>(threadIdx.x),
                                             static_cast<int>(blockDim.x)};
  const std::int64_t row = blockIdx.x / tile::ptx::cluster_size();
  const Columns share(a.cols, place.threads * kForwardChunks * Part::kChunkWidth);

  Words<Part> x(Part(a.x[row] + share.first, share.cols, place, 0, row_smem));
  tile::ptx::cp_async_wait_all();
  tile::ptx::cluster_wait();  // all blocks have begun
  float mean = 0;
  if (a.centred) {
    mean = tile::reduce_cluster(x.sum(), tile::Add{}, sum_smem) * a.per_col;
  }
  const float rstd =
      a.rstd_of(tile::reduce_cluster(x.centre(mean, share.cols), tile::Add{}, squares_smem));
  store_part<Part>(x, a, a.y[row], share.first, share.cols, rstd, place);
  if (threadIdx.x == 0 && share.first == 0) a.save(row, mean, rstd);
}
// snippet-end forward

template <class T>
__global__ void __launch_bounds__(Keeping::kMostThreads)
    layernorm_backward_cluster(Arguments<T> a, PartialSums sums) {  // [clusters][cols], twice
  using Queue = RowQueue<T, Keeping::kAhead>;
  using Part = typename Queue::Part;
  extern __shared__ __align__(16) unsigned char rows_smem[];  // of the queue
  // Two of them, as in step 6.
  __shared__ RowSums sums_smem[2][tile::kMostBlocksOfCluster * Keeping::kMostThreads / tile::kWarp];
  tile::ptx::cluster_arrive();  // this block has begun: others may write into its sums
  const tile::ChunkColumns<Part::kChunkWidth> place{static_cast<int>(threadIdx.x),
                                             static_cast<int>(blockDim.x)};
  const Columns share(a.cols, place.threads * kElements);
  const std::int64_t clusters = gridDim.x / tile::ptx::cluster_size();
  const std::int64_t cluster = blockIdx.x / tile::ptx::cluster_size();

  Queue queue(a, share.first, share.cols, place, rows_smem, cluster, clusters);
  RowWalk<T> dx({a.dx.data + share.first, a.dx.ld}, cluster, clusters);
  const Gamma<Part> gamma(a, share.first, share.cols, place);
  ColumnSums<Part> columns;
  tile::ptx::cluster_wait();  // all blocks have begun
  int turn = 0;
  for (std::int64_t row = cluster; row < a.rows; row += clusters, turn ^= 1) {
    backward_row<Keeping::kKeeps>(
        a, queue.next(a), gamma, columns, dx.next(), share.cols, place,
        [&](RowSums own) { return tile::reduce_cluster(own, AddRowSums{}, sums_smem[turn]); });
  }
  columns.store(sums, cluster, a.cols, share.first, share.cols, place);
}

tile::Status forward(const Problem& problem, const Buffers& buffers, void* stream) {
  const std::int64_t width = 16 / static_cast<std::int64_t>(tile::size_bytes(problem.type));
  const std::int64_t chunks = problem.cols / width;
  constexpr std::int64_t kMost = kForwardThreads * kForwardChunks;
  unsigned blocks_of_row = 1;
  while (blocks_of_row < tile::kMostBlocksOfCluster && chunks > blocks_of_row * kMost) {
    blocks_of_row *= 2;
  }
  if (!vectors_fit(problem, buffers) || chunks > blocks_of_row * kMost) {
    return welford(problem, buffers, stream);
  }
  const std::int64_t most = (chunks + blocks_of_row - 1) / blocks_of_row;
  const auto threads =
      static_cast<int>((most + kForwardChunks * 32 - 1) / (kForwardChunks * 32) * 32);
  return with_arguments(problem, buffers, [&]<class T>(const Arguments<T>& a) -> tile::Status {
    unsigned blocks = 0;
    if (tile::Status s = tile::blocks_for("rows", a.rows * blocks_of_row, 1, &blocks); !s.ok()) {
      return s;
    }
    return tile::launch_in_clusters(layernorm_cluster<T>, "layernorm_cluster", blocks, threads,
                                    blocks_of_row,
                                    tile::SharedSlice<T, kForwardChunks>::bytes(threads), stream, a);
  });
}

tile::Status backward(const Problem& problem, const Buffers& buffers, void* stream) {
  RowShare share{};
  if (tile::Status s = share_of_row<Recomputing>(problem, buffers, 1, &share); !s.ok()) return s;
  if (share.fits) return persistent(problem, buffers, stream);
  unsigned blocks_of_row = 1;
  if (tile::Status s = share_of_row<Keeping>(problem, buffers, blocks_of_row, &share); !s.ok()) {
    return s;
  }
  while (!share.fits && blocks_of_row < tile::kMostBlocksOfCluster) {
    blocks_of_row *= 2;
    if (tile::Status s = share_of_row<Keeping>(problem, buffers, blocks_of_row, &share); !s.ok()) {
      return s;
    }
  }
  if (!share.fits || blocks_of_row == 1) return persistent(problem, buffers, stream);
  return with_arguments(problem, buffers, [&]<class T>(const Arguments<T>& a) -> tile::Status {
    if (a.rows == 0) return write_zeros(problem, buffers, stream);
    int fit = 0;
    if (tile::Status s =
            tile::clusters_at_once(layernorm_backward_cluster<T>, "layernorm_backward_cluster",
                                   share.threads, blocks_of_row, share.shared_bytes, &fit);
        !s.ok()) {
      return s;
    }
    const std::int64_t clusters = std::min({std::int64_t{fit}, a.rows, most_partial_sums(a.cols)});
    const PartialSums sums(problem, buffers, clusters);
    if (tile::Status s =
            tile::launch_in_clusters(layernorm_backward_cluster<T>, "layernorm_backward_cluster",
                                     static_cast<unsigned>(clusters) * blocks_of_row, share.threads,
                                     blocks_of_row, share.shared_bytes, stream, a, sums);
        !s.ok()) {
      return s;
    }
    return sum_partial_sums(problem, buffers, sums, stream);
  });
}

}  // namespace

tile::Status cluster(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = validate(problem, buffers); !s.ok()) return s;
  if (problem.direction == tile::Direction::backward) return backward(problem, buffers, stream);
  return forward_plan(problem, buffers).fits ? four_rows(problem, buffers, stream)
                                             : forward(problem, buffers, stream);
}

}  // namespace layernorm
