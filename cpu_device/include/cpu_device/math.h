// CUDA's math functions and intrinsics (CUDA Math API). The host's functions stand in for the
// device's: both stay within the errors that CUDA documents, and their last bits may differ.
#pragma once

// The C++ header makes sin, exp, fabs … overloads for float and double, as CUDA has them.
#include <math.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// ---- min and max, for every pair of arithmetic types; a NaN loses, as in fmin and fmax ----
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr std::common_type_t<A, B> min(
    A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>)
    return std::fmin(T(a), T(b));
  else
    return T(a) < T(b) ? T(a) : T(b);
}
template <class A, class B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr std::common_type_t<A, B> max(
    A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>)
    return std::fmax(T(a), T(b));
  else
    return T(a) < T(b) ? T(b) : T(a);
}

// The same under names of their own.
constexpr unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
constexpr unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
constexpr long long llmin(long long a, long long b) { return a < b ? a : b; }
constexpr long long llmax(long long a, long long b) { return a < b ? b : a; }

// ---- Functions that C++ lacks ----
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return static_cast<float>(1.0 / std::cbrt(double{x})); }
inline float exp10f(float x) { return std::pow(10.0f, x); }
// Reduced before the multiplication by pi, and exactly, so that whole turns give whole results.
inline float sinpif(float x) {
  const double turn = std::remainder(double{x}, 2.0);
  const double folded = std::fabs(turn) > 0.5 ? std::copysign(1.0, turn) - turn : turn;
  return static_cast<float>(std::sin(M_PI * folded));
}
inline float cospif(float x) {
  return static_cast<float>(std::sin(M_PI * (0.5 - std::fabs(std::remainder(double{x}, 2.0)))));
}
inline double sinpi(double x) {
  const double turn = std::remainder(x, 2.0);
  const double folded = std::fabs(turn) > 0.5 ? std::copysign(1.0, turn) - turn : turn;
  return std::sin(M_PI * folded);
}
inline double cospi(double x) { return std::sin(M_PI * (0.5 - std::fabs(std::remainder(x, 2.0)))); }
inline void sincospif(float x, float* s, float* c) {
  *s = sinpif(x);
  *c = cospif(x);
}
inline void sincospi(double x, double* s, double* c) {
  *s = sinpi(x);
  *c = cospi(x);
}
inline double rcbrt(double x) { return 1.0 / std::cbrt(x); }
inline float fdividef(float x, float y) { return x / y; }
inline float rhypotf(float x, float y) {
  return static_cast<float>(1.0 / std::hypot(double{x}, double{y}));
}
inline double rhypot(double x, double y) { return 1.0 / std::hypot(x, y); }
inline float norm3df(float x, float y, float z) { return std::hypot(x, y, z); }
inline double norm3d(double x, double y, double z) { return std::hypot(x, y, z); }
inline float rnorm3df(float x, float y, float z) { return 1.0f / std::hypot(x, y, z); }
inline double rnorm3d(double x, double y, double z) { return 1.0 / std::hypot(x, y, z); }
inline double normcdf(double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); }
/// The x for which erfc(x) is y: Winitzki's approximation, then Newton's steps on the side where
/// erfc is not close to 2.
inline double erfcinv(double y) {
  if (!(y >= 0 && y <= 2)) return std::numeric_limits<double>::quiet_NaN();
  if (y == 0 || y == 2) return std::copysign(std::numeric_limits<double>::infinity(), 1 - y);
  if (y > 1) return -erfcinv(2 - y);
  const double log = std::log(y * (2 - y)), b = 4.3307467508 + log / 2;  // 2 / (pi 0.147)
  double x = std::sqrt(std::sqrt(b * b - log / 0.147) - b);
  for (int step = 0; step < 4; ++step) {
    const double slope = M_2_SQRTPI * std::exp(-x * x);
    if (slope == 0) break;
    const double error = (std::erfc(x) - y) / slope;
    x += error / (1 - x * error);  // Halley's
  }
  return x;
}
inline double erfinv(double y) {
  // Near 0, where 1 - y would lose digits.
  if (std::fabs(y) > 0.5) return y > 0 ? erfcinv(1 - y) : -erfcinv(1 + y);
  double x = y / M_2_SQRTPI;
  for (int step = 0; step < 6; ++step) {
    const double error = (std::erf(x) - y) / (M_2_SQRTPI * std::exp(-x * x));
    x -= error / (1 + x * error);
  }
  return x;
}
inline double normcdfinv(double y) { return -M_SQRT2 * erfcinv(2 * y); }
inline float erfinvf(float y) { return static_cast<float>(erfinv(double{y})); }
inline float erfcinvf(float y) { return static_cast<float>(erfcinv(double{y})); }
inline float normcdfinvf(float y) { return static_cast<float>(normcdfinv(double{y})); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
// In double: far out in the tail erfc multiplies the rounding of its argument by 100.
inline float normcdff(float x) { return static_cast<float>(0.5 * std::erfc(-x * M_SQRT1_2)); }

// ---- Fast approximations: exact enough here, and never better than asked for on a GPU ----
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanf(float x) { return std::tan(x); }
inline float __tanhf(float x) { return std::tanh(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline void __sincosf(float x, float* s, float* c) {
  *s = std::sin(x);
  *c = std::cos(x);
}

// ---- Arithmetic in a stated rounding; `rn` is how this machine computes ----
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / std::sqrt(double{a})); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __drcp_rn(double a) { return 1.0 / a; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

// ---- Bits ----
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
/// 1 + the number of the lowest bit set, 0 for none.
inline int __ffs(int x) { return x ? std::countr_zero(static_cast<unsigned>(x)) + 1 : 0; }
inline int __ffsll(long long x) {
  return x ? std::countr_zero(static_cast<unsigned long long>(x)) + 1 : 0;
}
inline unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
/// Bytes of the eight in y:x, picked by the low three bits of each of the four nibbles of s.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = s >> (4 * i) & 7;
    result |= static_cast<unsigned>(bytes >> (8 * pick) & 0xff) << (8 * i);
  }
  return result;
}
/// The upper (l) or lower (r) 32 bits of hi:lo shifted by the low five bits of `shift`.
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
  return static_cast<unsigned>((uint64_t{hi} << 32 | lo) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
  return static_cast<unsigned>((uint64_t{hi} << 32 | lo) >> (shift & 31));
}

/// The same with a shift of 32 at most.
inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned shift) {
  return shift >= 32 ? lo : __funnelshift_l(lo, hi, shift);
}
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned shift) {
  return shift >= 32 ? hi : __funnelshift_r(lo, hi, shift);
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
inline int __double2hiint(double x) { return static_cast<int>(std::bit_cast<uint64_t>(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(std::bit_cast<uint64_t>(x)); }
inline double __hiloint2double(int hi, int lo) {
  return std::bit_cast<double>(static_cast<uint64_t>(static_cast<unsigned>(hi)) << 32 |
                               static_cast<unsigned>(lo));
}

// ---- Integers in bytes and halves, and their sums ----
namespace cpu_device {
/// sum + the products of the four bytes, signed or not as A and B are.
template <class A, class B, class T>
T dot_of_bytes(unsigned a, unsigned b, T sum) {
  uint32_t result = static_cast<uint32_t>(sum);
  for (int i = 0; i < 4; ++i) {
    result +=
        static_cast<uint32_t>(int{static_cast<A>(a >> 8 * i)} * int{static_cast<B>(b >> 8 * i)});
  }
  return static_cast<T>(result);
}
}  // namespace cpu_device
inline int __dp4a(int a, int b, int c) {
  return cpu_device::dot_of_bytes<int8_t, int8_t>(static_cast<unsigned>(a),
                                                  static_cast<unsigned>(b), c);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return cpu_device::dot_of_bytes<uint8_t, uint8_t>(a, b, c);
}
inline unsigned __sad(int x, int y, unsigned z) {
  const auto a = static_cast<unsigned>(x), b = static_cast<unsigned>(y);
  return (x > y ? a - b : b - a) + z;
}
inline unsigned __usad(unsigned x, unsigned y, unsigned z) { return (x > y ? x - y : y - x) + z; }
/// Means, rounded down or (r) up, without overflow.
inline int __hadd(int a, int b) { return static_cast<int>((int64_t{a} + b) >> 1); }
inline int __rhadd(int a, int b) { return static_cast<int>((int64_t{a} + b + 1) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) {
  return static_cast<unsigned>((uint64_t{a} + b) >> 1);
}
inline unsigned __urhadd(unsigned a, unsigned b) {
  return static_cast<unsigned>((uint64_t{a} + b + 1) >> 1);
}

// ---- Integer products ----
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(int64_t{a} * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
inline int __mul24(int a, int b) { return static_cast<int>(int64_t{a << 8 >> 8} * (b << 8 >> 8)); }

// ---- Conversions in a stated rounding. Where C++ leaves the result undefined, the PTX ISA (`cvt`)
// says: too large a value gives the nearest integer; NaN gives 0 from float to 32 bits, otherwise
// the highest bit alone. ----
namespace cpu_device {
template <class Integer, class Float>
Integer saturate(double rounded) {
  using Limits = std::numeric_limits<Integer>;
  if (std::isnan(rounded)) {
    return sizeof(Integer) == 4 && sizeof(Float) == 4 ? 0 : Integer{1} << (sizeof(Integer) * 8 - 1);
  }
  // 2^31 and 2^63 are exact in double where the largest integers are not.
  const double above = std::ldexp(1.0, Limits::digits);
  if (rounded >= above) return Limits::max();
  if (rounded <= static_cast<double>(Limits::min())) return Limits::min();
  return static_cast<Integer>(rounded);
}
}  // namespace cpu_device

#define CPU_DEVICE_TO_INTEGER(name, From, To)                                                   \
  inline To name##_rn(From x) {                                                                 \
    return cpu_device::saturate<To, From>(std::nearbyint(double{x}));                           \
  }                                                                                             \
  inline To name##_rz(From x) { return cpu_device::saturate<To, From>(std::trunc(double{x})); } \
  inline To name##_rd(From x) { return cpu_device::saturate<To, From>(std::floor(double{x})); } \
  inline To name##_ru(From x) { return cpu_device::saturate<To, From>(std::ceil(double{x})); }
CPU_DEVICE_TO_INTEGER(__float2int, float, int)
CPU_DEVICE_TO_INTEGER(__float2uint, float, unsigned)
CPU_DEVICE_TO_INTEGER(__float2ll, float, long long)
CPU_DEVICE_TO_INTEGER(__float2ull, float, unsigned long long)
CPU_DEVICE_TO_INTEGER(__double2int, double, int)
CPU_DEVICE_TO_INTEGER(__double2uint, double, unsigned)
CPU_DEVICE_TO_INTEGER(__double2ll, double, long long)
CPU_DEVICE_TO_INTEGER(__double2ull, double, unsigned long long)
#undef CPU_DEVICE_TO_INTEGER
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
