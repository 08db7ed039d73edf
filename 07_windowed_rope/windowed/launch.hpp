// What the launchers share, and the names of tile/ that this chapter uses.
#pragma once

#include <algorithm>
#include <string>

#include "tile/host/dq_sums.hpp"
#include "tile/host/head_dim.hpp"
#include "tile/host/tensor_argument.hpp"
#include "windowed/window.hpp"
#include "windowed/windowed_rope.hpp"

namespace windowed_rope {

using tile::blocks_for_tiles, tile::group_of, tile::masks_of, tile::tiles_of;
using tile::BlockWork, tile::Heads, tile::BatchMasks, tile::RowStats;
using tile::check_shared_bytes, tile::with_16_bits_and_head_dim;
using tile::kLog2E, tile::kLn2, tile::kRowsOfTerms;
using tile::work_of_block, tile::work_longest_first, tile::keys_longest_first;

inline Window window_of(const tile::Attention& p) {
  return {static_cast<int>(std::clamp<std::int64_t>(p.window, 0, kUnlimited))};
}

/// Fills in the stats, [batch][heads][rows of stats], at the beginning of the workspace.
tile::Status compute_stats(const AttentionBackward& p, void* stream);

/// The same in the order of wgmma's columns, and zeros for both sums of dQ after them, for step
/// `wgmma`. The type has 16 bits.
tile::Status compute_column_stats(const AttentionBackward& p, void* stream);

/// Each [batch][heads][rows of stats / 16][head_dim / 8][32 lanes], as mma leaves them; not scaled.
struct DqSums {
  float4 *near, *far;  // of dq and dq_far
};
/// They lie in the workspace after the stats, for which there is room of either kind.
inline DqSums dq_sums_of(const AttentionBackward& p) {
  const std::int64_t rows = tile::rows_of_dq_sums(p);
  auto* near = static_cast<float4*>(p.workspace) + rows;  // stats of 16 bytes a row
  return {near, near + rows * (p.head_dim / 4)};
}

/// dq, as `p` describes q, becomes p.scale times the sums (tile/host/dq_sums.hpp). The type has 16
/// bits.
tile::Status round_dq(const AttentionBackward& p, const float4* sums, const tile::TensorView& dq,
                      void* stream);

}  // namespace windowed_rope
