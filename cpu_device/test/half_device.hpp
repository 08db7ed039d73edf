// The arithmetic, comparison and conversion functions of cuda_fp16.h and cuda_bf16.h, run in a
// kernel on raw bits: the same test then judges the CPU device's headers and a GPU.
#pragma once

#include <cstdint>

namespace half_device {

enum class Type { fp16, bf16 };

// Functions of one, two and three numbers: name here, CUDA's name, its form for pairs.
#define HALF_DEVICE_UNARY(OP) \
  OP(hneg, __hneg, __hneg2)   \
  OP(habs, __habs, __habs2)   \
  OP(hsqrt, hsqrt, h2sqrt)    \
  OP(hrsqrt, hrsqrt, h2rsqrt) \
  OP(hrcp, hrcp, h2rcp)       \
  OP(htrunc, htrunc, h2trunc) \
  OP(hceil, hceil, h2ceil)    \
  OP(hfloor, hfloor, h2floor) \
  OP(hrint, hrint, h2rint)
#define HALF_DEVICE_BINARY(OP)          \
  OP(hadd, __hadd, __hadd2)             \
  OP(hsub, __hsub, __hsub2)             \
  OP(hmul, __hmul, __hmul2)             \
  OP(hdiv, __hdiv, __h2div)             \
  OP(hadd_rn, __hadd_rn, __hadd2_rn)    \
  OP(hsub_rn, __hsub_rn, __hsub2_rn)    \
  OP(hmul_rn, __hmul_rn, __hmul2_rn)    \
  OP(hadd_sat, __hadd_sat, __hadd2_sat) \
  OP(hsub_sat, __hsub_sat, __hsub2_sat) \
  OP(hmul_sat, __hmul_sat, __hmul2_sat) \
  OP(hmax, __hmax, __hmax2)             \
  OP(hmin, __hmin, __hmin2)             \
  OP(hmax_nan, __hmax_nan, __hmax2_nan) \
  OP(hmin_nan, __hmin_nan, __hmin2_nan)
#define HALF_DEVICE_TERNARY(OP)         \
  OP(hfma, __hfma, __hfma2)             \
  OP(hfma_sat, __hfma_sat, __hfma2_sat) \
  OP(hfma_relu, __hfma_relu, __hfma2_relu)

// __heq, __heq2, __heq2_mask, __hbeq2 and their like.
#define HALF_DEVICE_COMPARISON(OP) \
  OP(eq)                           \
  OP(ne)                           \
  OP(lt)                           \
  OP(le)                           \
  OP(gt)                           \
  OP(ge)                           \
  OP(equ)                          \
  OP(neu)                          \
  OP(ltu)                          \
  OP(leu)                          \
  OP(gtu)                          \
  OP(geu)

// __half2int_rn, __int2half_rn and their like: CUDA's name of the integer, its type, the mode.
#define HALF_DEVICE_INTEGER_MODES(OP, name, T) \
  OP(name, T, rn)                              \
  OP(name, T, rz)                              \
  OP(name, T, rd)                              \
  OP(name, T, ru)
#define HALF_DEVICE_INTEGER(OP)                         \
  HALF_DEVICE_INTEGER_MODES(OP, short, short)           \
  HALF_DEVICE_INTEGER_MODES(OP, ushort, unsigned short) \
  HALF_DEVICE_INTEGER_MODES(OP, int, int)               \
  HALF_DEVICE_INTEGER_MODES(OP, uint, unsigned int)     \
  HALF_DEVICE_INTEGER_MODES(OP, ll, long long)          \
  HALF_DEVICE_INTEGER_MODES(OP, ull, unsigned long long)

// The rest, named after CUDA's functions with the names of the types left out.
#define HALF_DEVICE_OTHER(OP) \
  OP(hisnan)                  \
  OP(hisnan2)                 \
  OP(hisinf)                  \
  OP(hcmadd)                  \
  OP(to_char_rz)              \
  OP(to_uchar_rz)             \
  OP(to_float)                \
  OP(from_float)              \
  OP(from_float_rn)           \
  OP(from_float_rz)           \
  OP(from_float_rd)           \
  OP(from_float_ru)           \
  OP(from_double)             \
  OP(from_other)              \
  OP(pair_from_float)         \
  OP(pair_from_floats)        \
  OP(pair_from_float2)        \
  OP(pair_to_float2_x)        \
  OP(pair_to_float2_y)        \
  OP(low2float)               \
  OP(high2float)              \
  OP(make_pair)               \
  OP(halves2pair)             \
  OP(half2pair)               \
  OP(low2half)                \
  OP(high2half)               \
  OP(low2pair)                \
  OP(high2pair)               \
  OP(lows2pair)               \
  OP(highs2pair)              \
  OP(lowhigh2highlow)         \
  OP(through_short)           \
  OP(through_ushort)

/// What to compute. Numbers come from a, b, c and pairs from (a, b), (b, c), (c, a), x first. An
/// operand of another type comes from the word a | b << 16 | c << 32 | a << 48, whose low 32 bits
/// are the float or int: b leads a float, a leads a double. The second of two floats is the upper
/// half. A result of 64 bits is asked for in two halves, the upper one with _high.
enum class Op : int {
#define HALF_DEVICE_WITH_PAIR(name, function, function2) name, name##_pair,
#define HALF_DEVICE_FOUR(name) name, name##_pair, name##_mask, name##_both,
#define HALF_DEVICE_CONVERSIONS(name, T, mode) \
  to_##name##_##mode, to_##name##_##mode##_high, from_##name##_##mode,
#define HALF_DEVICE_ONE(name) name,
  HALF_DEVICE_UNARY(HALF_DEVICE_WITH_PAIR)      //
  HALF_DEVICE_BINARY(HALF_DEVICE_WITH_PAIR)     //
  HALF_DEVICE_TERNARY(HALF_DEVICE_WITH_PAIR)    //
  HALF_DEVICE_COMPARISON(HALF_DEVICE_FOUR)      //
  HALF_DEVICE_INTEGER(HALF_DEVICE_CONVERSIONS)  //
  HALF_DEVICE_OTHER(HALF_DEVICE_ONE)            //
  count
#undef HALF_DEVICE_WITH_PAIR
#undef HALF_DEVICE_FOUR
#undef HALF_DEVICE_CONVERSIONS
#undef HALF_DEVICE_ONE
};

/// Whether the device has hcmadd and the HALF_DEVICE_TERNARY operations in bf16: compute capability
/// 8.0 and above.
bool has_bf16_fma();

/// out[i] = op(a[i], b[i], c[i]) for i < n, as bits: a number in the lower 16, a pair with x in the
/// lower 16, float and integers in 32. Host pointers. False if a CUDA call fails, with a message on
/// stderr; then out is unspecified.
bool run_half_ops(Type type, Op op, const uint16_t* a, const uint16_t* b, const uint16_t* c,
                  uint32_t* out, int n);

}  // namespace half_device
