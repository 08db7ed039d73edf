// Tiles of op(A) and op(B) in shared memory, as TMA writes them and wgmma reads them.
#pragma once

#include "matmul.cuh"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/tma.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ptx/wgmma.cuh"

namespace matmul {

inline constexpr int kBlockK = 64;       // 128 bytes along k: a row of the swizzle's pattern
inline constexpr int kWgmmaK = 16;       // 32 bytes
inline constexpr int kBoxElements = 64;  // 128 bytes, along the axis whose elements are neighbours
static_assert(kBoxElements * 2 == 128);

// snippet-begin operand
/// kExtent of m or n by kBlockK of k, or twice as many of 8 bits. Its neighbours in memory lie
/// along k (kAlongK), and it is one box of kExtent rows; or along m or n, and it is a box of
/// kBlockK rows for each 64 of these. wgmma reads 8 bits along k only. If kBlocks blocks of a
/// cluster share the tile, each copies its part of the rows of every box into all of them.
template <class T, bool kAlongK, int kExtent, int kBlocks = 1>
struct OperandBoxes {
  static_assert(sizeof(T) == 2 || (sizeof(T) == 1 && kAlongK));
  static_assert(kExtent % kBoxElements == 0 && kExtent <= 256);
  static constexpr tile::ptx::Major kMajor = kAlongK ? tile::ptx::Major::k : tile::ptx::Major::mn;
  static constexpr int kRows = kAlongK ? kExtent : kBlockK;  // of a box
  static constexpr int kCopied = kRows / kBlocks;            // of these, by one copy
  static_assert(kCopied % 8 == 0, "a copy begins where the pattern of the swizzle does");
  static constexpr int kBoxBytes = kRows * kBoxElements * 2;
  static constexpr int kBytes = kExtent * kBlockK * 2;
  /// From one wgmma's part of k to the next: within the rows, or 16 rows further.
  static constexpr int kPartBytes = kAlongK ? kWgmmaK * 2 : kWgmmaK * kBoxElements * 2;

  /// Starts the copies of the tile that begins at `first` of m or n, and at k: all of it into this
  /// block, or the part of the block of this rank into all kBlocks. Elements outside of the matrix
  /// are zeros.
  static __device__ void load(tile::ptx::SharedAddress to, const tile::TensorMap& map, int first,
                              int k, tile::ptx::Mbarrier* full, unsigned rank = 0) {
    const int row = static_cast<int>(rank) * kCopied;
#pragma unroll
    for (int box = 0; box < kBytes / kBoxBytes; ++box) {
      const tile::ptx::SharedAddress part = to + (box * kBoxBytes + row * kBoxElements * 2);
      const tile::ptx::BoxAt at = kAlongK ? tile::ptx::BoxAt{k, first + row}
                                          : tile::ptx::BoxAt{first + box * kBoxElements, k + row};
      if constexpr (kBlocks == 1) {
        tile::ptx::tma_load(part, map, at, full);
      } else {
        tile::ptx::tma_load_multicast(part, map, at, full, (1 << kBlocks) - 1);
      }
    }
  }

  /// The tile from `first` of its m or n on, a multiple of 64.
  static __device__ tile::ptx::WgmmaDescriptor descriptor(tile::ptx::SharedAddress at, int first) {
    if constexpr (kAlongK) {
      return tile::ptx::WgmmaDescriptor::along_k(at + first * kBoxElements * 2);
    } else {
      return tile::ptx::WgmmaDescriptor::along_mn(at + first / kBoxElements * kBoxBytes, kBoxBytes);
    }
  }

  /// The map of a matrix with `extent` of m or n and k of k, `ld` elements from row to row.
  static tile::Status make_map(const char* name, tile::DType type, const void* data,
                               std::int64_t extent, std::int64_t k, std::int64_t ld,
                               tile::TensorMap* map) {
    const tile::BoxedTensor boxed{.type = type,
                                  .data = data,
                                  .rank = 2,
                                  .extents = {kAlongK ? k : extent, kAlongK ? extent : k},
                                  .strides = {ld},
                                  .box = {kBoxElements * 2 / int{sizeof(T)}, kCopied},
                                  .swizzle_bytes = 128};
    return tile::make_tensor_map(name, boxed, map);
  }
};
// snippet-end operand

/// The maps of op(A) and op(B) for tiles of these kinds.
template <class ATile, class BTile>
tile::Status make_maps(const Problem& p, const Buffers& buffers, tile::TensorMap* a_map,
                       tile::TensorMap* b_map) {
  TILE_TRY(ATile::make_map("a", p.type, buffers.a, p.m, p.k, p.lda, a_map));
  return BTile::make_map("b", p.type, buffers.b, p.n, p.k, p.ldb, b_map);
}

// snippet-begin pair
/// Where the first of a thread's sums lies in C, if its warpgroup's part begins at (part_row,
/// part_col), and how much of C there is from there on. Its other sums lie as
/// element_of_wgmma(0, i) says.
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

/// Stores a warpgroup's sums in C from (row, col) on: two neighbours, which a thread has of each of
/// its rows, by one instruction where a word begins at every pair.
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

// snippet-begin idlers
/// The smallest number of blocks that needs no more rounds for `tiles` tiles than `most` blocks do:
/// another block would idle in the last round, and take power from the others until then.
inline unsigned blocks_without_idlers(unsigned tiles, unsigned most) {
  const unsigned rounds = (tiles + most - 1) / most;
  return (tiles + rounds - 1) / rounds;
}
// snippet-end idlers

}  // namespace matmul
