// The ends of rows that begin anywhere: chunks of 16 bytes of which the row has some elements.
#pragma once

#include "tile/rows.cuh"

namespace tile {

/// How many elements `address` lies after a multiple of 16 bytes.
template <class T>
__device__ __forceinline__ int misalignment(const T* address) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(address) % 16 / sizeof(T));
}

/// kWidth elements of a row from column `col` on, one by one; `fill` where there is no column.
template <class T, int kWidth>
__device__ __forceinline__ Chunk<T, kWidth> load_edge(const T* row, std::int64_t col,
                                                      std::int64_t cols, float fill) {
  float value[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    value[e] = col + e >= 0 && col + e < cols ? static_cast<float>(row[col + e]) : fill;
  }
  return Chunk<T, kWidth>::from_floats(value);
}

/// Stores kWidth elements from column `col` on, of those that the row has.
template <class T, int kWidth>
__device__ __forceinline__ void store_anywhere(T* row, std::int64_t col, std::int64_t cols,
                                               const float (&value)[kWidth]) {
  if (col >= 0 && col + kWidth <= cols && misalignment(row + col) == 0) {
    Chunk<T, kWidth>::from_floats(value).store(row + col);
    return;
  }
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    if (col + e >= 0 && col + e < cols) row[col + e] = static_cast<T>(value[e]);
  }
}

}  // namespace tile
