// Forward, step 6: a row split over the card.
// Idea: a row is cut into pieces of 16 KiB if no cluster holds it or if rows are too few to fill
//       the card. A block finds the moments of a piece. The block that comes last merges those of
//       the row's pieces, as step 2 merged those of its threads. Then blocks read the pieces again,
//       from the L2, to write y.
// Change: from step 5, the sums over a row are merged in global memory, as count, mean and
//         squares: a mean before the squares would be a second wait. Rows may begin anywhere
//         (tile/row_edges.cuh), and gamma and beta are shifted with them.
// Limit: memory, while the L2 has what is read twice; and the wait for the slowest piece of a row.
#include "moments.cuh"
#include "tile/host/launch.hpp"
#include "tile/host/split_plan.hpp"
#include "tile/host/tensor_argument.hpp"
#include "tile/ptx/semaphore.cuh"
#include "tile/row_edges.cuh"

namespace layernorm {
namespace {

/// What a block does: it reads a piece of a row and publishes what it found; or it reads the piece
/// again and writes the results.
struct SplitItem {
  std::int64_t row, piece;
  bool exists, writes;
};

/// Where blocks exchange moments, in global memory.
struct SplitRows {
  tile::SplitPlan plan;
  unsigned long long* taken;  // items; 0 when the kernel begins
  unsigned* arrived;          // [rows]: pieces found, and then 1 more for the result; 0 at first
  Moments* of_row;            // [rows]
  Moments* of_piece;          // [rows][pieces]

  // snippet-begin take
  /// Takes the next item. In whatever order blocks begin, the items are taken in the order of their
  /// numbers: what an item waits for was taken before it, by a block that has begun.
  __device__ __forceinline__ SplitItem take(SplitItem* item_smem) const {
    if (threadIdx.x == 0) {
      const auto ticket = static_cast<std::int64_t>(atomicAdd(taken, 1ull));
      const std::int64_t turn = ticket / (2 * plan.pieces), place = ticket % (2 * plan.pieces);
      const bool writes = place >= plan.pieces;
      const std::int64_t row = writes ? turn - plan.lag : turn;
      // From the last piece to the first, since the L2 has what was read last.
      const std::int64_t piece = writes ? 2 * plan.pieces - 1 - place : place;
      *item_smem = {row, piece, row >= 0 && row < plan.rows, writes};
    }
    __syncthreads();  // the item is there
    return *item_smem;
  }
  // snippet-end take

  // snippet-begin publish
  /// Publishes what the block found in its piece, moments that all its threads have. The last block
  /// to arrive merges them in the order of the pieces, so it does not matter which it is.
  __device__ __forceinline__ void publish(const SplitItem& item, Moments seen,
                                          Moments* partial_smem, bool* is_last_smem) const {
    Moments* found = of_piece + item.row * plan.pieces;
    if (threadIdx.x == 0) {
      found[item.piece] = seen;
      __threadfence();  // others see the moments before they see that they have arrived
      *is_last_smem = atomicAdd(&arrived[item.row], 1u) + 1 == plan.pieces;
      __threadfence();  // this block sees all of them
    }
    __syncthreads();  // whether this block is the last
    if (!*is_last_smem) return;
    const MergeMoments merge;
    Moments all = merge.identity();
    for (std::int64_t i = threadIdx.x; i < plan.pieces; i += blockDim.x) all = merge(all, found[i]);
    all = tile::reduce_block(all, merge, partial_smem);
    if (threadIdx.x != 0) return;
    of_row[item.row] = all;
    tile::ptx::semaphore_add(&arrived[item.row]);
  }

