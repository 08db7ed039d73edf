// Backward, steps 4 and 5: how blocks that keep queries divide them among warps.
#pragma once

#include "tile/shared_tile.cuh"

namespace flash_attention {

/// Queries are kept, and the loop is over keys.
template <int kDim>
struct QueryPlan {
  static constexpr int kWarps = kDim <= 128 ? 4 : 8, kBlocks = kDim <= 128 ? 2 : 1;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kDim <= 128 ? 32 : 16;
  static constexpr int kKept = kWarps * kRows, kPassing = kDim <= 64 ? 64 : 32;
  static constexpr int kPart = 32;           // keys whose weights a warp computes at once
  static constexpr bool kKeep = kDim <= 64;  // its queries and their dO in registers
  /// Shared memory, with so many tiles of keys and values.
  static constexpr int bytes(int stages) { return 2 * (kKept + stages * kPassing) * kDim * 2; }
};

/// sums += A B^T as by tile::mma_ABt. A is rows of a tile, unless the fragment has all of them.
template <class T, int kRows, int kCols, int kDepth, class LeftTile, class Tile>
__device__ __forceinline__ void mma_ABt(tile::Accumulator<kRows, kCols>& sums,
                                        const tile::Fragment<kRows, kDepth>& kept,
                                        const LeftTile& left, int left_row0, const Tile& tile,
                                        int row0) {
  if constexpr (kDepth == LeftTile::kCols) {
    tile::mma_ABt<T>(sums, kept, tile, row0);
  } else {
    tile::mma_ABt<T>(sums, left, left_row0, tile, row0);
  }
}

}  // namespace flash_attention
