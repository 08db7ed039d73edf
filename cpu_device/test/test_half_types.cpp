// The CPU device's half types on the host: their shape, CUDA's implicit conversions, and every
// rounding against the oracle. What a kernel computes with them is test_half_device.cpp's part.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>

#include "half_oracle.hpp"

using cpu_device::Rounding;
using half_oracle::Format;
using half_oracle::Mode;
using half_oracle::Number;

namespace {

using Random = std::independent_bits_engine<std::mt19937_64, 64, uint64_t>;

template <class T>
uint32_t bits(T a) {
  return std::bit_cast<uint16_t>(a);
}

struct Fp16 {
  using T = __half;
  using T2 = __half2;
  using Layout = cpu_device::Fp16;
  static constexpr Format kFormat = half_oracle::kFp16;
};
struct Bf16 {
  using T = __nv_bfloat16;
  using T2 = __nv_bfloat162;
  using Layout = cpu_device::Bf16;
  static constexpr Format kFormat = half_oracle::kBf16;
};

Number decode(float a) {
  return half_oracle::decode(half_oracle::kFp32, std::bit_cast<uint32_t>(a));
}
Number decode(double a) { return half_oracle::decode_double(std::bit_cast<uint64_t>(a)); }

// Counts wrong results instead of asserting millions of times, and shows the first.
class Tally {
 public:
  void compare(uint32_t got, uint32_t want, double argument) {
    if (got != want && wrong_++ == 0) {
      CAPTURE(argument);
      CHECK(got == want);
    }
    ++all_;
  }
  ~Tally() {
    CHECK(wrong_ == 0);
    CHECK(all_ > 0);
  }

 private:
  size_t wrong_ = 0, all_ = 0;
};

// All four modes, from a double and, if it is one, from a float.
template <class H>
void check_rounding(Tally& tally, double a) {
  const auto check = [&]<Rounding kRounding>(Mode mode) {
    const uint32_t want = half_oracle::convert(H::kFormat, mode, decode(a));
    tally.compare(cpu_device::from_double<typename H::Layout, kRounding>(a), want, a);
  };
  check.template operator()<Rounding::nearest_even>(Mode::rn);
  check.template operator()<Rounding::toward_zero>(Mode::rz);
  check.template operator()<Rounding::down>(Mode::rd);
  check.template operator()<Rounding::up>(Mode::ru);
}

// A long double as a number of the oracle: 62 bits and one for the rest.
uint32_t round(const Format& format, long double a) {
  if (std::isnan(a)) return format.nan();
  const uint32_t sign = std::signbit(a) ? format.sign() : 0;
  if (std::isinf(a)) return sign | format.infinity();
  if (a == 0) return sign;
  int exponent = 0;
  const long double scaled = std::ldexp(std::frexp(std::fabs(a), &exponent), 62);
  const auto whole = static_cast<uint64_t>(scaled);
  const bool exact = static_cast<long double>(whole) == scaled;
  exponent = std::clamp(exponent, -200, 200);  // beyond, all overflow or vanish alike
  return half_oracle::round_truncated(format, std::signbit(a), whole, exponent - 62, exact);
}

}  // namespace

TEST_CASE_TEMPLATE("half types are plain data", H, Fp16, Bf16) {
  using T = typename H::T;
  using T2 = typename H::T2;
  static_assert(std::is_trivial_v<T> && std::is_standard_layout_v<T>);
  static_assert(std::is_trivial_v<T2> && std::is_standard_layout_v<T2>);
  static_assert(sizeof(T) == 2 && alignof(T) == 2);
  static_assert(sizeof(T2) == 4 && alignof(T2) == 4);
  CHECK(std::bit_cast<uint32_t>(T2(T(1), T(0))) == H::kFormat.one());
}

// The overload sets are CUDA's, down to what is ambiguous.
template <class T, class A>
concept Multiplies = requires(T h, A a) {
  h* a;
};
template <class T, class A>
concept MultipliesInPlace = requires(T h, A a) {
  h *= a;
};

