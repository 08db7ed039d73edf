// Bits whose origin is hidden from the compiler.
#pragma once

#include <cuda_runtime.h>

namespace tile::ptx {

/// The same bits. What was computed from them before is computed again, and occupies no registers
/// until then.
__device__ __forceinline__ unsigned bits_once(unsigned bits) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(bits));
#endif
  return bits;
}

}  // namespace tile::ptx
