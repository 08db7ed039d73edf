// The factor of a score by distance, for ExpoSB, in the kernels of the steps `tiles`.
#pragma once

#include "tile/ptx/exp2.cuh"
#include "windowed/launch.hpp"

namespace windowed_rope {

// snippet-begin weight
/// 1 - part + part 2^(-rate distance); 1 without a distance factor.
struct DistanceWeight {
  float part, rate;  // the rate in units of log2

  __device__ __forceinline__ float of(const Mask& mask, int query, int key) const {
    if (part == 0) return 1;
    const float distance = static_cast<float>(abs(mask.position(query) - key));
    return 1 - part + part * tile::ptx::exp2_approx(-rate * distance);
  }
};
// snippet-end weight
inline DistanceWeight distance_weight_of(const tile::Attention& p) {
  return {p.distance_part, p.distance_rate * kLog2E};
}

}  // namespace windowed_rope
