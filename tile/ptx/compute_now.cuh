// Keeps ptxas from moving arithmetic past a wait.
#pragma once

#include <cuda_runtime.h>

#include "tile/ptx/shared_address.cuh"

namespace tile::ptx {

/// The values from the kFirst-th on, none of which is negative, are computed before the wait that
/// follows in the program. ptxas delays arithmetic whose results are needed later only, past a wait
/// with which it has no register in common, and then it no longer lies under what is waited for. So
/// this stores one of their bits if that bit is ever set, which ptxas does not know to be never: an
/// instruction for two values. The four bytes at `address` may be written.
template <int kFirst, int kCount>
__device__ __forceinline__ void compute_now([[maybe_unused]] const float (&values)[kCount],
                                            [[maybe_unused]] SharedAddress address) {
#ifndef CPU_DEVICE
  unsigned signs = 0;
#pragma unroll
  for (int i = kFirst; i < kCount; ++i) signs |= __float_as_uint(values[i]);
  asm volatile(
      "{\n.reg .pred p;\nsetp.lt.s32 p, %0, 0;\n@p st.shared.u32 [%1], %0;\n}" ::"r"(signs),
      "r"(address.value())
      : "memory");
#endif
}

}  // namespace tile::ptx
