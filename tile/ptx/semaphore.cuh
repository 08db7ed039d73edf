// A counter in global memory by which threads of different blocks follow one another.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model
#pragma once

#include <cuda_runtime.h>

namespace tile::ptx {

/// Waits until the counter is `value`. After it this thread sees what others did before they added
/// to it. The block of the thread that will do so must have begun, or this may wait for ever.
///     ld.acquire.gpu.global.u32 d, [counter];
__device__ __forceinline__ void semaphore_wait(unsigned* counter, unsigned value) {
#ifdef CPU_DEVICE
  while (atomicAdd(counter, 0u) != value) __nanosleep(20);
  __threadfence();
#else
  unsigned seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(seen)
                 : "l"(__cvta_generic_to_global(counter))
                 : "memory");
  } while (seen != value);
#endif
}

/// Adds 1 to it.
///     red.release.gpu.global.add.u32 [counter], 1;
__device__ __forceinline__ void semaphore_add(unsigned* counter) {
#ifdef CPU_DEVICE
  __threadfence();
  atomicAdd(counter, 1u);
#else
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(counter))
               : "memory");
#endif
}

}  // namespace tile::ptx
