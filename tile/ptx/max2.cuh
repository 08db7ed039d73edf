// max: of two elements of 2 bytes at once.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions-max
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace tile::ptx {

/// The greater of two elements at each place of a word, as fmaxf finds it: a NaN is ignored. T is
/// __half or __nv_bfloat16. Compute capability 8.0 and up; below CUDA compares floats.
///     max.f16x2 d, a, b;
///     max.bf16x2 d, a, b;
template <class T>
__device__ __forceinline__ unsigned max2(unsigned a, unsigned b) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  const Pair max = __hmax2(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
  return reinterpret_cast<const unsigned&>(max);
}

}  // namespace tile::ptx
