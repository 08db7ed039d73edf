// The CPU device's stand-in for CUDA's header of the same name: __nv_bfloat16 and __nv_bfloat162.
// Made like cuda_fp16.h, which says what is left out.
#pragma once

#include <cuda_fp16.h>

/// The bits of a __nv_bfloat16, for whoever needs them outside device code.
struct alignas(2) __nv_bfloat16_raw {
  unsigned short x;
};
struct alignas(4) __nv_bfloat162_raw {
  unsigned short x, y;
};

/// The upper half of a float: 8 significant bits, normal from 2^-126 to 3.39e38, subnormal down to
/// 2^-133.
struct alignas(2) __nv_bfloat16 {
  unsigned short __x;  // protected in CUDA

  __nv_bfloat16() = default;
  constexpr __nv_bfloat16(const __nv_bfloat16_raw& raw) : __x(raw.x) {}
  explicit __nv_bfloat16(__half a) : __nv_bfloat16(static_cast<float>(a)) {}

  // Rounded to nearest even.
  __nv_bfloat16(float a) : __x(cpu_device::from_double<cpu_device::Bf16>(a)) {}
  __nv_bfloat16(double a) : __x(cpu_device::from_double<cpu_device::Bf16>(a)) {}
  __nv_bfloat16(short a) : __x(cpu_device::from_integer<cpu_device::Bf16>(a)) {}
  __nv_bfloat16(unsigned short a) : __x(cpu_device::from_integer<cpu_device::Bf16>(a)) {}
  __nv_bfloat16(int a) : __x(cpu_device::from_integer<cpu_device::Bf16>(a)) {}
  __nv_bfloat16(unsigned int a) : __x(cpu_device::from_integer<cpu_device::Bf16>(a)) {}
  __nv_bfloat16(long a) : __x(cpu_device::from_integer<cpu_device::Bf16>(a)) {}
  __nv_bfloat16(unsigned long a) : __x(cpu_device::from_integer<cpu_device::Bf16>(a)) {}
  __nv_bfloat16(long long a) : __x(cpu_device::from_integer<cpu_device::Bf16>(a)) {}
  __nv_bfloat16(unsigned long long a) : __x(cpu_device::from_integer<cpu_device::Bf16>(a)) {}

  constexpr operator __nv_bfloat16_raw() const { return {__x}; }
  operator float() const { return cpu_device::to_float<cpu_device::Bf16>(__x); }
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
        cpu_device::to_float<cpu_device::Bf16>(__x));
  }
};

/// Two bfloat16 numbers, x in the lower 16 bits of the word.
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;

  __nv_bfloat162() = default;
  constexpr __nv_bfloat162(const __nv_bfloat16& a, const __nv_bfloat16& b) : x(a), y(b) {}
  constexpr __nv_bfloat162(const __nv_bfloat162_raw& raw)
      : x(__nv_bfloat16_raw{raw.x}), y(__nv_bfloat16_raw{raw.y}) {}
  constexpr operator __nv_bfloat162_raw() const {
    return {__nv_bfloat16_raw(x).x, __nv_bfloat16_raw(y).x};
  }
};

using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline __half::__half(__nv_bfloat16 a) : __half(static_cast<float>(a)) {}

