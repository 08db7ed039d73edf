// Math functions and intrinsics, in tables that kernels and tests share.
#pragma once

namespace device_test {

// name(x); the largest error in ulp, from the CUDA C++ Programming Guide, "Mathematical Functions";
// a reference in double. An ulp is counted from the correctly rounded result.
#define DEVICE_TEST_FLOAT_FUNCTIONS(OP)                 \
  OP(sqrtf, 0, std::sqrt(x))                            \
  OP(rsqrtf, 2, 1 / std::sqrt(x))                       \
  OP(cbrtf, 1, std::cbrt(x))                            \
  OP(rcbrtf, 1, 1 / std::cbrt(x))                       \
  OP(expf, 2, std::exp(x))                              \
  OP(exp2f, 2, std::exp2(x))                            \
  OP(exp10f, 2, std::pow(10.0, x))                      \
  OP(expm1f, 1, std::expm1(x))                          \
  OP(logf, 1, std::log(x))                              \
  OP(log2f, 1, std::log2(x))                            \
  OP(log10f, 2, std::log10(x))                          \
  OP(log1pf, 1, std::log1p(x))                          \
  OP(sinf, 2, std::sin(x))                              \
  OP(cosf, 2, std::cos(x))                              \
  OP(tanf, 4, std::tan(x))                              \
  OP(sinpif, 1, sinpi(x))                               \
  OP(cospif, 1, cospi(x))                               \
  OP(sine_of_sincospif, 1, sinpi(x))                    \
  OP(cosine_of_sincospif, 1, cospi(x))                  \
  OP(asinf, 2, std::asin(x))                            \
  OP(acosf, 2, std::acos(x))                            \
  OP(atanf, 2, std::atan(x))                            \
  OP(sinhf, 3, std::sinh(x))                            \
  OP(coshf, 2, std::cosh(x))                            \
  OP(tanhf, 2, std::tanh(x))                            \
  OP(asinhf, 3, std::asinh(x))                          \
  OP(acoshf, 4, std::acosh(x))                          \
  OP(atanhf, 3, std::atanh(x))                          \
  OP(erff, 2, std::erf(x))                              \
  OP(erfcf, 4, std::erfc(x))                            \
  OP(normcdff, 5, 0.5 * std::erfc(-x * std::sqrt(0.5))) \
  OP(erfinvf, 2, inverse_erf(x))                        \
  OP(erfcinvf, 4, inverse_erfc(x))                      \
  OP(tgammaf, 5, std::tgamma(x))                        \
  OP(truncf, 0, std::trunc(x))                          \
  OP(floorf, 0, std::floor(x))                          \
  OP(ceilf, 0, std::ceil(x))                            \
  OP(rintf, 0, std::rint(x))                            \
  OP(nearbyintf, 0, std::nearbyint(x))                  \
  OP(roundf, 0, std::round(x))                          \
  OP(fabsf, 0, std::fabs(x))                            \
  OP(__fsqrt_rn, 0, std::sqrt(x))                       \
  OP(__frsqrt_rn, 0, 1 / std::sqrt(x))                  \
  OP(__frcp_rn, 0, 1 / x)                               \
  OP(__saturatef, 0, x > 0 ? std::fmin(x, 1.0) : 0.0)

// name(x) for x from `low` to `high`; an absolute bound, with y the correctly rounded result and
// ulp its; a reference. From the same place, "Intrinsic Functions"; the bound of __tanf follows
// from those of __sinf and __cosf.
#define DEVICE_TEST_FAST_FUNCTIONS(OP)                                                    \
  OP(__expf, -80, 88, (2 + std::floor(1.173 * std::fabs(x))) * ulp, std::exp(x))          \
  OP(__exp10f, -35, 38, (2 + std::floor(2.97 * std::fabs(x))) * ulp, std::pow(10.0, x))   \
  OP(__logf, 1e-30, 1e30, 0.5 <= x && x <= 2 ? std::exp2(-21.41) : 3 * ulp, std::log(x))  \
  OP(__log2f, 1e-30, 1e30, 0.5 <= x && x <= 2 ? std::exp2(-22) : 2 * ulp, std::log2(x))   \
  OP(__log10f, 1e-30, 1e30, 0.5 <= x && x <= 2 ? std::exp2(-24) : 3 * ulp, std::log10(x)) \
  OP(__sinf, -3.1415925, 3.1415925, std::exp2(-21.41), std::sin(x))                       \
  OP(__cosf, -3.1415925, 3.1415925, std::exp2(-21.19), std::cos(x))                       \
  OP(__tanf, -1, 1, (1 + std::fabs(y)) * std::exp2(-20.2) + 4 * ulp, std::tan(x))         \
  OP(__tanhf, -20, 20, std::exp2(-11) * std::fabs(y), std::tanh(x))

#define DEVICE_TEST_FLOAT_PAIR_FUNCTIONS(OP) \
  OP(powf, 4, std::pow(x, y))                \
  OP(atan2f, 3, std::atan2(x, y))            \
  OP(hypotf, 3, std::hypot(x, y))            \
  OP(fmodf, 0, std::fmod(x, y))              \
  OP(remainderf, 0, std::remainder(x, y))    \
  OP(fdimf, 0, std::fdim(x, y))              \
  OP(fminf, 0, std::fmin(x, y))              \
  OP(fmaxf, 0, std::fmax(x, y))              \
  OP(copysignf, 0, std::copysign(x, y))      \
  OP(__fadd_rn, 0, x + y)                    \
  OP(__fsub_rn, 0, x - y)                    \
  OP(__fmul_rn, 0, x* y)                     \
  OP(__fdiv_rn, 0, x / y)

// The reference is in long double; d is x as a double, for what rounds once.
#define DEVICE_TEST_DOUBLE_FUNCTIONS(OP) \
  OP(sqrt, 0, std::sqrt(d))              \
  OP(rsqrt, 1, 1 / std::sqrt(x))         \
  OP(exp, 1, std::exp(x))                \
  OP(log, 1, std::log(x))                \
  OP(sin, 2, std::sin(x))                \
  OP(cos, 2, std::cos(x))                \
  OP(tanh, 2, std::tanh(x))              \
  OP(erf, 2, std::erf(x))                \
  OP(fabs, 0, std::fabs(x))              \
  OP(floor, 0, std::floor(x))

/// out[i] = f(in[i]); `function` is the number of f's line in its table.
void float_function(int function, const float* in, float* out, int count);
void fast_function(int function, const float* in, float* out, int count);
void float_pair_function(int function, const float* x, const float* y, float* out, int count);
void double_function(int function, const double* in, double* out, int count);

struct FastOfTwo {
  float quotient, power, sine, cosine;
};
/// __fdividef(x, y), __powf(x, y), __sincosf(y).
void fast_of_two(const float* x, const float* y, FastOfTwo* out, int count);

struct Fused {
  float single, single_function;
  double full, full_function, sum, product;
};
/// a * b + c by __fmaf_rn, fmaf, __fma_rn, fma; a + b and a * b in double by intrinsics.
void fused(const double* a, const double* b, const double* c, Fused* out, int count);

struct Words {
  unsigned x, y, s;
  unsigned long long a, b;
};

struct WordResults {
  int popc, popcll, clz, clzll, ffs, ffsll;
  unsigned brev, byte_perm, funnel_l, funnel_r, funnel_lc, funnel_rc, umulhi;
  int dp4a, hadd, rhadd;
  unsigned dp4a_unsigned, sad, usad, uhadd;
  unsigned long long brevll;
  int mulhi, mul24;
  unsigned long long umul64hi;
  int as_int;
  unsigned as_uint;
  long long as_longlong;
  int min_int, max_int;
  unsigned min_unsigned, max_unsigned, min_mixed, max_mixed;
  long long min_long;
  unsigned long long max_long;
};
void word_functions(const Words* in, WordResults* out, int count);

struct Extremes {
  float min_float, max_float;
  double min_double, max_double, max_mixed;
};
/// min(x, y) and max(x, y); the mixed one of x as float and y as double.
void extremes(const float* x, const float* y, Extremes* out, int count);

enum { kNearest, kZero, kDown, kUp, kModes };

/// To integers from float (index 0, where x is rounded to float) and from double.
struct Integers {
  int to_int[2][kModes];
  unsigned to_uint[2][kModes];
  long long to_ll[2][kModes];
  unsigned long long to_ull[2][kModes];
};
void to_integers(const double* in, Integers* out, int count);

struct Floats {
  float from_int, from_uint, from_ll, from_double;
  double int_to_double;
};
/// From the low bits of a[i], and from a[i] as a double.
void to_floats(const long long* in, Floats* out, int count);

/// clock64() before and after a loop, and what the loop computed.
void clocks(long long* before_and_after, int* result);

}  // namespace device_test
