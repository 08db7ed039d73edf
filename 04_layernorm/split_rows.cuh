// Rows that blocks of the whole card share, a piece each: which piece a block works on, and how a
// row's values are merged.
#pragma once

#include "tile/host/split_plan.hpp"
#include "tile/ptx/semaphore.cuh"
#include "tile/reduce.cuh"
#include "tile/row_edges.cuh"

namespace layernorm {

/// What a block does: it reads a piece of a row and publishes what it found; or it reads the piece
/// again and writes the results.
struct SplitItem {
  std::int64_t row, piece;
  bool exists, writes;
};

/// Where blocks exchange values, in global memory. `Value` is what is merged over a row.
template <class Value>
struct SplitRows {
  tile::SplitPlan plan;
  unsigned long long* taken;  // items; 0 when the kernel begins
  unsigned* arrived;          // [rows]: pieces found, and then 1 more for the result; 0 at first
  Value* of_row;              // [rows]
  Value* of_piece;            // [rows][pieces]

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
  /// Publishes what the block found in its piece, a value that all its threads have. The last block
  /// to arrive merges the values in the order of the pieces, so it does not matter which it is.
  template <class Merge>
  __device__ __forceinline__ void publish(const SplitItem& item, Value value, Merge merge,
                                          Value* partial_smem, bool* is_last_smem) const {
    Value* found = of_piece + item.row * plan.pieces;
    if (threadIdx.x == 0) {
      found[item.piece] = value;
      __threadfence();  // others see the value before they see that it has arrived
      *is_last_smem = atomicAdd(&arrived[item.row], 1u) + 1 == plan.pieces;
      __threadfence();  // this block sees all values
    }
    __syncthreads();  // whether this block is the last
    if (!*is_last_smem) return;
    Value all = merge.identity();
    for (std::int64_t i = threadIdx.x; i < plan.pieces; i += blockDim.x) all = merge(all, found[i]);
    all = tile::reduce_block(all, merge, partial_smem);
    if (threadIdx.x != 0) return;
    of_row[item.row] = all;
    tile::ptx::semaphore_add(&arrived[item.row]);
  }

  /// The result of the row.
  __device__ __forceinline__ Value wait(const SplitItem& item) const {
    if (threadIdx.x == 0) {
      tile::ptx::semaphore_wait(&arrived[item.row], static_cast<unsigned>(plan.pieces) + 1);
    }
    __syncthreads();  // it is there
    return of_row[item.row];
  }
  // snippet-end publish
};

/// The column at which a thread's first chunk of the item's piece begins. When results are written,
/// `out` is aligned to 16 bytes there, so it is below 0 if the row begins within a chunk. When sums
/// are found, pieces begin at the same columns wherever rows lie, so the sums have the same bits.
template <class T>
__device__ __forceinline__ std::int64_t first_column(const SplitItem& item, const T* out) {
  constexpr int kWidth = 16 / sizeof(T);
  const std::int64_t chunk = item.piece * (tile::kSplitThreads * tile::kSplitChunks) + threadIdx.x;
  return chunk * kWidth - (item.writes ? tile::misalignment(out) : 0);
}

/// A thread's slice of a piece of a row, in registers.
template <class T>
struct PieceSlice {
  static constexpr int kWidth = 16 / sizeof(T), kApart = tile::kSplitThreads * kWidth;
  static constexpr int kColumns = tile::kSplitChunks * kApart;  // of the piece
  using Chunk = tile::Chunk<T, kWidth>;
  std::int64_t first;  // column
  Chunk chunk[tile::kSplitChunks];

  /// `fill` where there is no column.
  __device__ __forceinline__ PieceSlice(const T* row, std::int64_t first_column, std::int64_t cols,
                                        float fill)
      : first(first_column) {
    tile::load_anywhere<T, kWidth>(row, first, kApart, cols, fill, chunk);
  }
  __device__ __forceinline__ std::int64_t column(int i) const { return first + i * kApart; }
};

/// Places the rows' memory in a workspace of split_bytes(), and clears the counters.
template <class Value>
tile::Status prepare_split(const tile::SplitPlan& plan, void* workspace, void* stream,
                           SplitRows<Value>* rows) {
  auto* bytes = static_cast<char*>(workspace);
  const auto counters = static_cast<std::size_t>(16 + (plan.rows + 3) / 4 * 16);
  auto* values = reinterpret_cast<Value*>(bytes + counters);
  *rows = {plan, reinterpret_cast<unsigned long long*>(bytes),
           reinterpret_cast<unsigned*>(bytes + 16), values, values + plan.rows};
  TILE_RETURN_IF_CUDA_ERROR(
      cudaMemsetAsync(workspace, 0, counters, static_cast<cudaStream_t>(stream)));
  return {};
}

}  // namespace layernorm