  /// The moments of the row.
  __device__ __forceinline__ Moments wait(const SplitItem& item) const {
    if (threadIdx.x == 0) {
      tile::ptx::semaphore_wait(&arrived[item.row], static_cast<unsigned>(plan.pieces) + 1);
    }
    __syncthreads();  // they are there
    return of_row[item.row];
  }
  // snippet-end publish
};

// snippet-begin kernel
template <class T>
__global__ void __launch_bounds__(tile::kSplitThreads)
    layernorm_split(tile::Rows<const T> x,  // [rows][cols]
                    const T* gamma,         // [cols], or null: all ones
                    const T* beta,          // [cols], or null: all zeros
                    tile::Rows<T> y,        // [rows][cols]
                    float* mean,            // [rows], or null
                    float* rstd,            // [rows], or null
                    float* origins,         // [rows], x_0 of each: y may be x
                    std::int64_t cols,
                    float per_col,  // 1 / cols: a division takes ten instructions
                    float eps,
                    bool centred,       // RMSNorm is not: its mean is 0
                    SplitRows split) {  // what the blocks tell each other
  constexpr int kWidth = 16 / sizeof(T), kWarps = tile::kSplitThreads / tile::kWarp;
  constexpr int kApart = tile::kSplitThreads * kWidth;  // columns, of a thread's chunks
  constexpr int kPieceCols = tile::kSplitChunks * kApart;
  using Chunk = tile::Chunk<T, kWidth>;
  __shared__ SplitItem item_smem;
  __shared__ float sum_smem[kWarps], squares_smem[kWarps];
  __shared__ Moments moments_smem[kWarps];
  __shared__ bool is_last_smem;
  const SplitItem item = split.take(&item_smem);
  if (!item.exists) return;
  T* y_row = y[item.row];
  const T* x_row = x[item.row];
  const int first = static_cast<int>(threadIdx.x) * kWidth;  // column, within the piece
  // Where y is written, its chunks are aligned, so the first column is below 0 if the row begins
  // within a chunk. Where sums are found, pieces begin at the same columns wherever rows lie, so
  // the sums have the same bits.
  const std::int64_t first_col =
      item.piece * kPieceCols + first - (item.writes ? tile::misalignment(y_row) : 0);
  Chunk x_chunk[tile::kSplitChunks];
  tile::load_anywhere<T, kWidth>(x_row, first_col, kApart, cols, 0, x_chunk);
  float value[kWidth];  // a chunk of x, then of y

  if (!item.writes) {
    // Count, mean - x_0 and squares of the piece, whose last chunk may have columns past the row.
    const float origin = centred ? static_cast<float>(x_row[0]) : 0;
    if (item.piece == 0 && threadIdx.x == 0) origins[item.row] = origin;
    const std::int64_t left = cols - item.piece * kPieceCols;
    const auto count = static_cast<int>(max(min(left, std::int64_t{kPieceCols}), std::int64_t{0}));
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < tile::kSplitChunks; ++i) {
      x_chunk[i].to_floats(value);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if (first + i * kApart + e < count) sum += value[e] - origin;
      }
    }
    float piece_mean = 0;
    if (centred && count > 0) {
      piece_mean = tile::reduce_block(sum, tile::Add{}, sum_smem) / static_cast<float>(count);
    }
#pragma unroll
    for (int i = 0; i < tile::kSplitChunks; ++i) {
      x_chunk[i].to_floats(value);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const float distance = value[e] - origin - piece_mean;
        if (first + i * kApart + e < count) squares += distance * distance;
      }
    }
    squares = tile::reduce_block(squares, tile::Add{}, squares_smem);
    const Moments seen{static_cast<float>(count), piece_mean, squares};
    split.publish(item, seen, moments_smem, &is_last_smem);
    return;
  }

  // y = gamma xhat + beta
  const Moments seen = split.wait(item);
  const float origin = origins[item.row], row_rstd = rsqrtf(seen.squares * per_col + eps);
#pragma unroll
  for (int i = 0; i < tile::kSplitChunks; ++i) {
    const std::int64_t col = first_col + i * kApart;
    Chunk chunk[1] = {Chunk::filled(1)};
    float weight[kWidth], shift[kWidth];
    if (gamma) tile::load_anywhere<T, kWidth>(gamma, col, 0, cols, 1, chunk);
    chunk[0].to_floats(weight);
    chunk[0] = Chunk::filled(0);
    if (beta) tile::load_anywhere<T, kWidth>(beta, col, 0, cols, 0, chunk);
    chunk[0].to_floats(shift);
    x_chunk[i].to_floats(value);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[e] = weight[e] * ((value[e] - origin - seen.mean) * row_rstd) + shift[e];
    }
    tile::store_anywhere(y_row, col, cols, value);
  }
  if (threadIdx.x != 0 || item.piece != 0) return;
  if (mean) mean[item.row] = origin + seen.mean;
  if (rstd) rstd[item.row] = row_rstd;
}
// snippet-end kernel

/// Places the exchange in a workspace of split_bytes(), and clears the counters.
tile::Status prepare_split(const tile::SplitPlan& plan, void* workspace, void* stream,
                           SplitRows* rows) {
  auto* bytes = static_cast<char*>(workspace);
  const auto counters = static_cast<std::size_t>(16 + (plan.rows + 3) / 4 * 16);
  auto* moments = reinterpret_cast<Moments*>(bytes + counters);
  *rows = {plan, reinterpret_cast<unsigned long long*>(bytes),
           reinterpret_cast<unsigned*>(bytes + 16), moments, moments + plan.rows};
  TILE_RETURN_IF_CUDA_ERROR(
      cudaMemsetAsync(workspace, 0, counters, static_cast<cudaStream_t>(stream)));
  return {};
}

}  // namespace

tile::Status takes_split(const ForwardProblem& p, const ForwardBuffers& b,
                         const tile::Device& device) {
  if (is_read_once(p, b) && !tile::is_short_of_rows(p, device)) {
    return tile::unsupported("cols", std::to_string(p.cols) + " are read once by a cluster");
  }
  return tile::check_workspace(split_bytes(p), b.workspace_bytes);
}

tile::Status split(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  const tile::SplitPlan plan = tile::split_plan(p.rows, p.cols, tile::size_bytes(p.type));
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", plan.items(), 1, &blocks));
  SplitRows rows;
  TILE_TRY(prepare_split(plan, b.workspace, stream, &rows));
  auto* origins = reinterpret_cast<float*>(rows.of_piece + plan.rows * plan.pieces);
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(layernorm_split<T>, "layernorm_split", blocks, tile::kSplitThreads, 0,
                        stream, tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
                        static_cast<const T*>(b.gamma), static_cast<const T*>(b.beta),
                        tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, b.mean, b.rstd, origins, p.cols,
                        static_cast<float>(1 / static_cast<double>(p.cols)), p.eps,
                        p.norm == Norm::layer, rows);
  });
}

}  // namespace layernorm
