// Rows of which each block has the same part: in which order they come, and which part that is.
#pragma once

#include "tile/rows.cuh"

namespace layernorm {

/// The rows of a matrix in an order in which those that begin alike follow one another. An index
/// counts them in this order.
struct RowOrder {
  int rows;
  int period;  // every period-th row begins alike

  struct Run {
    int row;   // this index's
    int left;  // rows that begin alike, from this index on: row, row + period and so on
  };
  __host__ __device__ __forceinline__ Run run(int index) const {
    const int each = rows / period, more = rows % period;  // the first `more` kinds have one more
    const bool has_more = index < more * (each + 1);
    if (!has_more) index -= more * (each + 1);
    const int length = each + has_more, before = index % length;
    const int kind = (has_more ? 0 : more) + index / length;
    return {kind + before * period, length - before};
  }
  __host__ __device__ __forceinline__ int row(int index) const { return run(index).row; }
  __host__ __device__ __forceinline__ int first_index(int kind) const {
    const int more = rows % period;
    return kind * (rows / period) + (kind < more ? kind : more);
  }
};

/// Which chunks of a row are a block's, in steps in which `blocks` share each row.
template <class T>
struct PartOfRow {
  static constexpr int kWidth = 16 / sizeof(T);
  int head, tail;  // elements of the row before and after its chunks
  int col, count;  // first column of the part, and its chunks

  __device__ __forceinline__ PartOfRow(const T* row, int cols, int block, int blocks) {
    head = -static_cast<int>(std::uintptr_t(row) / sizeof(T)) & (kWidth - 1);
    const int all = (cols - head) / kWidth, each = all / blocks, more = all % blocks;
    tail = cols - head - all * kWidth;
    col = head + (block * each + min(block, more)) * kWidth, count = each + (block < more);
  }
  /// How far floats must be shifted to be aligned where the row's chunks begin.
  __device__ __forceinline__ int lead() const { return (kWidth - head) % kWidth; }
};

}  // namespace layernorm
