// A warp's sums on tensor cores: where they lie in its registers, how they become operand A of the
// next product without leaving them, how a mask hides scores, and how they are stored.
#pragma once

#include "tile/basics.cuh"
#include "tile/mask.hpp"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/quad.cuh"

namespace tile {

/// A warp's kRows x kCols sums in fp32, as mma leaves them: a lane has kRows / 8 rows, and of each
/// two neighbouring columns in every eight (element_of_d in tile/ptx/fragments.hpp).
template <int kRows_, int kCols_>
struct Accumulator {
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kLaneRows = kRows / 8, kLaneCols = kCols / 4;
  float mma[kRows / 16][kCols / 8][4] = {};

  /// This lane's r-th row and c-th column, and where they lie.
  __device__ float& at(int r, int c) { return mma[r / 2][c / 2][r % 2 * 2 + c % 2]; }
  __device__ float at(int r, int c) const { return mma[r / 2][c / 2][r % 2 * 2 + c % 2]; }
  static __device__ int row(int r) { return threadIdx.x % 32 / 4 + r * 8; }
  static __device__ int col(int c) { return threadIdx.x % 4 * 2 + c / 2 * 8 + c % 2; }

  __device__ void scale(float by) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) scale_row(r, by);
  }
  __device__ __forceinline__ void scale_row(int r, float by) {
#pragma unroll
    for (int c = 0; c < kLaneCols; ++c) at(r, c) *= by;
  }
};

/// Operand A of a warp's product: kRows rows, kDepth deep.
template <int kRows, int kDepth>
struct Fragment {
  std::uint32_t mma[kRows / 16][kDepth / 16][4];
};

// snippet-begin as_fragment
/// An accumulator rounded to T, as operand A of the next product. mma takes A in the layout in
/// which it leaves D: the same lane, row and columns, two to a register.
template <class T, int kRows, int kDepth>
__device__ __forceinline__ Fragment<kRows, kDepth> as_fragment(
    const Accumulator<kRows, kDepth>& sums) {
  Fragment<kRows, kDepth> fragment;
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
    for (int d = 0; d < kDepth / 8; ++d) {
      const float(&sum)[4] = sums.mma[i][d];
      fragment.mma[i][d / 2][d % 2 * 2] = ptx::pack<T>(sum[0], sum[1]);
      fragment.mma[i][d / 2][d % 2 * 2 + 1] = ptx::pack<T>(sum[2], sum[3]);
    }
  }
  return fragment;
}
// snippet-end as_fragment

// snippet-begin hide
/// Sets the scores of this lane's r-th row, a row of `query`, to -infinity where the mask hides
/// them. The keys are those from first_key on.
template <int kRows, int kCols>
__device__ __forceinline__ void hide_row(Accumulator<kRows, kCols>& scores, int r, const Mask& mask,
                                         int query, int first_key) {
  // Counted from this lane's first column on, so that its columns are constants.
  const int first = mask.first_key(query) - first_key - scores.col(0);
  const int end = mask.end_key(query) - first_key - scores.col(0);
#pragma unroll
  for (int c = 0; c < kCols / 4; ++c) {
    const int col = c / 2 * 8 + c % 2;
    if (col < first || col >= end) scores.at(r, c) = -INFINITY;
  }
}
/// The same for all rows, those from first_row on, `group` rows to a query.
template <int kRows, int kCols>
__device__ __forceinline__ void hide(Accumulator<kRows, kCols>& scores, const Mask& mask,
                                     int first_row, int first_key, int group = 1) {
#pragma unroll
  for (int r = 0; r < kRows / 8; ++r) {
    hide_row(scores, r, mask, (first_row + scores.row(r)) / group, first_key);
  }
}
// snippet-end hide

/// Rounds a warp's sums to T and stores them as rows first_row, first_row + 1, … of a tensor, from
/// column col0 on, as far as there are rows. Four lanes that share rows exchange their columns, so
/// that each stores 16 bytes.
template <class T, int kRows, int kCols>
__device__ __forceinline__ void store(const Accumulator<kRows, kCols>& sums, Rows<T> to,
                                      int first_row, int rows, int col0 = 0) {
#pragma unroll
  for (int r = 0; r < kRows / 8; ++r) {
    const int row = first_row + sums.row(r);
    std::uint32_t pair[kCols / 8];  // of columns 8 i + col(0)
#pragma unroll
    for (int i = 0; i < kCols / 8; ++i) {
      pair[i] = ptx::pack<T>(sums.at(r, 2 * i), sums.at(r, 2 * i + 1));
    }
    if constexpr (kCols % 32 == 0) {
#pragma unroll
      for (int i = 0; i < kCols / 8; i += 4) {
        std::uint32_t chunk[4] = {pair[i], pair[i + 1], pair[i + 2], pair[i + 3]};
        ptx::transpose_quad(chunk);
        if (row >= rows) continue;
        const int col = col0 + (i + static_cast<int>(threadIdx.x) % 4) * 8;
        *reinterpret_cast<uint4*>(to[row] + col) = {chunk[0], chunk[1], chunk[2], chunk[3]};
      }
    } else if (row < rows) {
#pragma unroll
      for (int i = 0; i < kCols / 8; ++i) {
        *reinterpret_cast<std::uint32_t*>(to[row] + col0 + i * 8 + sums.col(0)) = pair[i];
      }
    }
  }
}

}  // namespace tile
