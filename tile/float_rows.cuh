// Attention in fp32: tiles of rows in shared memory, of which a lane has the elements lane,
// lane + 32, …
#pragma once

#include "tile/basics.cuh"
#include "tile/host/status.hpp"
#include "tile/ptx/exp2.cuh"
#include "tile/reduce.cuh"

namespace tile {

inline constexpr int kMaxFloatDim = 256, kLaneDims = kMaxFloatDim / kWarp;

/// Whether lanes have registers for the elements of a row.
inline Status check_float_dim(std::int64_t dim) {
  if (dim <= kMaxFloatDim) return {};
  return unsupported("head_dim", std::to_string(dim) + " is more than 256");
}

// snippet-begin load
/// Copies `count` rows of dim elements to shared memory as floats. The other rows, up to kRows,
/// become 0. Rows lie dim + 1 floats apart, so that lanes that read the same element of consecutive
/// rows use different banks.
template <int kRows, class T>
__device__ void load_rows(float* smem, Rows<const T> from, int count, int dim) {
  for (int i = threadIdx.x; i < kRows * dim; i += static_cast<int>(blockDim.x)) {
    const int row = i / dim, d = i % dim;
    smem[row * (dim + 1) + d] = row < count ? static_cast<float>(from[row][d]) : 0;
  }
}
// snippet-end load

/// Rows in the shared memory of a block of the backward pass: kKept that it keeps and kPassing of a
/// tile of its loop, as two tensors have them: those of scores, and those of dP = dO V^T.
template <int kKept, int kPassing>
struct FloatTiles {
  float *kept, *kept_dp;        // [kKept][dim + 1]
  float *passing, *passing_dp;  // [kPassing][dim + 1]

  static std::int64_t bytes(std::int64_t dim) {
    return 2 * (kKept + kPassing) * (dim + 1) * static_cast<std::int64_t>(sizeof(float));
  }
  __device__ __forceinline__ FloatTiles(float* smem, int dim)
      : kept(smem),
        kept_dp(kept + kKept * (dim + 1)),
        passing(kept_dp + kKept * (dim + 1)),
        passing_dp(passing + kPassing * (dim + 1)) {}
};

template <class T>
__device__ float dot(const T* a, const T* b, int dim) {
  float sum = 0;
  for (int d = 0; d < dim; ++d) sum += static_cast<float>(a[d]) * static_cast<float>(b[d]);
  return sum;
}

// snippet-begin softmax
/// A query's online softmax, in units of log2: of its scores each lane of a warp has some.
struct LaneSoftmax {
  float reference = -INFINITY, sum = 0;  // the greatest score so far; this lane's part of the sum

  /// P of this lane's next score. Where the greatest score rises, sum and output so far are scaled
  /// down.
  __device__ float weigh(float score, float (&out)[kLaneDims]) {
    const float max = fmaxf(reference, reduce_lanes(score, Max{}));
    const float finite = max == -INFINITY ? 0 : max;  // -infinity minus itself is NaN
    const float correction = ptx::exp2_approx(reference - finite);
    const float weight = ptx::exp2_approx(score - finite);
    reference = max;
    sum = sum * correction + weight;
#pragma unroll
    for (float& each : out) each *= correction;
    return weight;
  }
};
// snippet-end softmax

// snippet-begin add
/// For each of kSums sums: += the sum over 32 rows of shared memory, each times its lane's number.
template <int kSums>
__device__ void add_rows(float (&sums)[kSums][kLaneDims], const float (&of_lane)[kSums],
                         const float* rows, int dim) {
  const int lane = threadIdx.x % kWarp;
  for (int j = 0; j < kWarp; ++j) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const float of_row = __shfl_sync(kAllLanes, of_lane[i], j);
#pragma unroll
      for (int e = 0; e < kLaneDims; ++e) {
        const int d = lane + e * kWarp;
        if (d < dim) sums[i][e] += of_row * rows[j * (dim + 1) + d];
      }
    }
  }
}
// snippet-end add
__device__ inline void add_rows(float (&sums)[kLaneDims], float of_lane, const float* rows,
                                int dim) {
  add_rows(reinterpret_cast<float(&)[1][kLaneDims]>(sums), {of_lane}, rows, dim);
}

/// A row of global memory becomes scale times the sums.
template <class T>
__device__ void store_row(T* row, const float (&sums)[kLaneDims], float scale, int dim) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int e = 0; e < kLaneDims; ++e) {
    const int d = lane + e * kWarp;
    if (d < dim) row[d] = static_cast<T>(scale * sums[e]);
  }
}

}  // namespace tile
