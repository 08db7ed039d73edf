// wgmma: D = A B + D by four warps together, with B, and A or not, read from shared memory by the
// tensor cores themselves. It is asynchronous: the sums are there after a wait. Compute capability
// 9.0 with its own features (sm_90a); no other card has it, newer ones included.
// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions":
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
//
// D has 64 rows and kN columns, A 64 x kDepth, B kDepth x kN, and kDepth is 32 bytes of elements.
// All 128 threads of a warpgroup call at one place. In order:
//
//     wgmma_fence();          what was done to registers of D and A comes first
//     wgmma(…); wgmma(…);     any number, into the same D or others
//     wgmma_commit();         makes a group of them
//     wgmma_wait<N>();        all but the last N groups are done
//
// Before that wait no thread may touch D, the registers of A, or the shared memory that is read.
// ptxas makes the instructions wait for one another, at a fifth of the speed, where it cannot prove
// that (C7510 to C7512 in its log): tools/check_ptxas.py looks for it.
//
// wgmma sees what threads stored only after fence_async_proxy() and a barrier (async_proxy.cuh),
// and what TMA stored only after a wait on its mbarrier.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "tile/ptx/shared_address.cuh"
#include "tile/ptx/wgmma_descriptor.cuh"

#ifdef CPU_DEVICE

#include "cpu_device/wgmma.h"

namespace tile::ptx {
using cpu_device::Major;
using cpu_device::wgmma;
using cpu_device::wgmma_commit;
using cpu_device::wgmma_fence;
using cpu_device::wgmma_wait;
}  // namespace tile::ptx

#else

