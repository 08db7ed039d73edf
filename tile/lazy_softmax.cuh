// RowSoftmax that raises its reference only when a score is far above it.
#pragma once

#include "tile/row_softmax.cuh"

namespace tile {

/// Stands in for an output that tensor cores still add to: keeps the factor of each row until the
/// output may be scaled.
template <int kRows>
struct Corrections {
  float of[kRows / 8];
  __device__ __forceinline__ void scale_row(int r, float by) { of[r] = by; }
};

// snippet-begin softmax
/// RowSoftmax in two halves: look_at() new scores, then weigh() them. A weight may exceed 1.
template <int kRows>
class LazySoftmax : public RowSoftmax<kRows> {
 public:
  using RowSoftmax<kRows>::RowSoftmax;

  /// Raises the reference of rows with scores far above it, and scales down their sum and output.
  /// In all other rows a weight stays at most 2^8, which every type holds with all its digits.
  /// Returns whether the warp has such rows.
  template <int kCols, class Out>
  __device__ __forceinline__ bool look_at(const Accumulator<kRows, kCols>& scores, Out& out) {
    constexpr float kMaxAbove = 8;
    float max[kRows / 8];  // of this lane
    bool is_above = false;
#pragma unroll
    for (int r = 0; r < kRows / 8; ++r) {
      max[r] = scores.at(r, 0);
#pragma unroll
      for (int c = 1; c < kCols / 4; ++c) max[r] = fmaxf(max[r], scores.at(r, c));
      max[r] *= this->scale_log2_;
      is_above = is_above || max[r] > this->reference_[r] + kMaxAbove;
    }
    if (!__any_sync(kAllLanes, is_above)) return false;
#pragma unroll
    for (int r = 0; r < kRows / 8; ++r) {
      // Each row depends on its own scores only, not on the warp's other rows.
      const bool is_raised = max[r] > this->reference_[r] + kMaxAbove;
      this->raise(r, ptx::max_of_quad(is_raised ? max[r] : -INFINITY), out);
    }
    return true;
  }

  /// Makes weights of four scores, those of one mma: number `n` of kRows kCols / 128.
  template <int kCols>
  __device__ __forceinline__ void weigh(Accumulator<kRows, kCols>& scores, int n) {
    const int i = n / (kCols / 8), j = n % (kCols / 8);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = i * 2 + e / 2;
      float& weight = scores.mma[i][j][e];
      weight = ptx::exp2_approx(fmaf(this->scale_log2_, weight, -this->reference_[r]));
      this->sum_[r] += weight;
    }
  }
};
// snippet-end softmax

}  // namespace tile
