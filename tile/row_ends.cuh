// Rows that begin anywhere: where their whole chunks lie, and which elements lie outside of them.
#pragma once

#include "tile/row_edges.cuh"

namespace tile {

// snippet-begin ends
/// A row that begins anywhere consists of a head of less than a chunk, of whole chunks, which are
/// aligned to 16 bytes in memory, and of a tail. The chunks are one fewer than `cols` columns would
/// fill, so that every row of a matrix has as many. Head and tail together have the elements of a
/// chunk and the cols % kWidth that fill none: the row's ends.
template <class T>
struct RowEnds {
  static constexpr int kWidth = 16 / sizeof(T);
  static constexpr int kMost = 2 * kWidth - 1;  // elements of head and tail
  /// How many of them a lane has, if they are dealt out to `lanes` lanes.
  __host__ __device__ static constexpr int of_lane(int lanes) {
    return (kMost + lanes - 1) / lanes;
  }

  int head;    // the column of the first whole chunk
  int chunks;  // whole ones; none in a row of less than two chunks
  int tail;    // the column after them

  __device__ __forceinline__ RowEnds(const T* row, int cols)
      : head((kWidth - misalignment(row)) % kWidth),
        chunks(max(cols / kWidth - 1, 0)),
        tail(head + chunks * kWidth) {}

  /// The column of element n of the ends, from 0 on. The row has it if the column is below `cols`.
  __device__ int column(int n) const { return n < head ? n : tail + n - head; }
};
// snippet-end ends

}  // namespace tile
