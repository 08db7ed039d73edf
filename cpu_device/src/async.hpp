// The asynchronous copies of a thread that have not landed.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu_device/runtime_api.h"

namespace cpu_device {

// What an H200 gives for a copy to global memory, and for one from shared or local memory. It was
// seen to let a misaligned source and a size that is too large pass, which PTX forbids.
inline constexpr cudaError_t kToWrongMemory = cudaErrorIllegalInstruction;
inline constexpr cudaError_t kFromWrongMemory = cudaErrorInvalidAddressSpace;

struct AsyncCopy {
  const char* from;
  uint32_t to;     // in the arena
  uint32_t group;  // of its thread's groups, counted from 0
  uint32_t place;  // of the call: a check::Place
  uint8_t bytes, source_bytes;
  bool passed_over;  // by a wait since; for the check build
};

struct AsyncCopies {
  std::vector<AsyncCopy> under_way;  // oldest first
  uint32_t groups = 0;               // committed

  // For the check build.
  struct Wait {
    uint32_t place = 0;  // a check::Place
    uint32_t pending = 0;
    uint32_t groups = 0;           // committed by then
    uint32_t epoch = 0, tick = 0;  // check::Moment
  } last_wait;
};

}  // namespace cpu_device
