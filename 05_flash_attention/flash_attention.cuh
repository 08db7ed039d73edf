// The masks as the kernels see them, and what the launchers share.
#pragma once

#include "flash_attention.hpp"
#include "tile/host/head_dim.hpp"
#include "tile/host/text.hpp"
#include "tile/masks.cuh"

namespace flash_attention {

using tile::blocks_for_tiles, tile::group_of, tile::tiles_of;
using tile::BlockWork, tile::Heads, tile::BatchMasks, tile::RowStats;
using tile::kLog2E, tile::kLn2, tile::kRowsOfTerms;
using tile::with_16_bits_and_head_dim;
using tile::work_of_block, tile::work_longest_first, tile::keys_longest_first;

template <class Problem, class Buffers>
BatchMasks masks_of(const Problem& p, const Buffers& buffers) {
  const auto window = [](std::int64_t width) {
    return static_cast<int>(width < kUnlimited ? width : kUnlimited);
  };
  return {static_cast<int>(p.queries), static_cast<int>(p.keys), window(p.left), window(p.right),
          buffers.query_lengths,       buffers.key_lengths};
}

/// Fills in the stats, [batch][heads][rows of stats], at the beginning of the workspace.
tile::Status compute_stats(const BackwardProblem& problem, const BackwardBuffers& buffers,
                           void* stream);

}  // namespace flash_attention
