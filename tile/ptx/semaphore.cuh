// A counter in global memory by which threads of different blocks follow one another.
// PTX ISA, "Memory Consistency Model": a red.release that a chain of additions to the counter
// follows (its release sequence) goes before every ld.acquire that reads a value of the chain.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#memory-consistency-model
#pragma once

#include <cuda_runtime.h>

namespace tile::ptx {

/// Lets the CPU device run other threads. A GPU does so anyway.
__device__ __forceinline__ void pause_polling() {
#ifdef CPU_DEVICE
  __nanosleep(20);
#endif
}

/// The counter's value. This thread then sees what others did before they added to it.
///     ld.acquire.gpu.global.u32 d, [counter];
__device__ __forceinline__ unsigned semaphore_value(unsigned* counter) {
#ifdef CPU_DEVICE
  const unsigned value = atomicAdd(counter, 0u);
  __threadfence();
#else
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(counter))
               : "memory");
#endif
  return value;
}

/// Waits until the counter is `value`. The block of the thread that will add the last 1 must have
/// begun, or this may wait for ever. So it does if others go on to add before this thread looks.
__device__ __forceinline__ void semaphore_wait(unsigned* counter, unsigned value) {
  while (semaphore_value(counter) != value) pause_polling();
}

/// Waits until the counter has reached `value`, and be it beyond: for counters that others go on to
/// add to. The difference has a sign, so that a counter may pass 2^32, which is 0 again.
__device__ __forceinline__ void semaphore_wait_to_reach(unsigned* counter, unsigned value) {
  while (static_cast<int>(semaphore_value(counter) - value) < 0) pause_polling();
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
