// %globaltimer: a clock of the whole card (PTX ISA, "Special Registers: %globaltimer").
// https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-globaltimer
#pragma once

namespace tile::ptx {

/// Nanoseconds since an arbitrary moment. It advances in steps of up to a microsecond.
///     mov.u64 d, %globaltimer;
__device__ inline unsigned long long global_timer() {
#ifdef __CUDA_ARCH__
  unsigned long long nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
#else
  return static_cast<unsigned long long>(clock64());  // the CPU device's clock counts nanoseconds
#endif
}

}  // namespace tile::ptx
