// Pairs of kernels as in check_kernels.hpp, whose blocks work in clusters.
#pragma once

#include <span>

namespace device_test {

inline constexpr unsigned kClusterSize = 4, kClusterBlocks = 8, kClusterBlockThreads = 64;

struct ClusterMemory {
  int* out;     // an element a thread, 0
  int* counts;  // a few, 0
};

struct ClusterPair {
  const char* kernel;
  void (*launch)(bool mistake, const ClusterMemory& memory);
};
extern const std::span<const ClusterPair> kClusterPairs;

/// A race in tile/shared_slice.cuh, in a function that another one there calls.
void reduce_twice(const ClusterMemory& memory);

}  // namespace device_test
