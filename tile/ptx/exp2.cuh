// ex2: a power of two as the hardware approximates it.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-ex2
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>

namespace tile::ptx {

/// 2^x with an error of at most 2 units in the last place, by one instruction. exp2f() takes four
/// more, for results below the smallest normal number, 2^-126, which are 0 here. On the CPU device
/// it is the host's exp2f().
///     ex2.approx.ftz.f32 d, a;
__device__ __forceinline__ float exp2_approx(float x) {
#ifdef CPU_DEVICE
  const float power = std::exp2(x);
  return power < FLT_MIN ? 0 : power;
#else
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#endif
}

}  // namespace tile::ptx
