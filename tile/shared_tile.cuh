// Tiles in shared memory: rows of elements of 16 bits, and products of them by a warp on tensor
// cores.
#pragma once

#include "tile/accumulator.cuh"
#include "tile/ptx/cp_async.cuh"
#include "tile/ptx/ldmatrix.cuh"
#include "tile/ptx/mma.cuh"
#include "tile/ptx/swizzle.hpp"

namespace tile {

/// kRows rows of kCols elements. Their chunks of 16 bytes are swizzled, so that ldmatrix finds
/// those of one column in different banks (chapter 02, step 9).
template <class T, int kRows_, int kCols_>
class SharedTile {
 public:
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kChunk = 8;  // elements of 16 bytes
  static constexpr int kRowChunks = kCols / kChunk, kRowBytes = kCols * 2;
  static constexpr int kBytes = kRows * kRowBytes;

  /// `begin` is a multiple of a row's bytes, or at(row, chunk) ^ 16 would leave the row.
  __device__ explicit SharedTile(ptx::SharedAddress begin) : begin_(begin) {}

  /// Where a chunk lies. at(row, chunk ^ n) is at(row, chunk) ^ n * 16, and at(row + 8, chunk) is
  /// at(row, chunk) + 8 * kRowBytes.
  __device__ ptx::SharedAddress at(int row, int chunk) const { return begin_ + offset(row, chunk); }

  /// The same tile `bytes` further on.
  __device__ SharedTile after(int bytes) const { return SharedTile(begin_ + bytes); }

  /// Copies rows, with all kThreads threads of the block: neighbours take neighbouring chunks. Rows
  /// from `rows_left` on become zeros.
  template <int kThreads>
  __device__ void copy(Rows<const T> from, int rows_left) const {
#pragma unroll
    for (int i = 0; i < kTurns<kThreads>; ++i) {
      const int row = row_of_thread<kThreads>(i), chunk = threadIdx.x % kRowChunks;
      if (kRows % kStep<kThreads> != 0 && row >= kRows) break;
      uint4 words{};
      if (row < rows_left) words = *reinterpret_cast<const uint4*>(from[row] + chunk * kChunk);
      ptx::store_shared(at(row, chunk), words);
    }
  }

  /// The same in the background: the copies are under way when this returns.
  template <int kThreads>
  __device__ void copy_async(Rows<const T> from, int rows_left) const {
    const T* chunk_of_row = from.data + threadIdx.x % kRowChunks * kChunk;
#pragma unroll
    for (int i = 0; i < kTurns<kThreads>; ++i) {
      const int row = row_of_thread<kThreads>(i), chunk = threadIdx.x % kRowChunks;
      if (kRows % kStep<kThreads> != 0 && row >= kRows) break;
      ptx::cp_async<16>(at(row, chunk), chunk_of_row + row * from.ld, row < rows_left ? 16 : 0);
    }
  }

  /// The same with fewer instructions: both addresses of a thread's first chunk are computed once,
  /// and those of the next ones by additions. Chapter 05's forward steps 5 and 6 would spill.
  template <int kThreads>
  __device__ void copy_async_in_steps(Rows<const T> from, int rows_left) const {
    const int first = static_cast<int>(threadIdx.x / kRowChunks), chunk = threadIdx.x % kRowChunks;
    const ptx::SharedAddress to = at(first, chunk);
    const T* source = ptx::address_once(from[first] + chunk * kChunk);
#pragma unroll
    for (int i = 0; i < kTurns<kThreads>; ++i) {
      const int row = first + i * kStep<kThreads>;
      if (kRows % kStep<kThreads> != 0 && row >= kRows) break;
      // Rows eight apart have the same swizzle.
      const bool is_alike = kStep<kThreads> % 8 == 0;
      ptx::cp_async<16>(is_alike ? to + i * kStep<kThreads> * kRowBytes : at(row, chunk),
                        source + i * (from.ld * kStep<kThreads>), row < rows_left ? 16 : 0);
    }
  }

 private:
  // Rows that the threads reach at one time, and how many times they do.
  template <int kThreads>
  static constexpr int kStep = kThreads / kRowChunks;
  template <int kThreads>
  static constexpr int kTurns = (kRows + kStep<kThreads> - 1) / kStep<kThreads>;
  template <int kThreads>
  static __device__ int row_of_thread(int turn) {
    static_assert(kThreads % kRowChunks == 0, "whole rows");
    return static_cast<int>(threadIdx.x) / kRowChunks + turn * kStep<kThreads>;
  }
  static __device__ int offset(int row, int chunk) {
    const int column = kRowChunks == 2   ? swizzle_32B(row, chunk)
                       : kRowChunks == 4 ? swizzle_64B(row, chunk)
                                         : swizzle_128B(row, chunk);
    return row * kRowBytes + column * 16;
  }

  ptx::SharedAddress begin_;
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

}  // namespace tile
