// A warpgroup's part of C, as wgmma leaves it in registers: where it lies, and how it is finished;
// and a warp's part on its way through shared memory.
#pragma once

#include "hopper_tiles.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/stmatrix.cuh"
#include "tile/ptx/swizzle.hpp"

namespace matmul {

// snippet-begin first
/// Where the first of a thread's sums lies in C, if its warpgroup's part begins at (part_row,
/// part_col), and how much of C there is from there on. Its i-th sum lies element_of_wgmma(0, i)
/// from there.
struct FirstSum {
  std::int64_t row, col, rows_left, cols_left;

  __device__ FirstSum(std::int64_t part_row, std::int64_t part_col, std::int64_t m,
                      std::int64_t n) {
    const auto at =
        tile::ptx::element_of_wgmma(static_cast<int>(threadIdx.x) % tile::kWarpgroup, 0);
    row = part_row + at.row, col = part_col + at.col;
    rows_left = m - row, cols_left = n - col;
  }
};

/// Applies alpha and beta to a warpgroup's sums. Those outside of C may stay as they are.
template <class T, int kSums>
__device__ void scale_sums(float (&sums)[kSums], const Output<T>& c, const FirstSum& first) {
  if (c.beta != 0) {
    const T* old = c.data + first.row * c.ld + first.col;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const tile::ptx::Element at = tile::ptx::element_of_wgmma(0, i);
      if (at.row >= first.rows_left || at.col >= first.cols_left) continue;
      sums[i] = c.scaled(sums[i], old + at.row * c.ld + at.col);
    }
  } else if (c.alpha != 1) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] *= c.alpha;
  }
}
// snippet-end first

/// Applies alpha, beta, bias and activation to a consumer's part of C, which begins at (row, col),
/// each in a loop of its own, as in step 13. Elements outside C get arbitrary values.
template <class T, int kSums>
__device__ void finish(float (&sums)[kSums], const Output<T>& c, const T* bias,
                       Activation activation, std::int64_t row, std::int64_t col, std::int64_t m,
                       std::int64_t n) {
  const FirstSum first(row, col, m, n);
  scale_sums(sums, c, first);
  if (bias) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int x = tile::ptx::element_of_wgmma(0, i).col;
      if (i % 4 >= 2 || x >= first.cols_left) continue;  // sums i and i + 2 are of one column
      const auto add = static_cast<float>(bias[first.col + x]);
      sums[i] += add, sums[i + 2] += add;
    }
  }
  if (activation == Activation::relu) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = activate(Activation::relu, sums[i]);
  } else if (activation == Activation::gelu) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = activate(Activation::gelu, sums[i]);
  }
}

inline constexpr int kTogether = 8;  // elements in 16 bytes

/// A warp's part of C in shared memory, 64 columns at a time, swizzled.
struct OutputBox {
  static constexpr int kRows = 16;  // of the 64 of a wgmma, those whose sums a warp has
  static constexpr int kBytes = kRows * kBoxElements * 2;

  /// Stores a lane's pairs of neighbouring columns in a box, in the order of element_of_wgmma.
  static __device__ __forceinline__ void put(tile::ptx::SharedAddress box,
                                             const std::uint32_t* pairs) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int x = 0; x < kBoxElements; x += 16) {  // the four tiles of an stmatrix
      std::uint32_t tiles[4];
#pragma unroll
      // Of each 8 columns first the tile of rows 0 to 7, then that of rows 8 to 15.
      for (int t = 0; t < 4; ++t) tiles[t] = pairs[x / 4 + t];
      const int y = lane % 16, chunk = x / 8 + lane / 16;  // of the row whose address it passes
      tile::ptx::stmatrix_x4(box + (y * 128 + tile::swizzle_128B(y, chunk) * 16), tiles);
    }
  }
};

}  // namespace matmul
