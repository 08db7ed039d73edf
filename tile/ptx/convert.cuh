// cvt: converts floats to the types of tensor cores, each rounded once.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#ifdef CPU_DEVICE

#include "cpu_device/tensor.h"

namespace tile::ptx {
using cpu_device::pack;
using cpu_device::to_tf32;
}  // namespace tile::ptx

#else

namespace tile::ptx {

/// Two neighbouring elements of a fragment in one word, the first one lowest: rounded to nearest,
/// ties to even. A NaN becomes the positive one whose other bits are all ones.
///
/// T is __half or __nv_bfloat16, two of which fill the word. Compute capability 8.0 and up; fp16
/// any, below 8.0 one after the other:
///     cvt.rn.f16x2.f32 d, high, low;
///     cvt.rn.bf16x2.f32 d, high, low;
/// Or __nv_fp8_e4m3 or __nv_fp8_e5m2, in the lower half of the word. Values beyond the largest
/// finite number, infinity too, become that number. 8.9 and up:
///     cvt.rn.satfinite.e4m3x2.f32 d, high, low;
///     cvt.rn.satfinite.e5m2x2.f32 d, high, low;
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    std::uint32_t d;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
#else
    asm("{\n"
        "  .reg .f16 high, low;\n"
        "  cvt.rn.f16.f32 high, %1;\n"
        "  cvt.rn.f16.f32 low, %2;\n"
        "  mov.b32 %0, {low, high};\n"
        "}"
        : "=r"(d)
        : "f"(high), "f"(low));
#endif
    return d;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    std::uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
#endif
  } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    std::uint16_t d;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
    return d;
#endif
  } else {
    static_assert(std::is_same_v<T, __nv_fp8_e5m2>);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    std::uint16_t d;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
    return d;
#endif
  }
  __trap();
  return 0;
}

/// A float rounded to tf32: 11 significant bits and the exponents of a float, to nearest, ties away
/// from zero. The lower 13 bits of a NaN are cut off; if it has no others, the result is infinity
/// (H200). Compute capability 8.0 and up.
///     cvt.rna.tf32.f32 d, value;
__device__ __forceinline__ std::uint32_t to_tf32(float value) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  std::uint32_t d;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(d) : "f"(value));
  return d;
#else
  __trap();
  return 0;
#endif
}

}  // namespace tile::ptx

#endif
