// The CPU device's stand-in for CUDA's header of the same name: __half and __half2.
//
// Trivial structs with CUDA's implicit conversions: uninitialised data stay uninitialised, and what
// is ambiguous for nvcc (half * float) is ambiguous here. Left out: volatile access, the assignment
// operators that the converting constructors make superfluous, and the shuffles, loads, stores and
// atomics, which are templates elsewhere.
#pragma once

#include <cmath>
#include <limits>

#include "cpu_device/small_float.h"
#include "cpu_device/vector_types.h"

/// The bits of a __half, for whoever needs them outside device code.
struct alignas(2) __half_raw {
  unsigned short x;
};
struct alignas(4) __half2_raw {
  unsigned short x, y;
};

struct __nv_bfloat16;

/// IEEE 754 binary16: 11 significant bits, normal from 2^-14 to 65504, subnormal down to 2^-24.
struct alignas(2) __half {
  // Protected in CUDA; here g++ would then warn wherever such numbers are copied by memcpy.
  unsigned short __x;

  __half() = default;
  constexpr __half(const __half_raw& raw) : __x(raw.x) {}
  explicit __half(__nv_bfloat16 a);  // in cuda_bf16.h

  // Rounded to nearest even.
  __half(float a) : __x(cpu_device::from_double<cpu_device::Fp16>(a)) {}
  __half(double a) : __x(cpu_device::from_double<cpu_device::Fp16>(a)) {}
  __half(short a) : __x(cpu_device::from_integer<cpu_device::Fp16>(a)) {}
  __half(unsigned short a) : __x(cpu_device::from_integer<cpu_device::Fp16>(a)) {}
  __half(int a) : __x(cpu_device::from_integer<cpu_device::Fp16>(a)) {}
  __half(unsigned int a) : __x(cpu_device::from_integer<cpu_device::Fp16>(a)) {}
  __half(long a) : __x(cpu_device::from_integer<cpu_device::Fp16>(a)) {}
  __half(unsigned long a) : __x(cpu_device::from_integer<cpu_device::Fp16>(a)) {}
  __half(long long a) : __x(cpu_device::from_integer<cpu_device::Fp16>(a)) {}
  __half(unsigned long long a) : __x(cpu_device::from_integer<cpu_device::Fp16>(a)) {}

  constexpr operator __half_raw() const { return {__x}; }
  operator float() const { return cpu_device::to_float<cpu_device::Fp16>(__x); }
  constexpr operator bool() const { return (__x & 0x7fff) != 0; }

  // Rounded toward zero, saturating.
  operator char() const { return to<char>(); }
  operator signed char() const { return to<signed char>(); }
  operator unsigned char() const { return to<unsigned char>(); }
  operator short() const { return to<short>(); }
  operator unsigned short() const { return to<unsigned short>(); }
  operator int() const { return to<int>(); }
  operator unsigned int() const { return to<unsigned int>(); }
  operator long() const { return to<long>(); }
  operator unsigned long() const { return to<unsigned long>(); }
  operator long long() const { return to<long long>(); }
  operator unsigned long long() const { return to<unsigned long long>(); }

 private:
  template <class Integer>
  Integer to() const {
    return cpu_device::to_integer<Integer, cpu_device::Rounding::toward_zero>(
        cpu_device::to_float<cpu_device::Fp16>(__x));
  }
};

/// Two halves, x in the lower 16 bits of the word.
struct alignas(4) __half2 {
  __half x, y;

  __half2() = default;
  constexpr __half2(const __half& a, const __half& b) : x(a), y(b) {}
  constexpr __half2(const __half2_raw& raw) : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
  constexpr operator __half2_raw() const { return {__half_raw(x).x, __half_raw(y).x}; }
};

using half = __half;
using half2 = __half2;
using nv_half = __half;
using nv_half2 = __half2;
using __nv_half = __half;
using __nv_half2 = __half2;
using __nv_half_raw = __half_raw;
using __nv_half2_raw = __half2_raw;

// Bits.

inline __half __ushort_as_half(unsigned short a) { return __half_raw{a}; }
inline __half __short_as_half(short a) { return __half_raw{static_cast<unsigned short>(a)}; }
inline unsigned short __half_as_ushort(__half a) { return __half_raw(a).x; }
inline short __half_as_short(__half a) { return static_cast<short>(__half_raw(a).x); }

