// Pairs of kernels as in check_kernels.hpp, which copy by TMA or meet at named barriers.
#pragma once

#include <cstdint>
#include <span>

#include "tile/host/tensor_map.hpp"

namespace device_test {

inline constexpr unsigned kAsyncThreads = 64, kAsyncBlocks = 2;

struct AsyncMemory {
  const float* in;             // 1024, a matrix of 32 columns
  float* out;                  // as many
  tile::TensorMap map;         // of `in`, boxes of 32 x 4
  tile::TensorMap map_of_out;  // as map
};

struct AsyncPair {
  const char* kernel;
  void (*launch)(bool mistake, const AsyncMemory& memory);
};
extern const std::span<const AsyncPair> kAsyncPairs;

}  // namespace device_test
