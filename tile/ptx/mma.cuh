// mma: a warp multiplies two small matrices on a tensor core, D = A B + D.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
//
// A has 16 rows and k columns, B k rows and 8 columns, D 16 rows and 8 columns; m16n8k16 says that
// k is 16. Each lane holds some elements of each, its fragment, in 32-bit registers: two elements
// of 16 bits in a register, four of 8 bits, the first in the lowest bits, or one of tf32. What
// ldmatrix gives is such a fragment. All 32 lanes must call it together.
//
// The result depends on nothing but the operands, so the asm is not volatile and has no clobber:
// the compiler may move it among other instructions, and it must be free to, since the loads for
// the next product are to run while this one is computed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#ifdef CPU_DEVICE

#include "cpu_device/options.h"
#include "cpu_device/tensor.h"

namespace tile::ptx {
using cpu_device::mma_m16n8k16_f16;
using cpu_device::mma_m16n8k32;
using cpu_device::mma_m16n8k8;
using cpu_device::mma_m16n8k8_tf32;
}  // namespace tile::ptx

#else

namespace tile::ptx {

/// fp16, added in fp32. Compute capability 7.5 and up.
///     mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {d0, d1, d2, d3}, {a0, a1}, {b},
///                                                      {d0, d1, d2, d3};
/// With g = lane / 4 and t = lane % 4 * 2 (element_of_a<16>, element_of_b<16>, element_of_d in
/// fragments.hpp):
///     a[0]  row g, columns t, t + 1       b  rows t, t + 1 of column g
///     a[1]  row g + 8, columns t, t + 1
///     d[0], d[1]  row g, columns t, t + 1
///     d[2], d[3]  row g + 8, columns t, t + 1
__device__ __forceinline__ void mma_m16n8k8(float (&d)[4], const std::uint32_t (&a)[2],
                                            std::uint32_t b) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 750
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
#else
  __trap();
#endif
}

}  // namespace tile::ptx

#endif

namespace tile::ptx {

/// What mma_m16n8k16 of fp16 is on a card with m16n8k8 only: A B = A0 B0 + A1 B1, where A0 has the
/// columns 0 to 7 of A and B0 the rows 0 to 7 of B. They are a[0], a[1] and b[0] of m16n8k16, at
/// the places of m16n8k8; a[2], a[3] and b[1] are A1 and B1, as those 8 further on. D is rounded
/// twice, so its last bits may differ from those of one instruction.
/// `site` is empty on a GPU, and on the CPU device where the kernel calls mma.
template <class... Site>
__device__ __forceinline__ void mma_m16n8k16_of_halves(float (&d)[4], const std::uint32_t (&a)[4],
                                                       const std::uint32_t (&b)[2], Site... site) {
  mma_m16n8k8(d, {a[0], a[1]}, b[0], site...);
  mma_m16n8k8(d, {a[2], a[3]}, b[1], site...);
}

#ifdef CPU_DEVICE

template <class T>
__forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4],
                                  const std::uint32_t (&b)[2],
                                  cpu_device::Site site = cpu_device::Site::here()) {
  if (std::is_same_v<T, __half> && cpu_device::options().capability < 80) {
    mma_m16n8k16_of_halves(d, a, b, site);
  } else {
    cpu_device::mma_m16n8k16<T>(d, a, b, site);
  }
}

#else

/// fp16 or bf16 (T is __half or __nv_bfloat16), added in fp32. Compute capability 8.0 and up; fp16
/// 7.5 and up, where it is two of m16n8k8.
///     mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {d0, d1, d2, d3}, {a0, …, a3}, {b0, b1},
///                                                       {d0, d1, d2, d3};
/// With g and t as above:
///     a[0]  row g, columns t, t + 1       a[2]  row g, columns t + 8, t + 9
///     a[1]  row g + 8, columns t, t + 1   a[3]  row g + 8, columns t + 8, t + 9
///     b[0]  rows t, t + 1 of column g     b[1]  rows t + 8, t + 9 of column g
/// and d as above.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  if constexpr (std::is_same_v<T, __half>) {
    mma_m16n8k16_of_halves(d, a, b);
  } else {
    __trap();
  }
#endif
}

/// fp16, added in fp16. Compute capability 8.0 and up.
///     mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {d0, d1}, {a0, …, a3}, {b0, b1}, {d0, d1};
/// A and B as above. Two elements of D in a register (element_of_d):
///     d[0]  row g, columns t, t + 1       d[1]  row g + 8, columns t, t + 1
__device__ __forceinline__ void mma_m16n8k16_f16(std::uint32_t (&d)[2], const std::uint32_t (&a)[4],
                                                 const std::uint32_t (&b)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, "
      "{%0, %1};"
      : "+r"(d[0]), "+r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

/// tf32, added in fp32. Operands are floats whose lower 13 bits are ignored: of unrounded ones that
/// cuts off where to_tf32 (convert.cuh) rounds. Compute capability 8.0 and up.
///     mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {d0, d1, d2, d3}, {a0, …, a3}, {b0, b1},
///                                                        {d0, d1, d2, d3};
/// With g = lane / 4 and s = lane % 4 (element_of_a<32>, element_of_b<32>), and d as above:
///     a[0]  row g, column s       a[2]  row g, column s + 4
///     a[1]  row g + 8, column s   a[3]  row g + 8, column s + 4
///     b[0]  row s of column g     b[1]  row s + 4 of column g
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const std::uint32_t (&a)[4],
                                                 const std::uint32_t (&b)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

/// fp8 (T is __nv_fp8_e4m3 or __nv_fp8_e5m2), added in fp32. Compute capability 8.9 and up.
///     mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {d0, d1, d2, d3}, {a0, …, a3}, {b0, b1},
///                                                         {d0, d1, d2, d3};
/// With g = lane / 4 and q = lane % 4 * 4 (element_of_a<8>, element_of_b<8>), and d as above:
///     a[0]  row g, columns q to q + 3       a[2]  row g, columns q + 16 to q + 19
///     a[1]  row g + 8, columns q to q + 3   a[3]  row g + 8, columns q + 16 to q + 19
///     b[0]  rows q to q + 3 of column g     b[1]  rows q + 16 to q + 19 of column g
template <class T>
__device__ __forceinline__ void mma_m16n8k32(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, __nv_fp8_e4m3> || std::is_same_v<T, __nv_fp8_e5m2>);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  __trap();
#endif
}

#endif

}  // namespace tile::ptx