#define CUDART_INF_FP16 __ushort_as_half(0x7c00)
#define CUDART_NAN_FP16 __ushort_as_half(0x7fff)
#define CUDART_MIN_DENORM_FP16 __ushort_as_half(0x0001)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half(0x7bff)
#define CUDART_NEG_ZERO_FP16 __ushort_as_half(0x8000)
#define CUDART_ZERO_FP16 __ushort_as_half(0x0000)
#define CUDART_ONE_FP16 __ushort_as_half(0x3c00)

#define Half __half
#define Half2 __half2
#include "cpu_device/half_functions.inc"
#undef Half
#undef Half2

// Conversions from and to float; _rn to nearest even, _rz toward zero, _rd down, _ru up.

inline __half __float2half(float a) { return a; }
inline __half __float2half_rn(float a) { return a; }
inline __half __float2half_rz(float a) {
  using namespace cpu_device;
  return __half_raw{from_double<Fp16, Rounding::toward_zero>(a)};
}
inline __half __float2half_rd(float a) {
  using namespace cpu_device;
  return __half_raw{from_double<Fp16, Rounding::down>(a)};
}
inline __half __float2half_ru(float a) {
  using namespace cpu_device;
  return __half_raw{from_double<Fp16, Rounding::up>(a)};
}
inline __half __double2half(double a) { return a; }
inline float __half2float(__half a) { return a; }

inline __half2 __float2half2_rn(float a) { return {a, a}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
inline float2 __half22float2(__half2 a) { return make_float2(a.x, a.y); }

// Conversions from and to integers: __half2int_rn, __int2half_rn and their like.

#define CPU_DEVICE_FROM_HALF(T, name, suffix, mode)                                     \
  inline T __half2##name##suffix(__half a) {                                            \
    return cpu_device::to_integer<T, cpu_device::Rounding::mode>(cpu_device::exact(a)); \
  }
#define CPU_DEVICE_TO_HALF(T, name, suffix, mode)             \
  inline __half __##name##2half##suffix(T a) {                \
    using namespace cpu_device;                               \
    return __half_raw{from_integer<Fp16, Rounding::mode>(a)}; \
  }
#define CPU_DEVICE_HALF_INTEGER(T, name)           \
  CPU_DEVICE_FROM_HALF(T, name, _rn, nearest_even) \
  CPU_DEVICE_FROM_HALF(T, name, _rz, toward_zero)  \
  CPU_DEVICE_FROM_HALF(T, name, _rd, down)         \
  CPU_DEVICE_FROM_HALF(T, name, _ru, up)           \
  CPU_DEVICE_TO_HALF(T, name, _rn, nearest_even)   \
  CPU_DEVICE_TO_HALF(T, name, _rz, toward_zero)    \
  CPU_DEVICE_TO_HALF(T, name, _rd, down)           \
  CPU_DEVICE_TO_HALF(T, name, _ru, up)

CPU_DEVICE_FROM_HALF(signed char, char, _rz, toward_zero)
CPU_DEVICE_FROM_HALF(unsigned char, uchar, _rz, toward_zero)
CPU_DEVICE_HALF_INTEGER(short, short)
CPU_DEVICE_HALF_INTEGER(unsigned short, ushort)
CPU_DEVICE_HALF_INTEGER(int, int)
CPU_DEVICE_HALF_INTEGER(unsigned int, uint)
CPU_DEVICE_HALF_INTEGER(long long, ll)
CPU_DEVICE_HALF_INTEGER(unsigned long long, ull)
#undef CPU_DEVICE_FROM_HALF
#undef CPU_DEVICE_TO_HALF
#undef CPU_DEVICE_HALF_INTEGER

// Putting pairs together and taking them apart.

inline __half2 make_half2(__half a, __half b) { return {a, b}; }
inline __half2 __halves2half2(__half a, __half b) { return {a, b}; }
inline __half2 __half2half2(__half a) { return {a, a}; }
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline __half2 __low2half2(__half2 a) { return {a.x, a.x}; }
inline __half2 __high2half2(__half2 a) { return {a.y, a.y}; }
inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
