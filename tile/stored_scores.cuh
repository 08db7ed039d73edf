// Attention backward, where a block's P^T and dS^T lie in shared memory: what a warp adds to the
// gradients from those that other warps have stored.
#pragma once

#include "tile/ptx/red.cuh"
#include "tile/shared_tile.cuh"

namespace tile {

/// dV += P^T dO and dK += dS^T Q for kPart queries, from `first` in the tile on, whose weights
/// another warp has stored: P^T and dS^T are [keys][queries], this warp's from row `key` on. Its
/// columns of the sums begin with column col0.
template <class T, int kPart, int kKeys, int kCols, class ScoreTile, class Tile>
__device__ __forceinline__ void add_stored_part(Accumulator<kKeys, kCols>& dv_sums,
                                                Accumulator<kKeys, kCols>& dk_sums,
                                                const ScoreTile& p_tile, const ScoreTile& ds_tile,
                                                int key, const Tile& dout_tile, const Tile& q_tile,
                                                int first, int col0) {
#pragma unroll
  for (int depth = first; depth < first + kPart; depth += 16) {
    Fragment<kKeys, 16> fragment;
    load(fragment, p_tile, key, depth);
    mma_AB<T>(dv_sums, fragment, dout_tile, depth, col0);
    load(fragment, ds_tile, key, depth);
    mma_AB<T>(dk_sums, fragment, q_tile, depth, col0);
  }
}

// snippet-begin add
/// Adds a warp's part of dQ = dS K of a tile of queries to the sums: kRows rows from `row` in the
/// tile on, and kCols columns from `col` on. dS^T is [keys][queries] in shared memory. The tile
/// begins with row first_row of all heads, a multiple of 16.
template <class T, int kRows, int kCols, class ScoreTile, class KeyTile>
__device__ __forceinline__ void add_dq(float4* sums, std::int64_t first_row,
                                       const ScoreTile& ds_tile, const KeyTile& k_tile, int row,
                                       int col) {
  Accumulator<kRows, kCols> dq;
#pragma unroll
  for (int depth = 0; depth < KeyTile::kRows; depth += 16) {
    Fragment<kRows, 16> fragment;
    load_transposed(fragment, ds_tile, depth, row);
    mma_AB<T>(dq, fragment, k_tile, depth, col);
  }
  constexpr int kRowOctets = KeyTile::kCols / 8;
  float4* to = sums + ((first_row + row) / 16 * kRowOctets + col / 8) * 32 + threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kCols / 8; ++j) {
      const float(&sum)[4] = dq.mma[i][j];
      ptx::red_add(to + (i * kRowOctets + j) * 32, {sum[0], sum[1], sum[2], sum[3]});
    }
  }
}
// snippet-end add

}  // namespace tile
