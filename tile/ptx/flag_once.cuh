// A flag without its history, for a choice within a loop.
#pragma once

#include <cuda_runtime.h>

namespace tile::ptx {

/// The same flag. What it chooses between in a loop is then chosen in each turn: chosen before the
/// loop, it would take registers through all of it.
__device__ __forceinline__ bool flag_once(bool flag) {
  int value = flag;
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(value));
#endif
  return value != 0;
}

}  // namespace tile::ptx
