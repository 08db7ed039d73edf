// Products of a warp on tensor cores: of tiles in shared memory, and of sums that become factors
// without leaving their registers.
#pragma once

#include "tile/mask.hpp"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/ldmatrix.cuh"
#include "tile/ptx/mma.cuh"
#include "tile/ptx/quad.cuh"
#include "tile/shared_tile.cuh"

namespace tile {

// snippet-begin sums
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
// snippet-end sums

/// Operand A of a warp's product: kRows rows, kDepth deep.
template <int kRows, int kDepth>
struct Fragment {
  std::uint32_t mma[kRows / 16][kDepth / 16][4];
};

/// Rows row0 to row0 + kRows - 1 of a tile, and of those the elements from depth0 on.
template <int kRows, int kDepth, class Tile>
__device__ __forceinline__ void load(Fragment<kRows, kDepth>& fragment, const Tile& tile, int row0,
                                     int depth0 = 0) {
  const int lane = threadIdx.x % 32;
  const auto first = tile.at(row0 + lane % 16, depth0 / 8 + lane / 16);
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
    for (int d = 0; d < kDepth / 16; ++d) {
      ptx::ldmatrix_x4(fragment.mma[i][d], (first + i * 16 * Tile::kRowBytes) ^ d * 32);
    }
  }
}

/// The transpose of rows row0 to row0 + kDepth - 1 of a tile, columns col0 to col0 + kRows - 1.
template <int kRows, int kDepth, class Tile>
__device__ __forceinline__ void load_transposed(Fragment<kRows, kDepth>& fragment, const Tile& tile,
                                                int row0, int col0) {
  const int lane = threadIdx.x % 32;
  const auto first = tile.at(row0 + lane / 16 * 8 + lane % 8, col0 / 8 + lane / 8 % 2);
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
    for (int d = 0; d < kDepth / 16; ++d) {
      ptx::ldmatrix_x4_trans(fragment.mma[i][d], (first ^ i * 32) + d * 16 * Tile::kRowBytes);
    }
  }
}

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

struct Nothing {
  __device__ void operator()(int) const {}
};

// snippet-begin with_rows
/// sums += A B^T, where A is the fragment, and row j of B is row row0 + j of the tile, from element
/// depth0 on. After the n-th of its kDepth kCols / 256 loads it calls between(n), for other work
/// while the tensor cores are busy.
template <class T, int kRows, int kCols, int kDepth, class Tile, class Between = Nothing>
__device__ __forceinline__ void mma_ABt(Accumulator<kRows, kCols>& sums,
                                        const Fragment<kRows, kDepth>& fragment, const Tile& tile,
                                        int row0, int depth0 = 0, Between between = {}) {
  const int lane = threadIdx.x % 32;
  const auto first = tile.at(row0 + lane / 16 * 8 + lane % 8, depth0 / 8 + lane / 8 % 2);
#pragma unroll
  for (int d = 0; d < kDepth / 16; ++d) {
#pragma unroll
    for (int j = 0; j < kCols / 16; ++j) {
      std::uint32_t b[4];  // 16 rows of the tile, 16 of the depth
      ptx::ldmatrix_x4(b, (first ^ d * 32) + j * 16 * Tile::kRowBytes);
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i) {
        ptx::mma_m16n8k16<T>(sums.mma[i][2 * j], fragment.mma[i][d], {b[0], b[1]});
        ptx::mma_m16n8k16<T>(sums.mma[i][2 * j + 1], fragment.mma[i][d], {b[2], b[3]});
      }
      between(d * (kCols / 16) + j);
    }
  }
}
// snippet-end with_rows