namespace tile::ptx {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TILE_HAS_WGMMA 1
#else
#define TILE_HAS_WGMMA 0
#endif

/// Orders this thread's accesses to registers before wgmma: before the first one, and wherever D or
/// registers of A have been touched since.
///     wgmma.fence.sync.aligned;
__device__ __forceinline__ void wgmma_fence() {
#if TILE_HAS_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
}

///     wgmma.commit_group.sync.aligned;
__device__ __forceinline__ void wgmma_commit() {
#if TILE_HAS_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
}

/// Waits for all groups but the last kGroups. The sums are named, so that the compiler moves no use
/// of them before the wait.
///     wgmma.wait_group.sync.aligned groups;
template <int kGroups, int kCount>
__device__ __forceinline__ void wgmma_wait(float (&d)[kCount]) {
#if TILE_HAS_WGMMA
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
#else
  __trap();
#endif
}

/// Which axis of an operand is contiguous in shared memory: k, as in an A stored by rows, or m and
/// n, as in a B stored by rows.
enum class Major { k, mn };

// The registers of D, kN / 2 of them, in the text and as operands.
#define TILE_WGMMA_D_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TILE_WGMMA_D_32 TILE_WGMMA_D_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TILE_WGMMA_D_48 TILE_WGMMA_D_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TILE_WGMMA_D_64 TILE_WGMMA_D_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TILE_WGMMA_D_80 TILE_WGMMA_D_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TILE_WGMMA_D_96 TILE_WGMMA_D_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TILE_WGMMA_D_112 TILE_WGMMA_D_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TILE_WGMMA_D_128 TILE_WGMMA_D_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TILE_WGMMA_D_144 TILE_WGMMA_D_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TILE_WGMMA_D_160 TILE_WGMMA_D_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TILE_WGMMA_D_176 TILE_WGMMA_D_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TILE_WGMMA_D_192 TILE_WGMMA_D_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TILE_WGMMA_D_208 TILE_WGMMA_D_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TILE_WGMMA_D_224 TILE_WGMMA_D_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TILE_WGMMA_D_240 TILE_WGMMA_D_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TILE_WGMMA_D_256 TILE_WGMMA_D_240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define TILE_WGMMA_8(i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define TILE_WGMMA_SUMS_16 TILE_WGMMA_8(0)
#define TILE_WGMMA_SUMS_32 TILE_WGMMA_SUMS_16, TILE_WGMMA_8(8)
#define TILE_WGMMA_SUMS_48 TILE_WGMMA_SUMS_32, TILE_WGMMA_8(16)
#define TILE_WGMMA_SUMS_64 TILE_WGMMA_SUMS_48, TILE_WGMMA_8(24)
#define TILE_WGMMA_SUMS_80 TILE_WGMMA_SUMS_64, TILE_WGMMA_8(32)
#define TILE_WGMMA_SUMS_96 TILE_WGMMA_SUMS_80, TILE_WGMMA_8(40)
#define TILE_WGMMA_SUMS_112 TILE_WGMMA_SUMS_96, TILE_WGMMA_8(48)
#define TILE_WGMMA_SUMS_128 TILE_WGMMA_SUMS_112, TILE_WGMMA_8(56)
#define TILE_WGMMA_SUMS_144 TILE_WGMMA_SUMS_128, TILE_WGMMA_8(64)
#define TILE_WGMMA_SUMS_160 TILE_WGMMA_SUMS_144, TILE_WGMMA_8(72)
#define TILE_WGMMA_SUMS_176 TILE_WGMMA_SUMS_160, TILE_WGMMA_8(80)
#define TILE_WGMMA_SUMS_192 TILE_WGMMA_SUMS_176, TILE_WGMMA_8(88)
#define TILE_WGMMA_SUMS_208 TILE_WGMMA_SUMS_192, TILE_WGMMA_8(96)
#define TILE_WGMMA_SUMS_224 TILE_WGMMA_SUMS_208, TILE_WGMMA_8(104)
#define TILE_WGMMA_SUMS_240 TILE_WGMMA_SUMS_224, TILE_WGMMA_8(112)
#define TILE_WGMMA_SUMS_256 TILE_WGMMA_SUMS_240, TILE_WGMMA_8(120)

// CASE(kN, the numbers of the seven operands after D's) for each kN.
#define TILE_WGMMA_FOR_EACH(CASE)              \
  CASE(16, 8, 9, 10, 11, 12, 13, 14)           \
  CASE(32, 16, 17, 18, 19, 20, 21, 22)         \
  CASE(48, 24, 25, 26, 27, 28, 29, 30)         \
  CASE(64, 32, 33, 34, 35, 36, 37, 38)         \
  CASE(80, 40, 41, 42, 43, 44, 45, 46)         \
  CASE(96, 48, 49, 50, 51, 52, 53, 54)         \
  CASE(112, 56, 57, 58, 59, 60, 61, 62)        \
  CASE(128, 64, 65, 66, 67, 68, 69, 70)        \
  CASE(144, 72, 73, 74, 75, 76, 77, 78)        \
  CASE(160, 80, 81, 82, 83, 84, 85, 86)        \
  CASE(176, 88, 89, 90, 91, 92, 93, 94)        \
  CASE(192, 96, 97, 98, 99, 100, 101, 102)     \
  CASE(208, 104, 105, 106, 107, 108, 109, 110) \
  CASE(224, 112, 113, 114, 115, 116, 117, 118) \
  CASE(240, 120, 121, 122, 123, 124, 125, 126) \
  CASE(256, 128, 129, 130, 131, 132, 133, 134)

// The operand after D's, p, says whether D counts. The two ones say that neither A nor B is
// negated. `operands` are A, B and which of them are transposed, with their numbers.
#define TILE_WGMMA(n, p, form, operands, ...)                                            \
  if constexpr (kN == n) {                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p                                 \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n form " {" TILE_WGMMA_D_##n \
                 "}, " operands ";\n}"                                                   \
                 : TILE_WGMMA_SUMS_##n                                                   \
                 : "r"(int{accumulate}), __VA_ARGS__                                     \
                 : "memory");                                                            \
  }
// A and B from shared memory, 16 bits and fp8, and A from registers.
#define TILE_WGMMA_SHARED(n, form, p, i, j, k, l)                                                  \
  TILE_WGMMA(n, p, form, "%" #i ", %" #j ", p, 1, 1, %" #k ", %" #l, "l"(a.bits()), "l"(b.bits()), \
             "n"(int{kMajorA == Major::mn}), "n"(int{kMajorB == Major::mn}))
#define TILE_WGMMA_FP16(n, p, i, j, k, l, ...) \
  TILE_WGMMA_SHARED(n, "k16.f32.f16.f16", p, i, j, k, l)
#define TILE_WGMMA_BF16(n, p, i, j, k, l, ...) \
  TILE_WGMMA_SHARED(n, "k16.f32.bf16.bf16", p, i, j, k, l)
