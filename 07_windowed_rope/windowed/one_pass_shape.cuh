// How a block of the fastest backward loop with mma divides its work.
#pragma once

#include "tile/query_stage.cuh"
#include "tile/stored_scores.cuh"
#include "windowed/launch.hpp"

namespace windowed_rope {

/// How a block divides its tiles among warps. At 128 columns two warps share 32 keys: each computes
/// the weights of half of the queries, and has half of the columns of dK and dV.
template <int kDim>
struct OnePassShape {
  static constexpr int kWarps = kDim == 64 ? 4 : 8, kBlocks = kDim == 64 ? 2 : 1;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kCols = 64, kSharing = kDim / kCols;
  static constexpr int kKept = kWarps / kSharing * 32, kPassing = 64;
  static constexpr int kPart = 32, kParts = kPassing / kPart / kSharing;
  static constexpr int kDqRows = 32, kDqCols = 32;  // the part of dQ that a warp computes
  static_assert(kPassing / kDqRows * (kDim / kDqCols) == kWarps);

  static constexpr int kStageBytes = tile::QueryStage<__half, kPassing, kDim>::kBytes;
  static constexpr int kScoreBytes = kKept * kPassing * 2;  // of dS; with sharing also of P
  static constexpr int kBytes =
      2 * kKept * kDim * 2 + 2 * kStageBytes + (kSharing > 1 ? 2 : 1) * kScoreBytes;
};

inline tile::Status clear(const AttentionBackward& p, const DqSums& sums, void* stream) {
  TILE_TRY(tile::clear_dq_sums(p, sums.near, stream));
  return tile::clear_dq_sums(p, sums.far, stream);
}

}  // namespace windowed_rope
