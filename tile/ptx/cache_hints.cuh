// Loads and stores of 16 bytes that say how long their data will be needed. Only time depends on
// it, never the result.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#cache-operators
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
//
// T has 16 bytes and is aligned to them: uint4, float4, tile::Vector. Addresses are of global
// memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace tile::ptx {

/// Reads what this thread alone needs, and once: it gets no place in L1. Nobody may write there
/// while the kernel runs (.nc), so that the result depends on the address alone: the asm is not
/// volatile, and the compiler may move the load ahead of barriers and stores. Compute capability
/// 7.0 and up.
///     ld.global.nc.L1::no_allocate.v4.u32 {x, y, z, w}, [address];
template <class T>
__device__ __forceinline__ T load_once(const T* address) {
  static_assert(sizeof(T) == 16 && alignof(T) == 16);
#ifdef CPU_DEVICE
  return *address;
#else
  union {
    uint4 words;
    T value;
  };
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 700
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
      : "l"(__cvta_generic_to_global(address)));
#else
  __trap();
#endif
  return value;
#endif
}

/// Writes what nobody will read soon: "evict first" in L2. It writes memory, so the asm is volatile
/// and has the clobber "memory".
///     st.global.cs.v4.u32 [address], {x, y, z, w};
template <class T>
__device__ __forceinline__ void store_streaming(T* address, const T& value) {
  static_assert(sizeof(T) == 16 && alignof(T) == 16);
#ifdef CPU_DEVICE
  *address = value;
#else
  const uint4 words = reinterpret_cast<const uint4&>(value);
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(address)), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
               : "memory");
#endif
}

}  // namespace tile::ptx
