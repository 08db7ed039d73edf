// Step 6: backward, a block walks over its rows.
// Idea: a thread that stays with its columns for many rows keeps their sums of dgamma and dbeta in
//       registers. Each block adds up its rows while it computes their dx, and writes its sums
//       once.
// Change: three tensors move, and no more. The grid has as many blocks as the card holds; while a
//         block works on a row, cp.async brings the next two inputs to shared memory.
// Limit: memory, for rows of up to 8,192 elements. Longer ones, and rows that no instruction of 16
//        bytes can read, go the way of step 5.
#include "layernorm.cuh"
#include "partial_sums.cuh"
#include "persistent.cuh"

namespace layernorm {
namespace {

// snippet-begin kernel
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    layernorm_backward_persistent(Arguments<T> a, PartialSums sums) {  // [gridDim.x][cols], twice
  using Part = tile::SharedPart<T, kChunks<T>>;
  extern __shared__ __align__(16) unsigned char rows_smem[];  // x and dy of two rows
  // Two of them: a warp that is a row ahead must not write where a slow one still reads. Two rows
  // ahead it cannot be, because of the barrier in between.
  __shared__ RowSums sums_smem[2][kMostThreads / tile::kWarp];
  const tile::Place<Part::kChunkWidth> place{static_cast<int>(threadIdx.x),
                                             static_cast<int>(blockDim.x)};
  const int cols = static_cast<int>(a.cols);
  auto fetch = [&](std::int64_t row, int turn) {
    unsigned char* x_smem = rows_smem + 2 * turn * Part::bytes(place.threads);
    const int exist = row < a.rows ? cols : 0;
    return RowParts<Part>{Part(a.x[row], exist, place, 0, x_smem),
                          Part(a.dy[row], exist, place, 0, x_smem + Part::bytes(place.threads)),
                          Statistics(a, row)};
  };

  const Gamma<Part> gamma(a, 0, cols, place);
  ColumnSums<Part> columns;
  RowParts<Part> next = fetch(blockIdx.x, 0);
  for (std::int64_t row = blockIdx.x, turn = 0; row < a.rows; row += gridDim.x, turn ^= 1) {
    const RowParts<Part> now = next;
    tile::ptx::cp_async_wait_all();
    next = fetch(row + gridDim.x, static_cast<int>(turn ^ 1));

    const RowSums own = columns.add(now, gamma, cols);
    const RowSums row_sums = tile::reduce_block(own, AddRowSums{}, sums_smem[turn]);
    store_dx(now, gamma, a.dx[row], 0, cols, GradientOfX(a, now.statistics.rstd, row_sums));
  }
  columns.store(sums, blockIdx.x, a.cols, 0, cols, place);
}
// snippet-end kernel

}  // namespace

tile::Status persistent(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = backward_only(problem); !s.ok()) return s;
  RowShare share{};
  if (tile::Status s = share_of_row(problem, buffers, 1, &share); !s.ok()) return s;
  if (!share.fits) return two_stage(problem, buffers, stream);
  return with_arguments(problem, buffers, [&]<class T>(const Arguments<T>& a) -> tile::Status {
    if (a.rows == 0) return write_zeros(problem, buffers, stream);
    const auto blocks = std::min({std::int64_t{share.blocks}, a.rows, most_partial_sums(a.cols)});
    const PartialSums sums(problem, buffers, blocks);
    if (tile::Status s =
            tile::allow_shared_bytes(layernorm_backward_persistent<T>, share.shared_bytes);
        !s.ok()) {
      return s;
    }
    layernorm_backward_persistent<T>
        <<<static_cast<unsigned>(blocks), share.threads, share.shared_bytes,
           static_cast<cudaStream_t>(stream)>>>(a, sums);
    if (tile::Status s = tile::launch_status("layernorm_backward_persistent"); !s.ok()) return s;
    return sum_partial_sums(problem, buffers, sums, stream);
  });
}

}  // namespace layernorm
