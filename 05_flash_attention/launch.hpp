// What the launchers share, and the names of tile/ that this chapter uses.
#pragma once

#include "flash_attention.hpp"
#include "tile/host/attention_launch.hpp"
#include "tile/host/head_dim.hpp"
#include "tile/host/tensor_argument.hpp"

namespace flash_attention {

using tile::blocks_for_tiles, tile::group_of, tile::masks_of, tile::tiles_of;
using tile::BlockWork, tile::Heads, tile::BatchMasks, tile::RowStats;
using tile::check_shared_bytes, tile::with_16_bits_and_head_dim;
using tile::kLog2E, tile::kLn2, tile::kRowsOfTerms;
using tile::work_of_block, tile::work_longest_first, tile::keys_longest_first;

/// Fills in the stats, [batch][heads][rows of stats], at the beginning of the workspace.
tile::Status compute_stats(const AttentionBackward& p, void* stream);

/// The same in the order of wgmma's columns, and zeros for the sums of dQ after them, for the steps
/// with wgmma (tile/host/key_blocks.hpp). The type has 16 bits.
tile::Status compute_column_stats(const AttentionBackward& p, void* stream);

/// dq, as `p` describes q, becomes p.scale times the sums (tile/host/dq_sums.hpp). The type has 16
/// bits.
tile::Status round_dq(const AttentionBackward& p, const float4* sums, const tile::TensorView& dq,
                      void* stream);

}  // namespace flash_attention