TEST_CASE_TEMPLATE("half types convert as in CUDA", H, Fp16, Bf16) {
  using T = typename H::T;
  static_assert(std::is_convertible_v<float, T> && std::is_convertible_v<T, float>);
  static_assert(std::is_convertible_v<double, T> && std::is_convertible_v<T, double>);
  static_assert(std::is_convertible_v<char, T> && std::is_convertible_v<T, char>);
  static_assert(std::is_convertible_v<int, T> && std::is_convertible_v<T, int>);
  static_assert(std::is_convertible_v<size_t, T> && std::is_convertible_v<T, size_t>);
  static_assert(std::is_convertible_v<long long, T> && std::is_convertible_v<T, long long>);
  static_assert(std::is_convertible_v<T, bool>);
  static_assert(!std::is_convertible_v<__half, __nv_bfloat16>);
  static_assert(!std::is_convertible_v<__nv_bfloat16, __half>);
  static_assert(std::is_constructible_v<__half, __nv_bfloat16>);
  static_assert(std::is_constructible_v<__nv_bfloat16, __half>);
  static_assert(Multiplies<T, T> && !Multiplies<T, float> && !Multiplies<T, int>);
  static_assert(MultipliesInPlace<T, float> && MultipliesInPlace<T, int>);
  static_assert(!MultipliesInPlace<float, T>);

  T h = 1.0f;
  const float f = h;
  CHECK(f == 1.0f);
  h += 1.0f;
  h *= 3;
  h -= T(0.5);
  CHECK(double{h} == 5.5);
  CHECK(static_cast<int>(h) == 5);
  CHECK(static_cast<int>(-h) == -5);
  CHECK(float{h++} == 5.5f);
  CHECK(float{--h} == 5.5f);
  h = 2;
  CHECK(float{h / T(4)} == 0.5f);
  CHECK((h ? true : false));
  CHECK_FALSE((T(-0.0f) ? true : false));
  CHECK(h == T(2));
  CHECK(h != T(3));
  CHECK((h < T(3) && h <= T(2) && h > T(1) && h >= T(2)));
  const T nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(nan != nan);
  CHECK_FALSE((nan == nan || nan < h || nan > h));
  CHECK(float{__half(__nv_bfloat16(3))} == 3.0f);
  CHECK(bits(__half(__nv_bfloat16(1e30f))) == half_oracle::kFp16.infinity());
}

TEST_CASE_TEMPLATE("operators on pairs work on both halves", H, Fp16, Bf16) {
  using T = typename H::T;
  using T2 = typename H::T2;
  const T2 a(3, 4), b(1, 8);
  T2 c = a + b;
  CHECK(c == T2(4, 12));
  c -= b;
  c *= T2(2, 3);
  CHECK(c == T2(6, 12));
  CHECK(c / T2(3, 4) == T2(2, 3));
  CHECK(-c++ == T2(-6, -12));
  CHECK(--c == T2(6, 12));
  // Relations hold if they do in both halves; != too, as in CUDA.
  CHECK_FALSE(a != T2(3, 5));
  CHECK(a != T2(1, 1));
  CHECK_FALSE((a < b || a > b));
  CHECK((a <= T2(3, 9) && a >= T2(3, 1)));
  CHECK(float{T(__low2float(a))} == 3.0f);
}

TEST_CASE_TEMPLATE("every bit pattern becomes its float and comes back", H, Fp16, Bf16) {
  using T = typename H::T;
  Tally values, round_trips;
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto h = std::bit_cast<T>(static_cast<uint16_t>(i));
    const float f = h;
    if (H::kFormat.is_nan(i)) {
      values.compare(std::isnan(f), true, i);
      round_trips.compare(bits(T(f)), H::kFormat.nan(), i);
    } else {
      const Number want = half_oracle::decode(H::kFormat, i);
      values.compare(std::bit_cast<uint32_t>(f),
                     half_oracle::convert(half_oracle::kFp32, Mode::rn, want), i);
      round_trips.compare(bits(T(f)), i, f);
      round_trips.compare(bits(T(double{h})), i, f);
    }
  }
}

TEST_CASE_TEMPLATE("conversions round once in every mode, between all neighbours", H, Fp16, Bf16) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Tally tally;
  for (uint32_t i = 0; i <= H::kFormat.max_finite(); ++i) {
    const double low = cpu_device::to_float<typename H::Layout>(static_cast<uint16_t>(i));
    // Past the largest number the grid goes on by one step: the limit of overflow.
    const double step =
        i == 0 ? 0 : low - cpu_device::to_float<typename H::Layout>(static_cast<uint16_t>(i - 1));
    const double high =
        i == H::kFormat.max_finite()
            ? low + step
            : cpu_device::to_float<typename H::Layout>(static_cast<uint16_t>(i + 1));
    const double middle = low + (high - low) / 2;
    for (const double a : {low, middle, high}) {
      for (const double sign : {1.0, -1.0}) {
        check_rounding<H>(tally, sign * a);
        // Neighbours as a double, whose rounding to float would be a again, and as a float.
        check_rounding<H>(tally, sign * std::nextafter(a, 0));
        check_rounding<H>(tally, sign * std::nextafter(a, kInfinity));
        check_rounding<H>(tally, sign * std::nextafter(static_cast<float>(a), 0.0f));
        check_rounding<H>(tally, sign * std::nextafter(static_cast<float>(a), INFINITY));
      }
    }
  }
}

