// Rows in registers: a thread's slice of a row, and how many threads share one.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tile/host/status.hpp"
#include "tile/reduce.cuh"
#include "tile/rows.cuh"

namespace tile {

/// A thread's slice of a row: kElements of it, in registers.
template <class T, int kWidth, int kElements>
class RegisterSlice {
 public:
  using Chunk = tile::Chunk<T, kWidth>;
  static constexpr int kChunkWidth = kWidth, kChunks = kElements / kWidth;
  static constexpr int kUnroll = kChunks;  // registers have no index at run time

  RegisterSlice() = default;

  /// Loads the chunks that begin in the first `cols` columns; the others become full of `fill`.
  /// `row` is aligned to a chunk.
  __device__ __forceinline__ RegisterSlice(const T* row, int cols, ChunkColumns<kWidth> columns,
                                           float fill)
      : columns_(columns) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      chunk_[i] = Chunk::filled(fill);
      if (column(i) < cols) chunk_[i] = Chunk::load(row + column(i));
    }
  }

  __device__ ChunkColumns<kWidth> columns() const { return columns_; }
  __device__ int column(int i) const { return columns_.column(i); }
  __device__ __forceinline__ Chunk chunk(int i) const { return chunk_[i]; }

 private:
  ChunkColumns<kWidth> columns_;
  Chunk chunk_[kChunks];
};

/// The row of this thread: blocks have one each, or several, one for each y.
template <bool kSeveralRows>
__device__ __forceinline__ std::int64_t row_of_thread() {
  return kSeveralRows ? static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y
                      : blockIdx.x;
}

/// The reduction over the threads of a row: those of a block, as reduce_block() does it; or, if a
/// block has several rows, blockDim.x neighbouring lanes, a power of two.
template <bool kSeveralRows, class T, class Merge>
__device__ __forceinline__ T reduce_row(T value, Merge merge, T* partial) {  // [warps]
  if constexpr (kSeveralRows) {
    return reduce_lanes(value, merge, static_cast<int>(blockDim.x));
  } else {
    return reduce_block(value, merge, partial);
  }
}

inline constexpr int kMaxThreadsPerBlock = 1024;   // on every card
inline constexpr int kThreadsOfSeveralRows = 128;  // of a block that has several rows

/// The threads of a row and the elements of each.
struct RowPlan {
  bool fits;          // whether so many threads hold so many elements
  bool vectors;       // 16 bytes with an instruction; otherwise element by element
  bool plain;         // by a kernel without options: vectors only
  bool several_rows;  // in a block: a row has part of a warp
  int threads;        // of a row: a power of two up to 32, or whole warps
  int elements;       // of each thread

  /// Rows of a block.
  int rows() const { return several_rows ? kThreadsOfSeveralRows / threads : 1; }
};

// snippet-begin plan
/// The plan for rows of `cols` elements. A thread of a plain kernel holds up to 32 of them, or
/// `max_elements` in rows longer than a warp's. Any other kernel's thread holds 8, so that there
/// are registers for the options, 1,024 threads having 64 each.
inline RowPlan plan_row(std::int64_t cols, bool vectors, bool plain, int max_elements) {
  plain = plain && vectors;
  for (const int elements : {8, 16, 32}) {
    if (cols > 32 * elements || (elements > 8 && !plain)) continue;
    int threads = 1;
    while (threads * elements < cols) threads *= 2;
    return {true, vectors, plain, true, threads, elements};
  }
  const int elements = plain ? max_elements : 8;
  const std::int64_t threads = (cols + elements * 32 - 1) / (elements * 32) * 32;
  return {threads <= kMaxThreadsPerBlock, vectors, plain, false,
          static_cast<int>(threads),      elements};
}
// snippet-end plan

/// Calls `launch` with the plan as constants: the elements of a chunk, those of a thread, whether a
/// block has several rows, and whether the kernel is plain.
template <class T, int kMaxElements, class Launch>
Status with_plan(const RowPlan& plan, Launch launch) {
  constexpr std::true_type yes{};
  constexpr std::false_type no{};
  constexpr std::integral_constant<int, 1> single{};
  constexpr std::integral_constant<int, 16 / sizeof(T)> vector{};
  constexpr std::integral_constant<int, 8> few{};
  if (!plan.vectors) {
    return plan.several_rows ? launch(single, few, yes, no) : launch(single, few, no, no);
  }
  if (!plan.plain) {
    return plan.several_rows ? launch(vector, few, yes, no) : launch(vector, few, no, no);
  }
  if (!plan.several_rows) {
    return launch(vector, std::integral_constant<int, kMaxElements>{}, no, yes);
  }
  switch (plan.elements) {
    case 8: return launch(vector, few, yes, yes);
    case 16: return launch(vector, std::integral_constant<int, 16>{}, yes, yes);
    default: return launch(vector, std::integral_constant<int, 32>{}, yes, yes);
  }
}

}  // namespace tile
