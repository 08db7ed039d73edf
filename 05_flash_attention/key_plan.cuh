// Backward, from step 4 on: how blocks that keep keys divide them among warps.
#pragma once

#include "tile/query_stage.cuh"

namespace flash_attention {

/// Keys are kept, and the loop is over queries. The gradients of 32 keys and 64 columns fill half
/// of a warp's registers. So beyond 64 columns kSharing warps share 32 keys; each computes the
/// weights of its part of the queries and passes them to the others.
template <int kDim>
struct KeyPlan {
  // Two blocks of 4 warps, or one of 8, leave a lane 255 registers.
  static constexpr int kWarps = kDim <= 64 ? 4 : 8, kBlocks = kDim <= 64 ? 2 : 1;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = 32;                         // of a warp
  static constexpr int kCols = kDim <= 64 ? kDim : 64;     // of a warp's gradients
  static constexpr int kSharing = kDim / kCols;            // warps
  static constexpr int kKept = kWarps / kSharing * kRows;  // rows of a block
  static constexpr int kPassing = 64;                      // rows of a tile of the loop
  // A warp computes the weights of kPart queries at once, kParts times.
  static constexpr int kPart = kDim <= 128 ? 32 : 16, kParts = kPassing / kPart / kSharing;
  static_assert(kSharing == 1 || kParts == 1);
  static constexpr int kScoreBytes = 2 * kKept * kPassing;  // of P or dS of a tile
  static constexpr int kStageBytes = tile::QueryStage<__half, kPassing, kDim>::kBytes;
  /// Shared memory: keys, values, what passes by, and P and dS if warps exchange them. Unless it is
  /// given, one tile of queries and their dO passes by.
  static constexpr int bytes(int passing = 2 * kPassing * kDim * 2) {
    return 2 * kKept * kDim * 2 + passing + (kSharing > 1 ? 2 * kScoreBytes : 0);
  }
};

}  // namespace flash_attention
