// elect.sync: one lane of a warp, for what a single thread does (PTX ISA, "elect.sync"). Compute
// capability 9.0 and up.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-elect-sync
#pragma once

#include <cuda_runtime.h>

#ifdef CPU_DEVICE

#include "cpu_device/elect.h"

namespace tile::ptx {
using cpu_device::elect_one;
}  // namespace tile::ptx

#else

#include <cstdint>

namespace tile::ptx {

/// True in one lane of the warp, the same one each time. All 32 lanes call it together; it orders
/// no memory. Which lane it is, PTX does not promise; on an H200 it is the lowest.
///
/// For the branch in which one thread starts TMA's copies. With `threadIdx.x == 0` ptxas does not
/// know that a single thread runs the branch. TMA takes its addresses from uniform registers, of
/// which a warp has one set; so each copy then stands in a loop over the lanes. Here it does not.
///     elect.sync _|p, 0xffffffff;
/// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-elect-sync
__device__ __forceinline__ bool elect_one() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
#else
  __trap();
  return false;
#endif
}

}  // namespace tile::ptx

#endif
