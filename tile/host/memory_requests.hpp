// What warps ask of memory. Only the CPU device's check build counts it: a GPU has it in counters
// that a program cannot read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tile {

/// One access of a kernel, by all its warps. A request is what a warp's lanes ask for at one time.
/// It costs sectors of 32 bytes, or in shared memory wavefronts.
struct MemoryRequests {
  std::string place;   ///< "02_matmul/step1_naive.cu:27"
  std::string access;  ///< "global load of a", "shared store of tile"
  std::int64_t requests, cost;
  std::int64_t least;  ///< what the same bytes would cost in the best layout
};

/// From now on requests are counted. Returns false where they cannot be.
bool count_memory_requests();

/// Those of the kernels since the last call, by kernel and line. Empty where none are counted.
std::vector<MemoryRequests> memory_requests();

}  // namespace tile
