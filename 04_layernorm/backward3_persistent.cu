// Step 6: backward, a block walks over its rows.
// Idea: a thread that stays with its columns for many rows keeps their sums of dgamma and dbeta in
//       registers. Each block adds up its rows while it computes their dx, and writes its sums
//       once.
// Change: three tensors move, and no more. The grid has as many blocks as the card holds; while a
//         block works on a row, cp.async brings the next two. Rows of up to 1,024 elements are a
//         warp's, which then waits for nobody.
// Limit: memory, for rows of up to 8,192 elements, or 16,384 of 2 bytes. Longer ones, and rows that
//        no instruction of 16 bytes can read, go the way of step 5.
#include "layernorm.cuh"
#include "partial_sums.cuh"
#include "persistent.cuh"

namespace layernorm {
namespace {

// snippet-begin kernel
template <class T, class Way>
__global__ void __launch_bounds__(Way::kMostThreads)
    layernorm_backward_persistent(Arguments<T> a, PartialSums sums) {  // [gridDim.x][cols], twice
  using Queue = RowQueue<T, Way::kAhead>;
  using Part = typename Queue::Part;
  extern __shared__ __align__(16) unsigned char rows_smem[];  // of the queue
  // Two of them: a warp that is a row ahead must not write where a slow one still reads. Two rows
  // ahead it cannot be, because of the barrier in between.
  __shared__ RowSums sums_smem[2][Way::kMostThreads / tile::kWarp];
  const tile::ChunkColumns<Part::kChunkWidth> place{static_cast<int>(threadIdx.x),
                                             static_cast<int>(blockDim.x)};
  const int cols = static_cast<int>(a.cols);

  Queue queue(a, 0, cols, place, rows_smem, blockIdx.x, gridDim.x);
  RowWalk<T> dx(a.dx, blockIdx.x, gridDim.x);
  const Gamma<Part> gamma(a, 0, cols, place);
  ColumnSums<Part> columns;
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    backward_row<Way::kKeeps>(
        a, queue.next(a), gamma, columns, dx.next(), cols, place,
        [&](RowSums own) { return tile::reduce_block(own, AddRowSums{}, sums_smem[turn]); });
  }
  columns.store(sums, blockIdx.x, a.cols, 0, cols, place);
}
// snippet-end kernel

constexpr int kWarps = Keeping::kMostThreads / tile::kWarp;  // each with rows of its own
constexpr int kLongestOfWarp = tile::kWarp * kElements;

// snippet-begin warps
template <class T>
__global__ void __launch_bounds__(Keeping::kMostThreads)
    layernorm_backward_warps(Arguments<T> a, PartialSums sums) {  // [gridDim.x][cols], twice
  using Queue = RowQueue<T, Keeping::kAhead>;
  using Part = typename Queue::Part;
  extern __shared__ __align__(16) unsigned char rows_smem[];  // [kWarps] queues, then the sums
  const int lane = static_cast<int>(threadIdx.x) % tile::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / tile::kWarp;
  const tile::ChunkColumns<Part::kChunkWidth> place{lane, tile::kWarp};
  const int cols = static_cast<int>(a.cols);
  const std::int64_t first = std::int64_t{blockIdx.x} * kWarps + warp;
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;

  Queue queue(a, 0, cols, place, rows_smem + warp * Queue::bytes(tile::kWarp), first, stride);
  RowWalk<T> dx(a.dx, first, stride);
  const Gamma<Part> gamma(a, 0, cols, place);
  ColumnSums<Part> columns;
  for (std::int64_t row = first; row < a.rows; row += stride) {
    backward_row<Keeping::kKeeps>(a, queue.next(a), gamma, columns, dx.next(), cols, place,
                                  [](RowSums own) { return reduce_lanes(own, AddRowSums{}); });
  }

  // The warps' sums are added up here, so that the second stage has one of each block to read.
  tile::ptx::cp_async_wait_all();  // also copies of rows that do not exist: they write zeros
  __syncthreads();                 // no warp reads its rows any more
  const PartialSums of_warps(rows_smem, cols, kWarps);
  columns.store(of_warps, warp, cols, 0, cols, place);
  __syncthreads();  // the sums of all warps are there
  for (int col = static_cast<int>(threadIdx.x); col < cols; col += Keeping::kMostThreads) {
    float dgamma = 0, dbeta = 0;
    for (int i = 0; i < kWarps; ++i) {
      dgamma += of_warps.dgamma[i * cols + col];
      dbeta += of_warps.dbeta[i * cols + col];
    }
    sums.dgamma[blockIdx.x * a.cols + col] = dgamma;
    sums.dbeta[blockIdx.x * a.cols + col] = dbeta;
  }
}
// snippet-end warps

/// One block on each multiprocessor.
template <class T>
tile::Status launch_warps(const Problem& problem, const Buffers& buffers, const Arguments<T>& a,
                          cudaStream_t stream) {
  int multiprocessors = 0;
  if (tile::Status s = tile::count_multiprocessors(&multiprocessors); !s.ok()) return s;
  const auto blocks = std::min(
      {std::int64_t{multiprocessors}, (a.rows + kWarps - 1) / kWarps, most_partial_sums(a.cols)});
  const PartialSums sums(problem, buffers, blocks);
  const std::size_t shared_bytes =
      kWarps * std::max(RowQueue<T, Keeping::kAhead>::bytes(tile::kWarp),
                        2 * kLongestOfWarp * sizeof(float));
  if (tile::Status s = tile::allow_shared_bytes(layernorm_backward_warps<T>, shared_bytes);
      !s.ok()) {
    return s;
  }
  layernorm_backward_warps<T>
      <<<static_cast<unsigned>(blocks), Keeping::kMostThreads, shared_bytes, stream>>>(a, sums);
  if (tile::Status s = tile::launch_status("layernorm_backward_warps"); !s.ok()) return s;
  return sum_partial_sums(problem, buffers, sums, stream);
}

template <class Way, class T>
tile::Status launch_blocks(const Problem& problem, const Buffers& buffers, const Arguments<T>& a,
                           const RowShare& share, cudaStream_t stream) {
  const auto blocks = std::min({std::int64_t{share.blocks}, a.rows, most_partial_sums(a.cols)});
  const PartialSums sums(problem, buffers, blocks);
  if (tile::Status s =
          tile::allow_shared_bytes(layernorm_backward_persistent<T, Way>, share.shared_bytes);
      !s.ok()) {
    return s;
  }
  layernorm_backward_persistent<T, Way>
      <<<static_cast<unsigned>(blocks), share.threads, share.shared_bytes, stream>>>(a, sums);
  if (tile::Status s = tile::launch_status("layernorm_backward_persistent"); !s.ok()) return s;
  return sum_partial_sums(problem, buffers, sums, stream);
}

}  // namespace

tile::Status persistent(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = backward_only(problem); !s.ok()) return s;
  RowShare keeping{}, computing{};
  if (tile::Status s = share_of_row<Keeping>(problem, buffers, 1, &keeping); !s.ok()) return s;
  if (tile::Status s = share_of_row<Recomputing>(problem, buffers, 1, &computing); !s.ok()) {
    return s;
  }
  if (!keeping.fits && !computing.fits) return two_stage(problem, buffers, stream);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  return with_arguments(problem, buffers, [&]<class T>(const Arguments<T>& a) -> tile::Status {
    if (a.rows == 0) return write_zeros(problem, buffers, stream);
    if (a.cols <= kLongestOfWarp) return launch_warps(problem, buffers, a, cuda_stream);
    if (keeping.fits) {
      return launch_blocks<Keeping>(problem, buffers, a, keeping, cuda_stream);
    }
    if constexpr (Recomputing::has<T>()) {
      return launch_blocks<Recomputing>(problem, buffers, a, computing, cuda_stream);
    }
    return {};  // such rows do not fit
  });
}

}  // namespace layernorm