// Bits.

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short a) { return __nv_bfloat16_raw{a}; }
inline __nv_bfloat16 __short_as_bfloat16(short a) {
  return __nv_bfloat16_raw{static_cast<unsigned short>(a)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return __nv_bfloat16_raw(a).x; }
inline short __bfloat16_as_short(__nv_bfloat16 a) {
  return static_cast<short>(__nv_bfloat16_raw(a).x);
}

#define CUDART_INF_BF16 __ushort_as_bfloat16(0x7f80)
#define CUDART_NAN_BF16 __ushort_as_bfloat16(0x7fff)
#define CUDART_MIN_DENORM_BF16 __ushort_as_bfloat16(0x0001)
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16(0x7f7f)
#define CUDART_NEG_ZERO_BF16 __ushort_as_bfloat16(0x8000)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16(0x0000)
#define CUDART_ONE_BF16 __ushort_as_bfloat16(0x3f80)

#define Half __nv_bfloat16
#define Half2 __nv_bfloat162
#include "cpu_device/half_functions.inc"
#undef Half
#undef Half2

// Conversions from and to float; _rn to nearest even, _rz toward zero, _rd down, _ru up.

inline __nv_bfloat16 __float2bfloat16(float a) { return a; }
inline __nv_bfloat16 __float2bfloat16_rn(float a) { return a; }
inline __nv_bfloat16 __float2bfloat16_rz(float a) {
  using namespace cpu_device;
  return __nv_bfloat16_raw{from_double<Bf16, Rounding::toward_zero>(a)};
}
inline __nv_bfloat16 __float2bfloat16_rd(float a) {
  using namespace cpu_device;
  return __nv_bfloat16_raw{from_double<Bf16, Rounding::down>(a)};
}
inline __nv_bfloat16 __float2bfloat16_ru(float a) {
  using namespace cpu_device;
  return __nv_bfloat16_raw{from_double<Bf16, Rounding::up>(a)};
}
inline __nv_bfloat16 __double2bfloat16(double a) { return a; }
inline float __bfloat162float(__nv_bfloat16 a) { return a; }

inline __nv_bfloat162 __float2bfloat162_rn(float a) { return {a, a}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {a.x, a.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 a) { return make_float2(a.x, a.y); }

// Conversions from and to integers: __bfloat162int_rn, __int2bfloat16_rn and their like.

#define CPU_DEVICE_FROM_BF16(T, name, suffix, mode)                                     \
  inline T __bfloat162##name##suffix(__nv_bfloat16 a) {                                 \
    return cpu_device::to_integer<T, cpu_device::Rounding::mode>(cpu_device::exact(a)); \
  }
#define CPU_DEVICE_TO_BF16(T, name, suffix, mode)                    \
  inline __nv_bfloat16 __##name##2bfloat16##suffix(T a) {            \
    using namespace cpu_device;                                      \
    return __nv_bfloat16_raw{from_integer<Bf16, Rounding::mode>(a)}; \
  }
#define CPU_DEVICE_BF16_INTEGER(T, name)           \
  CPU_DEVICE_FROM_BF16(T, name, _rn, nearest_even) \
  CPU_DEVICE_FROM_BF16(T, name, _rz, toward_zero)  \
  CPU_DEVICE_FROM_BF16(T, name, _rd, down)         \
  CPU_DEVICE_FROM_BF16(T, name, _ru, up)           \
  CPU_DEVICE_TO_BF16(T, name, _rn, nearest_even)   \
  CPU_DEVICE_TO_BF16(T, name, _rz, toward_zero)    \
  CPU_DEVICE_TO_BF16(T, name, _rd, down)           \
  CPU_DEVICE_TO_BF16(T, name, _ru, up)

CPU_DEVICE_FROM_BF16(signed char, char, _rz, toward_zero)
CPU_DEVICE_FROM_BF16(unsigned char, uchar, _rz, toward_zero)
CPU_DEVICE_BF16_INTEGER(short, short)
CPU_DEVICE_BF16_INTEGER(unsigned short, ushort)
CPU_DEVICE_BF16_INTEGER(int, int)
CPU_DEVICE_BF16_INTEGER(unsigned int, uint)
CPU_DEVICE_BF16_INTEGER(long long, ll)
CPU_DEVICE_BF16_INTEGER(unsigned long long, ull)
#undef CPU_DEVICE_FROM_BF16
#undef CPU_DEVICE_TO_BF16
#undef CPU_DEVICE_BF16_INTEGER

// Putting pairs together and taking them apart.

inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 a) { return {a.x, a.x}; }
inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 a) { return {a.y, a.y}; }
inline __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x, b.x}; }
inline __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.y, b.y}; }