TEST_CASE_TEMPLATE("conversions of special and random values", H, Fp16, Bf16) {
  using T = typename H::T;
  using Limits = std::numeric_limits<double>;
  Tally tally;
  for (const double a : {0.0, Limits::denorm_min(), Limits::min(), Limits::max(), 1e300, 1e-300,
                         Limits::infinity(), Limits::quiet_NaN()}) {
    check_rounding<H>(tally, a);
    check_rounding<H>(tally, -a);
  }
  Random random(3);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t word = random();
    const auto d = std::bit_cast<double>(word);
    const auto f = std::bit_cast<float>(static_cast<uint32_t>(word));
    check_rounding<H>(tally, d);
    tally.compare(bits(T(f)), half_oracle::convert(H::kFormat, Mode::rn, decode(f)), f);
    // Random doubles are mostly out of range; these are not.
    check_rounding<H>(tally, std::ldexp(static_cast<double>(word), -64 - int(word % 32)));
    // Shifted, so that all sizes of integers occur.
    const uint64_t integer = word >> (word % 64);
    const double shown = static_cast<double>(integer);
    tally.compare(bits(T(integer)),
                  half_oracle::from_magnitude(H::kFormat, Mode::rn, false, integer), shown);
    tally.compare(bits(T(-static_cast<int64_t>(integer >> 1))),
                  half_oracle::from_magnitude(H::kFormat, Mode::rn, true, integer >> 1), -shown);
  }
}

TEST_CASE_TEMPLATE("integers between two floats are not rounded twice", H, Fp16, Bf16) {
  using T = typename H::T;
  // A tie of bf16 at 2^61, and one more: 54 bits further down, where a double ends too.
  const int64_t tie = (int64_t{1} << 61) + (int64_t{1} << 53);
  const uint32_t want = half_oracle::from_magnitude(H::kFormat, Mode::rn, false, tie + 1);
  CHECK(bits(T(tie + 1)) == want);
  if (std::is_same_v<H, Bf16>) CHECK(bits(T(static_cast<double>(tie + 1))) != want);
}

TEST_CASE("a double is not rounded to float on its way") {
  // Just above the middle of 1 and its neighbour.
  const double fp16 = 1 + 0x1p-11 + 0x1p-40, bf16 = 1 + 0x1p-8 + 0x1p-40;
  CHECK(bits(__half(fp16)) == 0x3c01);
  CHECK(bits(__half(static_cast<float>(fp16))) == 0x3c00);
  CHECK(bits(__nv_bfloat16(bf16)) == 0x3f81);
  CHECK(bits(__nv_bfloat16(static_cast<float>(bf16))) == 0x3f80);
}

TEST_CASE("a fused multiply-add rounds once") {
  // fp16: 1.5 * (1 + 2^-10) = 1.5 + 2^-10 + 2^-11, a tie, and 2^-24 above it is lost in a float.
  const __half a = 1.5f, b = 1 + 0x1p-10, c = 0x1p-24;
  CHECK(bits(__hfma(a, b, c)) == 0x3e02);
  CHECK(bits(__hfma(a, b, -c)) == 0x3e01);
  CHECK(bits(__half(std::fma(float{a}, float{b}, float{-c}))) == 0x3e02);
  // bf16: 1.5 * (1 + 2^-7) is a tie, and 2^-100 below it is lost in a double.
  const __nv_bfloat16 x = 1.5f, y = 1 + 0x1p-7, z = 0x1p-100;
  CHECK(bits(__hfma(x, y, z)) == 0x3fc2);
  CHECK(bits(__hfma(x, y, -z)) == 0x3fc1);
  CHECK(bits(__nv_bfloat16(std::fma(double{x}, double{y}, double{-z}))) == 0x3fc2);
}

