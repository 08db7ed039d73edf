// Shared by the kernels of this chapter: the options of a problem, a maximum and a sum that are
// found in one pass, and the formula for an element.
#pragma once

#include "softmax.hpp"
#include "tile/basics.cuh"
#include "tile/ptx/exp2.cuh"
#include "tile/reduce.cuh"
#include "tile/rows.cuh"

namespace softmax {

inline constexpr float kLog2E = 1.44269504f;

/// The problem without its pointers.
struct Params {
  std::int64_t rows, cols, queries;
  bool causal, log;
  float scale, factor;  // exp(scale x) is 2^(factor x), and 2^x is what the hardware computes

  /// How many columns of a row are visible: the first ones.
  template <bool kPlain = false>
  __device__ std::int64_t visible(std::int64_t row) const {
    if (kPlain || !causal) return cols;
    const std::int64_t last = row % queries + cols - queries;  // below 0 for a query without keys
    return last < 0 ? 0 : last + 1;
  }
  __device__ float hidden() const { return log ? -INFINITY : 0.f; }  // y of the others
};

template <class Problem>
Params params_of(const Problem& p) {
  return {p.rows, p.cols, p.queries, p.causal, p.log, p.scale, p.scale * kLog2E};
}

/// The numbers seen so far: their maximum, and the sum of 2^(factor (x - max)) over them.
struct MaxSum {
  float max, sum;
};

/// The number to subtract: `max`, but finite if all numbers are -infinity, or NaN would result.
__device__ __forceinline__ float finite_reference(float max) {
  return max == -INFINITY ? 0.f : max;
}

// snippet-begin merge
/// Merges the pairs of two slices of a row. The sum with the smaller maximum is scaled down to
/// the greater one, where its terms are what they would have been from the start:
/// 2^(f (x - low)) 2^(f (low - high)) = 2^(f (x - high)).
struct MergeMaxSum {
  float factor;

  /// Nothing seen.
  __device__ __forceinline__ MaxSum identity() const { return {-INFINITY, 0}; }
  /// The sum as it would be with the greater maximum `max`.
  __device__ __forceinline__ float rescaled(MaxSum seen, float max) const {
    return seen.sum * tile::ptx::exp2_approx(factor * (seen.max - finite_reference(max)));
  }
  __device__ __forceinline__ MaxSum operator()(MaxSum a, MaxSum b) const {
    const float max = fmaxf(a.max, b.max);
    return {max, rescaled(a, max) + rescaled(b, max)};
  }
};
// snippet-end merge

// snippet-begin lanes
/// tile::reduce_lanes() of such pairs. Merging pairs in every round would compute two exponentials
/// a round. Here the lanes agree on the maximum first, and each rescales once.
__device__ __forceinline__ MaxSum reduce_lanes(MaxSum seen, MergeMaxSum merge,
                                               int lanes = tile::kWarp) {
  const float max = tile::reduce_lanes(seen.max, tile::Max{}, lanes);
  return {max, tile::reduce_lanes(merge.rescaled(seen, max), tile::Add{}, lanes)};
}
// snippet-end lanes

/// Every 32nd of `count` pairs, from `first` on: tile::merge_some() with one exponential a pair.
__device__ __forceinline__ MaxSum merge_some(const MaxSum* pairs, int first, int count,
                                             MergeMaxSum merge) {
  MaxSum seen = merge.identity();
  for (int i = first; i < count; i += tile::kWarp) seen.max = fmaxf(seen.max, pairs[i].max);
  for (int i = first; i < count; i += tile::kWarp) seen.sum += merge.rescaled(pairs[i], seen.max);
  return seen;
}

/// x to y, once the row's maximum and sum are known. kPlain: no logarithm.
template <bool kPlain = false>
struct Normalize {
  float scale, factor, max;
  float last;  // 1 / sum; for the logarithm log(sum)
  bool log;

  __device__ Normalize(const Params& params, MaxSum row)
      : scale(params.scale),
        factor(params.factor),
        max(finite_reference(row.max)),
        // The sum is 0 if the row has no weight: then every visible x is -infinity.
        last(row.sum == 0            ? 0
             : !kPlain && params.log ? logf(row.sum)
                                     : 1 / row.sum),
        log(params.log) {}

  __device__ float operator()(float x) const {
    // Subtracting first keeps the digits of large numbers that differ by little.
    if (!kPlain && log) return scale * (x - max) - last;
    return tile::ptx::exp2_approx(factor * (x - max)) * last;
  }
};

/// Chunk i of a slice of x as floats, -infinity where it is not visible. kPlain: a chunk is visible
/// or hidden as a whole, and the slice already has -infinity for a hidden one.
template <bool kPlain, class Slice>
__device__ __forceinline__ void load_visible(const Slice& x, int i, int visible,
                                             float (&value)[Slice::kChunkWidth]) {
  x.chunk(i).to_floats(value);
#pragma unroll
  for (int e = 0; e < Slice::kChunkWidth; ++e) {
    if (!kPlain && x.column(i) + e >= visible) value[e] = -INFINITY;
  }
}

/// The greatest visible element of that chunk.
template <bool kPlain, class Slice>
__device__ __forceinline__ float max_visible(const Slice& x, int i, int visible) {
  if constexpr (kPlain) return x.chunk(i).max();
  float value[Slice::kChunkWidth], max = -INFINITY;
  load_visible<kPlain>(x, i, visible, value);
#pragma unroll
  for (const float each : value) max = fmaxf(max, each);
  return max;
}

/// Backward: the terms of a row's sum, and the formula for an element. kPlain: no logarithm.
template <bool kPlain = false>
struct Gradient {
  float scale;
  bool log;

  __device__ explicit Gradient(const Params& params) : scale(params.scale), log(params.log) {}

  __device__ float term(float y, float dy) const { return !kPlain && log ? dy : y * dy; }
  __device__ float operator()(float y, float dy, float sum) const {
    if (!kPlain && log) return scale * (dy - tile::ptx::exp2_approx(kLog2E * y) * sum);
    return scale * (y * (dy - sum));
  }
};

}  // namespace softmax
