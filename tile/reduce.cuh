// Reductions: one value out of those that the threads of a warp or a block hold.
#pragma once

#include <cmath>

#include "tile/basics.cuh"

namespace tile {

// snippet-begin lanes
/// The reduction of `value` over a group of `lanes` neighbouring lanes, a power of two, in all of
/// them. All lanes of the warp call it. `merge` must give the same bits if its arguments are
/// exchanged: then all lanes of a group get the same bits.
///
/// In round i each lane merges its value with that of the lane at distance lanes / 2^i, so that
/// after log2(lanes) rounds every lane has merged all values.
template <class T, class Merge>
__device__ __forceinline__ T reduce_lanes(T value, Merge merge, int lanes = kWarp) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = merge(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}
// snippet-end lanes

// snippet-begin block
/// The reduction over all threads of a block of whole warps, in every thread and to the same bits.
/// `partial` lies in shared memory. A kernel that uses it again must wait at a barrier first: a
/// slow warp may still be reading.
template <class T, class Merge>
__device__ __forceinline__ T reduce_block(T value, Merge merge, T* partial) {  // [warps]
  const int thread = static_cast<int>(threadIdx.x);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = thread % kWarp;
  value = reduce_lanes(value, merge);
  if (warps == 1) return value;
  if (lane == 0) partial[thread / kWarp] = value;
  __syncthreads();  // all partial results are there
  // Every warp merges all of them, a lane each, so that no second barrier is needed.
  return reduce_lanes(lane < warps ? partial[lane] : merge.identity(), merge);
}
// snippet-end block

struct Add {
  __device__ float identity() const { return 0; }
  __device__ float operator()(float a, float b) const { return a + b; }
};

/// The greater of two numbers, -infinity before anything. A NaN is ignored, as by fmaxf.
struct Max {
  __device__ float identity() const { return -INFINITY; }
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

}  // namespace tile
