// Rows in registers: a thread's slice of a row. How many threads share one: tile/host/row_plan.hpp.
#pragma once

#include <cstdint>

#include "tile/host/row_plan.hpp"
#include "tile/reduce.cuh"
#include "tile/rows.cuh"

namespace tile {

// snippet-begin ends
/// A row that begins anywhere: a head of less than a chunk, whole chunks, which are aligned in
/// memory, and a tail. The chunks are one fewer than `cols` columns fill, so that every row has as
/// many. Head and tail, the row's ends, have kWidth elements and the cols % kWidth that fill none.
template <class T>
struct RowEnds {
  static constexpr int kWidth = 16 / sizeof(T);
  static constexpr int kMost = 2 * kWidth - 1;  // elements of head and tail
  /// How many of them a lane has, if `lanes` lanes share them; none if there are no lanes.
  __host__ __device__ static constexpr int of_lane(int lanes) {
    return lanes ? (kMost + lanes - 1) / lanes : 0;
  }
  int head;    // the column of the first whole chunk
  int chunks;  // whole ones; none in a row of less than two chunks
  int tail;    // the column after them

  __device__ __forceinline__ RowEnds(const T* row, int cols)
      : head(static_cast<int>(-reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T))),
        chunks(max(cols / kWidth - 1, 0)),
        tail(head + chunks * kWidth) {}
  /// The column of element n of the ends, from 0 on. The row has it if the column is below `cols`.
  __device__ int column(int n) const { return n < head ? n : tail + n - head; }
};
// snippet-end ends

/// A thread's slice of a row: kElements of it in chunks, in registers. With kEndLanes, rows begin
/// anywhere, and so many lanes also have an element or two of the ends: one more part, kChunks.
template <class T, int kWidth, int kElements, int kEndLanes = 0>
class RegisterSlice {
 public:
  using Chunk = tile::Chunk<T, kWidth>;
  static constexpr int kChunkWidth = kWidth, kChunks = kElements / kWidth;
  static constexpr int kEnds = RowEnds<T>::of_lane(kEndLanes), kParts = kChunks + (kEnds > 0);
  static constexpr int kUnroll = kParts;  // registers cannot be indexed at run time

  /// Loads what begins in the first `visible` columns, and fills the rest with `fill`. Without
  /// ends, `row` is aligned to a chunk; with ends it has `cols` columns.
  __device__ __forceinline__ RegisterSlice(const T* row, int visible, ChunkColumns<kWidth> columns,
                                           float fill, int cols = 0)
      : ends_(row, cols), columns_(columns) {
    float end[kWidth] = {};
#pragma unroll
    for (int k = 0; k < kEnds; ++k) {
      const int col = column(kChunks, k);
      end[k] = col < visible ? static_cast<float>(row[col]) : fill;
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      chunk_[i] = Chunk::filled(fill);
      if (has(i, visible)) chunk_[i] = Chunk::load(row + column(i));
    }
    if constexpr (kEnds > 0) chunk_[kChunks] = Chunk::from_floats(end);
  }

  __host__ __device__ static constexpr int width(int part) {
    return part < kChunks ? kWidth : kEnds;
  }
  __device__ int column(int part, int e = 0) const {
    if (part == kChunks) return ends_.column(columns_.thread + e * kEndLanes);
    return (kEndLanes ? ends_.head : 0) + columns_.column(part) + e;
  }
  /// Whether a chunk begins in the first `cols` columns; store() asks each element of the ends.
  __device__ bool has(int part, int cols) const {
    if (kEndLanes) cols = min(cols - ends_.head, ends_.chunks * kWidth);
    return part == kChunks || columns_.column(part) < cols;
  }
  __device__ __forceinline__ Chunk chunk(int part) const { return chunk_[part]; }
  /// Stores a part that the slice has to a row of `cols` columns that begins alike.
  __device__ __forceinline__ void store(int part, T* row, int cols,
                                        const float (&value)[kWidth]) const {
    if (part < kChunks) return Chunk::from_floats(value).store(row + column(part));
#pragma unroll
    for (int k = 0; k < kEnds; ++k) {
      if (column(part, k) < cols) row[column(part, k)] = static_cast<T>(value[k]);
    }
  }

 private:
  RowEnds<T> ends_;
  ChunkColumns<kWidth> columns_;
  Chunk chunk_[kParts];
};

/// The row of this thread: a block has one row, or several, one for each threadIdx.y.
template <bool kSeveralRows>
__device__ __forceinline__ std::int64_t row_of_thread() {
  return kSeveralRows ? static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y
                      : blockIdx.x;
}

/// The reduction over the threads of a row: all threads of a block, by reduce_block(); or, if a
/// block has several rows, `lanes` neighbouring lanes, a power of two.
template <bool kSeveralRows, class T, class Merge>
__device__ __forceinline__ T reduce_row(T value, Merge merge, T* partial,  // [warps]
                                        int lanes = static_cast<int>(blockDim.x)) {
  if constexpr (kSeveralRows) {
    return reduce_lanes(value, merge, lanes);
  } else {
    return reduce_block(value, merge, partial);
  }
}

}  // namespace tile
