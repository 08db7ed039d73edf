// What four neighbouring lanes exchange: those that share a row of a fragment (fragments.hpp).
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace tile::ptx {

// snippet-begin transpose
/// Four neighbouring lanes hold four values each: value i of lane l belongs to column l of row i.
/// Afterwards lane l has row l. First neighbours exchange two values, then pairs of lanes do.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&v)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; ++distance) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      std::uint32_t &low = v[i], &high = v[i + distance];
      const std::uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? low : high, distance);
      (upper ? low : high) = other;
    }
  }
}
// snippet-end transpose

/// The greatest value of four neighbouring lanes, in all four of them.
__device__ __forceinline__ float max_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
}

/// Their sum, to the same bits in all four.
__device__ __forceinline__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 2);
  return value + __shfl_xor_sync(0xffffffffu, value, 1);
}

}  // namespace tile::ptx
