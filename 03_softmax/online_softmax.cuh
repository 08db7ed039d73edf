// The maximum and the sum of a softmax in one pass: Milakov and Gimelshein, "Online normalizer
// calculation for softmax" (2018), arXiv 1805.02867.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

#include "tile/ptx/exp2.cuh"
#include "tile/reduce.cuh"

namespace tile {

inline constexpr float kLog2E = 1.44269504f;

/// The numbers seen so far: their maximum, and the sum of 2^(factor (x - max)) over them. Trivial,
/// as shared memory wants it.
struct MaxSum {
  float max, sum;
};

/// What numbers are compared with: -infinity minus itself would be NaN, and where all are -infinity
/// any finite number does, as exp of -infinity is 0 all the same.
__device__ __forceinline__ float finite_reference(float max) {
  return max == -INFINITY ? 0.f : max;
}

// snippet-begin merge
/// Merges what was seen of two parts of a row, or of a part and one more number. The sum with the
/// smaller maximum is scaled down to the greater one, where its terms are what they would have been
/// from the start: 2^(f (x - low)) 2^(f (low - high)) = 2^(f (x - high)).
struct MergeMaxSum {
  float factor;  // of the exponents: exp(scale x) is 2^(factor x) with factor = scale log2(e)

  /// Nothing seen.
  __device__ __forceinline__ MaxSum identity() const { return {-INFINITY, 0}; }

  /// The sum as it would be with the greater maximum `max`.
  __device__ __forceinline__ float rescaled(MaxSum seen, float max) const {
    return seen.sum * ptx::exp2_approx(factor * (seen.max - finite_reference(max)));
  }

  __device__ __forceinline__ MaxSum operator()(MaxSum a, MaxSum b) const {
    const float max = fmaxf(a.max, b.max);
    return {max, rescaled(a, max) + rescaled(b, max)};
  }

  __device__ __forceinline__ MaxSum operator()(MaxSum seen, float x) const {
    if (x > seen.max) {
      // The new number's own term is 2^0 = 1, but NaN for infinity, whose row has no softmax.
      return {x, rescaled(seen, x) + (1 + (x - x))};
    }
    return {seen.max, seen.sum + ptx::exp2_approx(factor * (x - finite_reference(seen.max)))};
  }
};
// snippet-end merge

// snippet-begin lanes
/// The same over a group of lanes. Merging pairs in every round would compute two exponentials a
/// round. Here the lanes agree on the maximum first, and each rescales once.
__device__ __forceinline__ MaxSum reduce_lanes(MaxSum seen, MergeMaxSum merge, int lanes = kWarp) {
  const float max = reduce_lanes(seen.max, Max{}, lanes);
  return {max, reduce_lanes(merge.rescaled(seen, max), Add{}, lanes)};
}
// snippet-end lanes

/// Every 32nd of `count` pairs, from `first` on, in the same way.
__device__ __forceinline__ MaxSum merge_some(const MaxSum* pairs, int first, int count,
                                             MergeMaxSum merge) {
  MaxSum seen = merge.identity();
  for (int i = first; i < count; i += kWarp) seen.max = fmaxf(seen.max, pairs[i].max);
  for (int i = first; i < count; i += kWarp) seen.sum += merge.rescaled(pairs[i], seen.max);
  return seen;
}

}  // namespace tile