/// The same where A is rows of a tile; the depth is the width of that tile.
template <class T, int kRows, int kCols, class LeftTile, class Tile>
__device__ __forceinline__ void mma_ABt(Accumulator<kRows, kCols>& sums, const LeftTile& left,
                                        int left_row0, const Tile& tile, int row0) {
  const int lane = threadIdx.x % 32;
  const auto left_first = left.at(left_row0 + lane % 16, lane / 16);
  const auto first = tile.at(row0 + lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int d = 0; d < LeftTile::kCols / 16; ++d) {
    std::uint32_t a[kRows / 16][4];
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      ptx::ldmatrix_x4(a[i], (left_first + i * 16 * LeftTile::kRowBytes) ^ d * 32);
    }
#pragma unroll
    for (int j = 0; j < kCols / 16; ++j) {
      std::uint32_t b[4];  // 16 rows of the tile, 16 of the depth
      ptx::ldmatrix_x4(b, (first ^ d * 32) + j * 16 * Tile::kRowBytes);
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i) {
        ptx::mma_m16n8k16<T>(sums.mma[i][2 * j], a[i], {b[0], b[1]});
        ptx::mma_m16n8k16<T>(sums.mma[i][2 * j + 1], a[i], {b[2], b[3]});
      }
    }
  }
}

/// Rounds sums to T and stores them in a tile, from (row0, col0) on.
template <class T, int kRows, int kCols, class Tile>
__device__ __forceinline__ void store_in_tile(const Accumulator<kRows, kCols>& sums,
                                              const Tile& tile, int row0, int col0) {
  const auto first = tile.at(row0 + sums.row(0), col0 / 8) + sums.col(0) * 2;
#pragma unroll
  for (int r = 0; r < kRows / 8; ++r) {
#pragma unroll
    for (int c = 0; c < kCols / 4; c += 2) {
      ptx::store_shared((first ^ c / 2 * 16) + r * 8 * Tile::kRowBytes,
                        ptx::pack<T>(sums.at(r, c), sums.at(r, c + 1)));
    }
  }
}

// snippet-begin with_columns
/// sums += A B, where A is the fragment, and row d of B is row row0 + d of the tile, from column
/// col0 on, a multiple of kCols.
template <class T, int kRows, int kCols, int kDepth, class Tile>
__device__ __forceinline__ void mma_AB(Accumulator<kRows, kCols>& sums,
                                       const Fragment<kRows, kDepth>& fragment, const Tile& tile,
                                       int row0, int col0 = 0) {
  const int lane = threadIdx.x % 32;
  const auto first = tile.at(row0 + lane % 16, col0 / 8 + lane / 16);
#pragma unroll
  for (int d = 0; d < kDepth / 16; ++d) {
#pragma unroll
    for (int j = 0; j < kCols / 16; ++j) {
      std::uint32_t b[4];  // 16 rows of the tile, 16 of its columns
      ptx::ldmatrix_x4_trans(b, (first ^ j * 32) + d * 16 * Tile::kRowBytes);
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i) {
        ptx::mma_m16n8k16<T>(sums.mma[i][2 * j], fragment.mma[i][d], {b[0], b[1]});
        ptx::mma_m16n8k16<T>(sums.mma[i][2 * j + 1], fragment.mma[i][d], {b[2], b[3]});
      }
    }
  }
}
// snippet-end with_columns

// snippet-begin hide
/// Sets the scores that the mask hides to -infinity. The scores are those of the rows from
/// first_row on, `group` rows to a query, and of the keys from first_key on.
template <int kRows, int kCols>
__device__ __forceinline__ void hide(Accumulator<kRows, kCols>& scores, const Mask& mask,
                                     int first_row, int first_key, int group = 1) {
#pragma unroll
  for (int r = 0; r < kRows / 8; ++r) {
    const int query = (first_row + scores.row(r)) / group;
    // Counted from this lane's first column on, so that its columns are constants.
    const int first = mask.first_key(query) - first_key - scores.col(0);
    const int end = mask.end_key(query) - first_key - scores.col(0);
#pragma unroll
    for (int c = 0; c < kCols / 4; ++c) {
      const int col = c / 2 * 8 + c % 2;
      if (col < first || col >= end) scores.at(r, c) = -INFINITY;
    }
  }
}
// snippet-end hide

// snippet-begin store
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
// snippet-end store

}  // namespace tile