TEST_CASE_TEMPLATE("arithmetic on random operands", H, Fp16, Bf16) {
  using T = typename H::T;
  const Format f = H::kFormat;
  const Number one = half_oracle::decode(f, f.one());
  const Number minus_one = half_oracle::decode(f, f.one() | f.sign());
  Tally sum, difference, product, quotient, fused;
  Random random(4);
  for (int i = 0; i < 500000; ++i) {
    const uint64_t word = random();
    const auto a_bits = static_cast<uint16_t>(word);
    auto b_bits = static_cast<uint16_t>(word >> 16);
    // Half of the pairs have nearly the same exponent, so that sums round and cancel.
    if (i % 2 == 0) b_bits = static_cast<uint16_t>((a_bits & 0x7f00) ^ (b_bits & 0x87ff));
    const auto c_bits = static_cast<uint16_t>(word >> 32);
    const auto a = std::bit_cast<T>(a_bits), b = std::bit_cast<T>(b_bits);
    const auto c = std::bit_cast<T>(c_bits);
    const Number x = half_oracle::decode(f, a_bits), y = half_oracle::decode(f, b_bits);
    const Number z = half_oracle::decode(f, c_bits);
    const Number zero = half_oracle::decode(f, (a_bits ^ b_bits) & f.sign());
    sum.compare(bits(a + b), half_oracle::fma(f, x, one, y), a);
    difference.compare(bits(a - b), half_oracle::fma(f, y, minus_one, x), a);
    product.compare(bits(a * b), half_oracle::fma(f, x, y, zero), a);
    quotient.compare(bits(a / b), half_oracle::divide(f, x, y), a);
    fused.compare(bits(__hfma(a, b, c)), half_oracle::fma(f, x, y, z), a);
  }
}

TEST_CASE_TEMPLATE("functions of one variable round correctly", H, Fp16, Bf16) {
  using T = typename H::T;
  using Wide = long double;
  const auto check = [](const char* name, T (*function)(T), Wide (*wide)(Wide)) {
    CAPTURE(name);
    Tally tally;
    for (uint32_t i = 0; i < 0x10000; ++i) {
      const auto a = std::bit_cast<T>(static_cast<uint16_t>(i));
      tally.compare(bits(function(a)), round(H::kFormat, wide(float{a})), a);
    }
  };
  check("hsqrt", hsqrt, [](Wide x) { return std::sqrt(x); });
  check("hrsqrt", hrsqrt, [](Wide x) { return 1 / std::sqrt(x); });
  check("hrcp", hrcp, [](Wide x) { return 1 / x; });
  check("hexp", hexp, [](Wide x) { return std::exp(x); });
  check("hexp2", hexp2, [](Wide x) { return std::exp2(x); });
  check("hexp10", hexp10, [](Wide x) { return std::pow(Wide{10}, x); });
  check("hlog", hlog, [](Wide x) { return std::log(x); });
  check("hlog2", hlog2, [](Wide x) { return std::log2(x); });
  check("hlog10", hlog10, [](Wide x) { return std::log10(x); });
  check("hsin", hsin, [](Wide x) { return std::sin(x); });
  check("hcos", hcos, [](Wide x) { return std::cos(x); });
  check("htanh", htanh, [](Wide x) { return std::tanh(x); });
  check("htanh_approx", htanh_approx, [](Wide x) { return std::tanh(x); });
}

TEST_CASE("constants are CUDA's") {
  CHECK(float{CUDART_INF_FP16} == INFINITY);
  CHECK(float{CUDART_MAX_NORMAL_FP16} == 65504.0f);
  CHECK(float{CUDART_MIN_DENORM_FP16} == 0x1p-24f);
  CHECK(float{CUDART_ONE_FP16} == 1.0f);
  CHECK(__hisnan(CUDART_NAN_FP16));
  CHECK(std::signbit(float{CUDART_NEG_ZERO_FP16}));
  CHECK(float{CUDART_INF_BF16} == INFINITY);
  CHECK(float{CUDART_MAX_NORMAL_BF16} == 0x1.fep127f);
  CHECK(float{CUDART_MIN_DENORM_BF16} == 0x1p-133f);
  CHECK(float{CUDART_ONE_BF16} == 1.0f);
  CHECK(__hisnan(CUDART_NAN_BF16));
  CHECK(std::signbit(float{CUDART_NEG_ZERO_BF16}));
}
