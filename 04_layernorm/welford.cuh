// Mean and variance in one pass: Welford, "Note on a method for calculating corrected sums of
// squares and products" (1962); the merge of two parts is Chan, Golub and LeVeque, "Updating
// formulae and a pairwise algorithm for computing sample variances" (1979).
#pragma once

#include "tile/reduce.cuh"

namespace layernorm {

/// What is known of some numbers: how many, their mean, and the sum of the squares of their
/// distances from it. Shared memory has no constructors, so it has none.
struct Moments {
  float count, mean, squares;
};

struct MergeMoments {
  /// No numbers.
  __device__ Moments identity() const { return {0, 0, 0}; }

  /// One more number: a part of one, whose squares are 0, merged in.
  __device__ Moments operator()(Moments seen, float x) const {
    const float count = seen.count + 1;
    const float distance = x - seen.mean;
    const float mean = seen.mean + distance / count;
    return {count, mean, seen.squares + distance * (x - mean)};
  }

  /// The numbers of both. The merged mean divides the distance between the two in the ratio of the
  /// counts; every number of a part then lies as much farther from it, which adds
  /// distance^2 count_a count_b / count.
  __device__ Moments operator()(Moments a, Moments b) const {
    const float count = a.count + b.count;
    if (count == 0) return {0, 0, 0};
    const float distance = b.mean - a.mean;
    // Alike in a and b, so that all lanes get the same bits. Without __fmul_rn the compiler would
    // round one of the two products and not the other.
    return {count, (__fmul_rn(a.count, a.mean) + __fmul_rn(b.count, b.mean)) / count,
            a.squares + b.squares + distance * distance * (a.count * b.count / count)};
  }
};

__device__ __forceinline__ Moments reduce_lanes(Moments seen, MergeMoments merge,
                                                int lanes = tile::kWarp) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    seen = merge(seen, Moments{__shfl_xor_sync(tile::kAllLanes, seen.count, distance),
                               __shfl_xor_sync(tile::kAllLanes, seen.mean, distance),
                               __shfl_xor_sync(tile::kAllLanes, seen.squares, distance)});
  }
  return seen;
}

}  // namespace layernorm
