// BatchMasks and windows as the kernels see them, and what the launchers share.
#pragma once

#include <algorithm>
#include <string>

#include "tile/host/head_dim.hpp"
#include "tile/host/launch.hpp"
#include "tile/host/text.hpp"
#include "tile/masks.cuh"
#include "windowed/windowed_rope.hpp"

namespace windowed_rope {

using tile::blocks_for_tiles, tile::group_of, tile::tiles_of;
using tile::BlockWork, tile::Heads, tile::BatchMasks, tile::RowStats;
using tile::kLog2E, tile::kLn2, tile::kRowsOfTerms;
using tile::with_16_bits_and_head_dim;
using tile::work_of_block, tile::work_longest_first, tile::keys_longest_first;

template <class Problem, class Buffers>
BatchMasks masks_of(const Problem& p, const Buffers& buffers) {
  return {static_cast<int>(p.queries),     static_cast<int>(p.keys), tile::kMaxLength,
          p.causal ? 0 : tile::kMaxLength, buffers.query_lengths,    buffers.key_lengths};
}
template <class Problem>
Window window_of(const Problem& p) {
  return {static_cast<int>(std::clamp<std::int64_t>(p.window, 0, kUnlimited))};
}

/// Whether a block of the card can have so much shared memory. It grows with the head dimension.
template <class Problem>
tile::Status check_shared_bytes(const Problem& p, std::int64_t bytes, const tile::Device& device) {
  if (bytes <= device.shared_bytes_of_block) return {};
  return tile::unsupported("head_dim", std::to_string(p.head_dim) + " needs " +
                                           tile::counted(bytes, "byte") + " of shared memory");
}

/// Each [batch][heads][rows of stats / 16][head_dim / 8][32 lanes], as mma leaves them; not scaled.
struct DqSums {
  float4 *near, *far;  // of dq1 and dq2
};
/// Where they lie in the workspace of step `one_pass`, after the stats; all zeros.
tile::Status clear_sums(const BackwardProblem& problem, const BackwardBuffers& buffers,
                        DqSums* sums, void* stream);
/// Step `one_pass`. If `sums` is not null, the sums stay in the workspace, and dq1 and dq2 are not
/// written.
tile::Status one_pass_to_sums(const BackwardProblem& problem, const BackwardBuffers& buffers,
                              DqSums* sums, void* stream);

/// Fills in the stats, [batch][heads][rows of stats], at the beginning of the workspace.
tile::Status compute_stats(const BackwardProblem& problem, const BackwardBuffers& buffers,
                           void* stream);

}  // namespace windowed_rope
