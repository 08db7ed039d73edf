// The instructions around tensor cores that tile/ptx/ wraps: ldmatrix, stmatrix, mma, cvt. They may
// be called from device code only, and all but cvt by all 32 lanes of a warp at one place. On a
// card that lacks the instruction (Options::capability) they end the launch.
//
// Which lane holds which element: tile/ptx/fragments.hpp. What mma computes: the products are
// exact, their sum and the accumulator are in double, and the result is rounded once to the
// accumulator's type. A GPU adds in another order and cuts some bits off on its way, so that
// results are compared with bounds; sums of small integers are the same on both.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "cpu_device/qualifiers.h"
#include "cpu_device/sync.h"

namespace cpu_device {

/// One instruction of the PTX ISA.
struct TensorInstruction : WarpCall {
  int capability;  // 80 for 8.0: what a card must have
};
struct MatrixInstruction : TensorInstruction {
  uint32_t rows;  // as many lanes pass the address of a row, from lane 0 on
  bool writes;    // those rows
};

/// What a lane brings: on its stack, which stays as it is while the lane waits for the others.
struct TensorOperands {
  const TensorInstruction* instruction;
  Site site;
};
struct MatrixOperands : TensorOperands {
  const void* row;
  uint32_t* registers;
};
struct MmaOperands : TensorOperands {
  void* d;  // float or two fp16 a register
  const uint32_t* a;
  const uint32_t* b;
};

void move_matrices(const MatrixInstruction& instruction, const MatrixOperands& operands);
void multiply_matrices(const MmaOperands& operands);

extern const MatrixInstruction kLdmatrixX1, kLdmatrixX2, kLdmatrixX4, kLdmatrixX1Trans,
    kLdmatrixX2Trans, kLdmatrixX4Trans, kStmatrixX1, kStmatrixX2, kStmatrixX4, kStmatrixX1Trans,
    kStmatrixX2Trans, kStmatrixX4Trans;

#define CPU_DEVICE_LDMATRIX(function, instruction, count)                           \
  __forceinline__ void function(uint32_t(&r)[count], const void* row,               \
                                cpu_device::Site site = cpu_device::Site::here()) { \
    move_matrices(instruction, {{&instruction, site}, row, r});                     \
  }
CPU_DEVICE_LDMATRIX(ldmatrix_x1, kLdmatrixX1, 1)
CPU_DEVICE_LDMATRIX(ldmatrix_x2, kLdmatrixX2, 2)
CPU_DEVICE_LDMATRIX(ldmatrix_x4, kLdmatrixX4, 4)
CPU_DEVICE_LDMATRIX(ldmatrix_x1_trans, kLdmatrixX1Trans, 1)
CPU_DEVICE_LDMATRIX(ldmatrix_x2_trans, kLdmatrixX2Trans, 2)
CPU_DEVICE_LDMATRIX(ldmatrix_x4_trans, kLdmatrixX4Trans, 4)
#undef CPU_DEVICE_LDMATRIX

#define CPU_DEVICE_STMATRIX(function, instruction, count)                              \
  __forceinline__ void function(void* row, const uint32_t(&r)[count],                  \
                                cpu_device::Site site = cpu_device::Site::here()) {    \
    move_matrices(instruction, {{&instruction, site}, row, const_cast<uint32_t*>(r)}); \
  }
CPU_DEVICE_STMATRIX(stmatrix_x1, kStmatrixX1, 1)
CPU_DEVICE_STMATRIX(stmatrix_x2, kStmatrixX2, 2)
CPU_DEVICE_STMATRIX(stmatrix_x4, kStmatrixX4, 4)
CPU_DEVICE_STMATRIX(stmatrix_x1_trans, kStmatrixX1Trans, 1)
CPU_DEVICE_STMATRIX(stmatrix_x2_trans, kStmatrixX2Trans, 2)
CPU_DEVICE_STMATRIX(stmatrix_x4_trans, kStmatrixX4Trans, 4)
#undef CPU_DEVICE_STMATRIX

extern const TensorInstruction kMmaM16n8k16Fp16, kMmaM16n8k16Bf16, kMmaM16n8k16InFp16,
    kMmaM16n8k8Fp16, kMmaM16n8k8Tf32, kMmaM16n8k32E4m3, kMmaM16n8k32E5m2;

template <class T>
__forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                  Site site = Site::here()) {
  constexpr bool kFp16 = std::is_same_v<T, __half>;
  static_assert(kFp16 || std::is_same_v<T, __nv_bfloat16>);
  multiply_matrices({{kFp16 ? &kMmaM16n8k16Fp16 : &kMmaM16n8k16Bf16, site}, d, a, b});
}
__forceinline__ void mma_m16n8k16_f16(uint32_t (&d)[2], const uint32_t (&a)[4],
                                      const uint32_t (&b)[2], Site site = Site::here()) {
  multiply_matrices({{&kMmaM16n8k16InFp16, site}, d, a, b});
}
__forceinline__ void mma_m16n8k8(float (&d)[4], const uint32_t (&a)[2], uint32_t b,
                                 Site site = Site::here()) {
  multiply_matrices({{&kMmaM16n8k8Fp16, site}, d, a, &b});
}
__forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                      Site site = Site::here()) {
  multiply_matrices({{&kMmaM16n8k8Tf32, site}, d, a, b});
}
template <class T>
__forceinline__ void mma_m16n8k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                  Site site = Site::here()) {
  constexpr bool kE4m3 = std::is_same_v<T, __nv_fp8_e4m3>;
  static_assert(kE4m3 || std::is_same_v<T, __nv_fp8_e5m2>);
  multiply_matrices({{kE4m3 ? &kMmaM16n8k32E4m3 : &kMmaM16n8k32E5m2, site}, d, a, b});
}

/// Ends the launch if the card has not this compute capability, 80 for 8.0.
void require_capability(const char* instruction, int capability, Site site);

template <class T>
__forceinline__ uint32_t pack(float low, float high, Site site = Site::here()) {
  constexpr bool kFp8 = sizeof(T) == 1, kFp16 = std::is_same_v<T, __half>;
  require_capability(kFp8 ? "cvt to fp8" : "cvt of two numbers", kFp8 ? 89 : kFp16 ? 75 : 80, site);
  return uint32_t{T(high).__x} << 8 * sizeof(T) | T(low).__x;
}

__forceinline__ uint32_t to_tf32(float value, Site site = Site::here()) {
  require_capability("cvt to tf32", 80, site);
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return (bits + (is_nan ? 0 : 0x1000)) & ~0x1fffu;  // half of the last place that stays
}

}  // namespace cpu_device
