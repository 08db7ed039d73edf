// C, stored straight from registers, a pair of columns at a time.
#pragma once

#include "hopper_output.cuh"
#include "tile/ptx/convert.cuh"

namespace matmul {

// snippet-begin pair
/// Stores a warpgroup's sums in C from (row, col) on. A thread has pairs of neighbouring columns,
/// and stores a pair with one instruction if a word begins at every pair.
template <class T, int kSums>
__device__ void store_sums(float (&sums)[kSums], const Output<T>& c, std::int64_t row,
                           std::int64_t col, std::int64_t m, std::int64_t n) {
  const FirstSum first(row, col, m, n);
  scale_sums(sums, c, first);
  const bool words = reinterpret_cast<std::uintptr_t>(c.data) % 4 == 0 && c.ld % 2 == 0;
  T* corner = c.data + first.row * c.ld + first.col;
#pragma unroll
  for (int i = 0; i < kSums; i += 2) {
    const tile::ptx::Element at = tile::ptx::element_of_wgmma(0, i);
    if (at.row >= first.rows_left) continue;
    T* pair = corner + at.row * c.ld + at.col;
    if (words && at.col + 1 < first.cols_left) {
      *reinterpret_cast<std::uint32_t*>(pair) = tile::ptx::pack<T>(sums[i], sums[i + 1]);
    } else {
      if (at.col < first.cols_left) pair[0] = static_cast<T>(sums[i]);
      if (at.col + 1 < first.cols_left) pair[1] = static_cast<T>(sums[i + 1]);
    }
  }
}
// snippet-end pair

}  // namespace matmul
