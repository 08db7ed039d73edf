// How moments of two parts of a row are merged.
#pragma once

#include "layernorm.hpp"
#include "tile/reduce.cuh"

namespace layernorm {

// snippet-begin moments
struct MergeMoments {
  __device__ Moments identity() const { return {0, 0, 0}; }

  /// One more number.
  __device__ Moments operator()(Moments seen, float x) const {
    const float count = seen.count + 1;
    const float distance = x - seen.mean;
    const float mean = seen.mean + distance / count;
    return {count, mean, seen.squares + distance * (x - mean)};
  }

  /// The numbers of both parts. The merged mean lies distance count_b / count from a's mean and
  /// distance count_a / count from b's. Around it, instead of around each part's own mean, the
  /// squares are greater by distance^2 count_a count_b / count.
  __device__ Moments operator()(Moments a, Moments b) const {
    const float count = a.count + b.count;
    if (count == 0) return {0, 0, 0};
    const float distance = b.mean - a.mean;
    // Symmetric in a and b, so that all lanes get the same bits. Without __fmul_rn the compiler
    // would round one of the two products and not the other.
    return {count, (__fmul_rn(a.count, a.mean) + __fmul_rn(b.count, b.mean)) / count,
            a.squares + b.squares + distance * distance * (a.count * b.count / count)};
  }
};

/// tile::reduce_block() finds this overload by argument-dependent lookup.
__device__ inline Moments reduce_lanes(Moments seen, MergeMoments merge, int lanes = tile::kWarp) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    seen = merge(seen, Moments{__shfl_xor_sync(tile::kAllLanes, seen.count, distance),
                               __shfl_xor_sync(tile::kAllLanes, seen.mean, distance),
                               __shfl_xor_sync(tile::kAllLanes, seen.squares, distance)});
  }
  return seen;
}
// snippet-end moments

}  // namespace layernorm
