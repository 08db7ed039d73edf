// A store to global memory whose width the compiler does not choose.
// PTX ISA, "Data Movement and Conversion Instructions: st":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
#pragma once

#include <cuda_runtime.h>

namespace tile::ptx {

/// 16 bytes to global memory, at a multiple of 16. An assignment of a uint4 says the same, but nvcc
/// makes four stores of 4 bytes of some.
///     st.global.v4.u32 [global], {a, b, c, d};
__device__ __forceinline__ void store_global(void* global, uint4 words) {
#ifdef CPU_DEVICE
  *static_cast<uint4*>(global) = words;
#else
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(global)),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
#endif
}

}  // namespace tile::ptx