#define TILE_WGMMA_E4M3(n, p, i, j, ...) \
  TILE_WGMMA(n, p, "k32.f32.e4m3.e4m3", "%" #i ", %" #j ", p, 1, 1", "l"(a.bits()), "l"(b.bits()))
#define TILE_WGMMA_REGISTERS(n, form, p, i, j, k, l, r, s)                               \
  TILE_WGMMA(n, p, form, "{%" #i ", %" #j ", %" #k ", %" #l "}, %" #r ", p, 1, 1, %" #s, \
             "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()),                  \
             "n"(int{kMajorB == Major::mn}))
#define TILE_WGMMA_A_FP16(n, ...) TILE_WGMMA_REGISTERS(n, "k16.f32.f16.f16", __VA_ARGS__)
#define TILE_WGMMA_A_BF16(n, ...) TILE_WGMMA_REGISTERS(n, "k16.f32.bf16.bf16", __VA_ARGS__)
#define TILE_WGMMA_A_E4M3(n, p, i, j, k, l, r, ...)                                               \
  TILE_WGMMA(n, p, "k32.f32.e4m3.e4m3", "{%" #i ", %" #j ", %" #k ", %" #l "}, %" #r ", p, 1, 1", \
             "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()))

/// T is __half, __nv_bfloat16 or __nv_fp8_e4m3; kDepth is 16, 16 or 32. With fp8, k is the
/// contiguous axis of both. If not `accumulate`, D = A B.
///     wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 d, a, b, p, 1, 1, tnspA, tnspB;
///     wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 d, a, b, p, 1, 1;
/// Thread t of the warpgroup holds d[i], which is element_of_wgmma(t, i) of D (fragments.hpp): with
/// w = t / 32, g = t % 32 / 4, q = t % 4 * 2
///     d[4 j], d[4 j + 1]        row 16 w + g, columns 8 j + q, 8 j + q + 1
///     d[4 j + 2], d[4 j + 3]    row 16 w + g + 8, the same columns
template <class T, int kN, Major kMajorA = Major::k, Major kMajorB = Major::k>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], WgmmaDescriptor a, WgmmaDescriptor b,
                                      bool accumulate) {
  static_assert(kN % 16 == 0 && kN >= 16 && kN <= 256, "D has 16, 32, … 256 columns");
  constexpr bool kFp8 = std::is_same_v<T, __nv_fp8_e4m3>;
  static_assert(!kFp8 || (kMajorA == Major::k && kMajorB == Major::k),
                "wgmma reads fp8 along k only");
#if TILE_HAS_WGMMA
  if constexpr (kFp8) {
    TILE_WGMMA_FOR_EACH(TILE_WGMMA_E4M3)
  } else if constexpr (std::is_same_v<T, __half>) {
    TILE_WGMMA_FOR_EACH(TILE_WGMMA_FP16)
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    TILE_WGMMA_FOR_EACH(TILE_WGMMA_BF16)
  }
#else
  __trap();
#endif
}

/// The same with A in registers: each warp has 16 rows of A as mma has them. With 16 bits
/// (element_of_a<16>) that is where wgmma and mma leave their sums, so that these can be packed and
/// used. With fp8 (element_of_a<8>) a lane has four neighbouring columns where it holds two of D.
///     wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 d, {a0, …, a3}, b, p, 1, 1, tnspB;
///     wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 d, {a0, …, a3}, b, p, 1, 1;
template <class T, int kN, Major kMajorB = Major::k>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], const std::uint32_t (&a)[4],
                                      WgmmaDescriptor b, bool accumulate) {
  static_assert(kN % 16 == 0 && kN >= 16 && kN <= 256, "D has 16, 32, … 256 columns");
  constexpr bool kFp8 = std::is_same_v<T, __nv_fp8_e4m3>;
  static_assert(!kFp8 || kMajorB == Major::k, "wgmma reads fp8 along k only");
#if TILE_HAS_WGMMA
  if constexpr (kFp8) {
    TILE_WGMMA_FOR_EACH(TILE_WGMMA_A_E4M3)
  } else if constexpr (std::is_same_v<T, __half>) {
    TILE_WGMMA_FOR_EACH(TILE_WGMMA_A_FP16)
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    TILE_WGMMA_FOR_EACH(TILE_WGMMA_A_BF16)
  }
#else
  __trap();
#endif
}
#undef TILE_WGMMA_A_E4M3
#undef TILE_WGMMA_A_BF16
#undef TILE_WGMMA_A_FP16
#undef TILE_WGMMA_REGISTERS
#undef TILE_WGMMA_E4M3
#undef TILE_WGMMA_BF16
#undef TILE_WGMMA_FP16
#undef TILE_WGMMA_SHARED
#undef TILE_WGMMA
#undef TILE_WGMMA_FOR_EACH
#undef TILE_WGMMA_8

}  // namespace tile::ptx

#endif
