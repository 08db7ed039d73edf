// Random bits that depend only on a seed and a place, for inputs that are made on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tile {

// The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
__device__ inline std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// 64 bits for the element at (row, col).
__device__ inline std::uint64_t random_bits(std::uint64_t seed, std::int64_t row,
                                            std::int64_t col) {
  return mix(mix(mix(seed) + static_cast<std::uint64_t>(row)) + static_cast<std::uint64_t>(col));
}

}  // namespace tile
