// Rows of a head in shared memory as TMA brings them and wgmma reads them.
#pragma once

#include "tile/accumulator.cuh"
#include "tile/heads.cuh"
#include "tile/host/tensor_map.hpp"
#include "tile/ptx/stmatrix.cuh"
#include "tile/ptx/swizzle.hpp"
#include "tile/ptx/tma.cuh"
#include "tile/ptx/wgmma.cuh"

namespace tile {

/// kRows rows of kCols elements of 16 or 8 bits: a box of kRows rows for each 128 bytes, swizzled.
/// If a row has 64 bytes, the box's other half is zeros.
template <class T, int kRows_, int kCols_>
struct HeadBoxes {
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kElementBytes = sizeof(T), kRowBytes = 128;  // of the swizzle's pattern
  static constexpr int kBoxCols = kRowBytes / kElementBytes, kBoxBytes = kRows * kRowBytes;
  static constexpr int kBoxes = (kCols + kBoxCols - 1) / kBoxCols, kBytes = kBoxes * kBoxBytes;
  static_assert(kElementBytes <= 2 && kCols % 64 == 0 && kRows % 8 == 0 && kRows <= 256);

  /// Starts the copies of the rows of a head from `row` on, kBytes bytes. Rows past the end of the
  /// tensor are zeros. A map of packed heads has these axes the other way round: first head, row.
  static __device__ void load(ptx::SharedAddress to, const TensorMap& map, int row, int head,
                              int batch, ptx::Mbarrier* full) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      ptx::tma_load(to + box * kBoxBytes, map, ptx::BoxAt{box * kBoxCols, row, head, batch}, full);
    }
  }

  /// Starts to store the rows to those of a head from `row` on, in the group that this thread
  /// commits next. Rows past the end of the tensor are left out.
  static __device__ void store(const TensorMap& map, int row, int head, int batch,
                               ptx::SharedAddress from) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      ptx::tma_store(map, ptx::BoxAt{box * kBoxCols, row, head, batch}, from + box * kBoxBytes);
    }
  }

  /// Stores a warp's fragment as 16 rows from `row` on, a multiple of 16. A fragment of fewer
  /// columns is one of 32 in a single box, from column 0 or 32 on.
  template <int kFragmentCols>
  static __device__ void store_warp(const Fragment<16, kFragmentCols>& rounded,
                                    ptx::SharedAddress to, int row, int first_col = 0) {
    static_assert(kFragmentCols == kCols || (kFragmentCols == 32 && kCols == kBoxCols));
    const int lane = static_cast<int>(threadIdx.x) % 32, y = row + lane % 16;
    const ptx::SharedAddress lane_at =
        (to + (y * kRowBytes + swizzle_128B(y, lane / 16) * 16)) ^ first_col * 2;
#pragma unroll
    for (int col = 0; col < kFragmentCols; col += 16) {  // the four tiles of an stmatrix
      ptx::stmatrix_x4((lane_at + col / kBoxCols * kBoxBytes) ^ col % kBoxCols * 2,
                       rounded.mma[0][col / 16]);
    }
  }

  /// The descriptor of a factor whose product sums over columns: 32 bytes of them from `col` on, of
  /// the rows from `row` on, a multiple of 8.
  static __device__ ptx::WgmmaDescriptor along_columns(ptx::SharedAddress at, int row, int col) {
    return ptx::WgmmaDescriptor::along_k(at + row * kRowBytes) +
           (col / kBoxCols * kBoxBytes + col % kBoxCols * kElementBytes);
  }
  /// The descriptor of a right factor whose product sums over rows: 16 of them from `row` on, with
  /// all columns.
  static __device__ ptx::WgmmaDescriptor along_rows(ptx::SharedAddress at, int row) {
    return ptx::WgmmaDescriptor::along_mn(at, kBoxBytes) + row * kRowBytes;
  }

  /// Fills the rows from `row` on with zeros, by kThreads threads in a row.
  template <int kThreads>
  static __device__ void clear(ptx::SharedAddress at, int row) {
    const int thread = static_cast<int>(threadIdx.x) % kThreads;
    constexpr int kRowChunks = kRowBytes / 16;  // the swizzle permutes them within their row only
#pragma unroll 1  // rare, and without registers that loops around it would lack
    for (int chunk = thread; chunk < kBytes / 16; chunk += kThreads) {
      if (chunk / kRowChunks % kRows >= row) ptx::store_shared(at + chunk * 16, uint4{});
    }
  }
};

/// A lane's sums in the order of wgmma, which gives each warp 16 rows, in the registers of mma.
template <int kCols>
__device__ __forceinline__ float (&registers_of(Accumulator<16, kCols>& sums))[kCols / 2] {
  return reinterpret_cast<float(&)[kCols / 2]>(sums.mma);
}

// snippet-begin products
/// Starts sums = A B^T: A is 64 rows of a tile, from `row` on, and B is kCols rows of another, from
/// right_row on, a multiple of 8.
template <class T, class Left, class Right, int kCols>
__device__ __forceinline__ void start_product_of_rows(Accumulator<16, kCols>& sums,
                                                      ptx::SharedAddress left, int row,
                                                      ptx::SharedAddress right, int right_row = 0) {
#pragma unroll
  for (int col = 0; col < Left::kCols; col += 32 / Left::kElementBytes) {  // as deep as a wgmma
    ptx::wgmma<T, kCols>(registers_of(sums), Left::along_columns(left, row, col),
                         Right::along_columns(right, right_row, col), col != 0);
  }
}
/// Starts sums += factor B, where B is a tile. The four warps have 16 rows each.
template <class T, class Tile>
__device__ __forceinline__ void start_product_with_columns(
    Accumulator<16, Tile::kCols>& sums, const Fragment<16, Tile::kRows>& fragment,
    ptx::SharedAddress tile) {
#pragma unroll
  for (int row = 0; row < Tile::kRows; row += 16) {
    ptx::wgmma<T, Tile::kCols, ptx::Major::mn>(registers_of(sums), fragment.mma[0][row / 16],
                                               Tile::along_rows(tile, row), true);
  }
}
// snippet-end products

}  // namespace tile
