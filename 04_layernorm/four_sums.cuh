// The sums over four rows at once, for forward steps 4 and 8.
#pragma once

#include "tile/reduce.cuh"

namespace layernorm {

inline constexpr int kRows = 4;  // of a thread

// snippet-begin lanes
/// The sums over a group of `lanes` lanes, 4 at least, a power of two: its lane i gets the one of
/// row i / (lanes / 4). A lane exchanges its sums of two rows for those of the other two, in the
/// next round one for one, and has a single number for the rounds that remain.
__device__ __forceinline__ float exchange_and_add(const float (&own)[kRows], int lane, int lanes) {
  int distance = lanes / 2;
  auto exchange = [&](float lower, float upper) {
    const bool is_upper = (lane & distance) != 0;
    const float given = is_upper ? lower : upper;
    return (is_upper ? upper : lower) + __shfl_xor_sync(tile::kAllLanes, given, distance);
  };
  const float first = exchange(own[0], own[2]), second = exchange(own[1], own[3]);
  distance /= 2;
  return tile::reduce_lanes(exchange(first, second), tile::Add{}, distance);
}
// snippet-end lanes

/// Replaces what each thread has of its rows by the sums over the threads of these rows, to the
/// same bits in all of them. A row has `threads` threads along x, which are lanes of one warp
/// (kParts) or whole warps, and in these `partial` is of shared memory that was not used before,
/// of the same rows.
template <bool kParts>
__device__ __forceinline__ void add_up(float (&rows)[kRows], int threads,
                                       float* partial) {  // [warps][kRows]
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % tile::kWarp;
  const int lanes = kParts ? threads : tile::kWarp;
  const int lanes_of_sum = lanes / kRows;
  float sum = exchange_and_add(rows, lane, lanes);
  if constexpr (!kParts) {
    if (lane % lanes_of_sum == 0) {
      partial[thread / tile::kWarp * kRows + lane / lanes_of_sum] = sum;
    }
    __syncthreads();  // the sums of all warps are there
    // A lane each. Lanes that are kRows apart have sums of the same row.
    sum = lane < threads / tile::kWarp * kRows ? partial[lane] : 0;
#pragma unroll
    for (int distance = kRows; distance < tile::kWarp; distance *= 2) {
      sum += __shfl_xor_sync(tile::kAllLanes, sum, distance);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows[i] = __shfl_sync(tile::kAllLanes, sum, kParts ? i * lanes_of_sum : i, lanes);
  }
}

}  // namespace layernorm
