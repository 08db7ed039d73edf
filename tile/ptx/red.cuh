// red: adds to global memory without returning the old value, so no thread waits.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red
#pragma once

#include <cuda_runtime.h>

namespace tile::ptx {

/// Adds four floats to those at `global`, at a multiple of 16 bytes: each by itself, in no order
/// with those of other threads. One instruction on compute capability 9.0 and up, four before.
///     red.global.add.v4.f32 [global], {x, y, z, w};
__device__ __forceinline__ void red_add(float4* global, float4 value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(global)),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
#else
  atomicAdd(&global->x, value.x);
  atomicAdd(&global->y, value.y);
  atomicAdd(&global->z, value.z);
  atomicAdd(&global->w, value.w);
#endif
}

}  // namespace tile::ptx
