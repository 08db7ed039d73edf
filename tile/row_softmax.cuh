// Chapter 03's online softmax, on the sums of a warp.
#pragma once

#include <cfloat>

#include "tile/accumulator.cuh"
#include "tile/heads.cuh"
#include "tile/ptx/exp2.cuh"
#include "tile/ptx/quad.cuh"

namespace tile {

// snippet-begin softmax
/// The softmax of a warp's kRows rows, whose scores come some columns at a time. The
/// output so far is a sum of rows of V, weighted relative to the greatest score so far.
template <int kRows>
class RowSoftmax {
 public:
  /// A score's weight is exp2(scale_log2 score): scale_log2 is log2(e) times the scale.
  __device__ explicit RowSoftmax(float scale_log2) : scale_log2_(scale_log2) {
#pragma unroll
    for (float& reference : reference_) reference = -FLT_MAX;
  }

  /// Makes weights of scores. Where a row's greatest score rises, its sum and its output are scaled
  /// down.
  template <int kCols, int kDim>
  __device__ void add(Accumulator<kRows, kCols>& scores, Accumulator<kRows, kDim>& out) {
#pragma unroll
    for (int r = 0; r < kRows / 8; ++r) {
      float max = scores.at(r, 0);
#pragma unroll
      for (int c = 1; c < kCols / 4; ++c) max = fmaxf(max, scores.at(r, c));
      raise(r, scale_log2_ * ptx::max_of_quad(max), out);  // four lanes share a row
#pragma unroll
      for (int c = 0; c < kCols / 4; ++c) {
        float& weight = scores.at(r, c);
        weight = ptx::exp2_approx(fmaf(scale_log2_, weight, -reference_[r]));
        sum_[r] += weight;
      }
    }
  }

  /// Where a row's `max` is above its reference, it becomes the reference, and what was weighted by
  /// the old one is scaled down. If all scores are hidden, -infinity, the reference stays finite,
  /// and the weights are 0.
  template <class Out>
  __device__ __forceinline__ void raise(int r, float max, Out& out) {
    const float reference = fmaxf(reference_[r], max);
    const float correction = ptx::exp2_approx(reference_[r] - reference);
    reference_[r] = reference;
    sum_[r] *= correction;
    out.scale_row(r, correction);
  }
  // snippet-end softmax

  /// Divides the output by the sum of the weights, and gives each row's log sum exp. A row without
  /// a key has the output 0 and -infinity.
  template <int kDim>
  __device__ void finish(Accumulator<kRows, kDim>& out, float (&lse)[kRows / 8]) {
#pragma unroll
    for (int r = 0; r < kRows / 8; ++r) {
      const float sum = ptx::sum_of_quad(sum_[r]);
      const float inverse = sum == 0 ? 0 : 1 / sum;
      lse[r] = sum == 0 ? -INFINITY : reference_[r] * kLn2 + logf(sum);
      out.scale_row(r, inverse);
    }
  }

 protected:
  float scale_log2_;
  float reference_[kRows / 8];  // of each row: the greatest scale_log2 score so far
  float sum_[kRows / 8] = {};   // this lane's part
};

/// Where the head's part of lse, [batch][heads][queries], begins; null if not needed.
template <class Of>
__device__ Of* lse_of_head(Of* lse, const BlockWork& work, int heads, int queries) {
  return lse ? lse + (std::int64_t{work.batch} * heads + work.head) * queries : nullptr;
}

/// Stores what finish() gave of a warp's rows from first_row on, unless it is not needed. Rows are
/// queries, or those of a pack (QueryTiles), whose first head's lse is given.
template <int kLaneRows>
__device__ __forceinline__ void store_lse(const float (&row_lse)[kLaneRows], float* lse,
                                          int first_row, int queries, int log2_pack = 0) {
#pragma unroll
  for (int r = 0; r < kLaneRows; ++r) {
    const int row = first_row + threadIdx.x % 32 / 4 + r * 8;
    const int query = row >> log2_pack, head = row - (query << log2_pack);
    if (lse && query < queries && threadIdx.x % 4 == 0) lse[head * queries + query] = row_lse[r];
  }
}
/// The same of a tile from a queue, and the whole tensor's lse.
template <int kLaneRows>
__device__ __forceinline__ void store_lse(const float (&row_lse)[kLaneRows], float* lse,
                                          const QueryTiles& tiles, const BlockWork& work,
                                          int first_row, int queries) {
  store_lse(row_lse, lse_of_head(lse, work, tiles.heads, queries << tiles.log2_pack), first_row,
            queries, tiles.log2_pack);
}

}  // namespace tile
