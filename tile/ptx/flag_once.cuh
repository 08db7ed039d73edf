// A flag whose origin is hidden from ptxas, for a choice within a loop.
#pragma once

#include <cuda_runtime.h>

namespace tile::ptx {

/// The same flag. The choice is then made in each iteration: made before the loop, its result would
/// occupy registers throughout.
__device__ __forceinline__ bool flag_once(bool flag) {
  int value = flag;
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(value));
#endif
  return value != 0;
}

}  // namespace tile::ptx
