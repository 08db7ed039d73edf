// Math functions within the errors that CUDA documents, over the whole range of their arguments.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "device_array.hpp"
#include "harness/compare.hpp"
#include "math_kernels.hpp"

using namespace device_test;

namespace {

using Real = long double;
constexpr double kPi = std::numbers::pi;

// Reduced to half a turn at most, where the reference loses nothing.
double sinpi(double x) {
  const double turn = std::remainder(x, 2.0);
  if (turn == std::rint(turn)) return std::copysign(0.0, x);
  return std::fabs(turn) <= 0.5 ? std::sin(kPi * turn)
                                : std::copysign(std::sin(kPi * (1 - std::fabs(turn))), turn);
}
double cospi(double x) {
  const double turn = std::fabs(std::remainder(x, 2.0));
  return turn <= 0.25 ? std::cos(kPi * turn) : std::sin(kPi * (0.5 - turn));
}

/// The x at which an increasing function has the value y, by bisection.
template <class Function>
double inverse(Function function, double y, double low, double high) {
  for (int step = 0; step < 200; ++step) {
    const double middle = low + (high - low) / 2;
    (function(middle) < y ? low : high) = middle;
  }
  return high;
}
double inverse_erf(double y) {
  if (!(std::fabs(y) <= 1)) return std::numeric_limits<double>::quiet_NaN();
  if (std::fabs(y) == 1) return y * std::numeric_limits<double>::infinity();
  // Where it is x * 2 / sqrt(pi), bisection would end too early.
  if (std::fabs(y) < 1e-8) return y * std::sqrt(kPi) / 2;
  return inverse([](double x) { return std::erf(x); }, y, -7, 7);
}
double inverse_erfc(double y) {
  if (!(y >= 0 && y <= 2)) return std::numeric_limits<double>::quiet_NaN();
  if (y == 0 || y == 2) return (1 - y) * std::numeric_limits<double>::infinity();
  if (y == 1) return 0;
  return -inverse([](double x) { return std::erfc(-x); }, y, -30, 7);
}

/// The distance from a correctly rounded result to the next number of its type.
template <class T>
double ulp_of(T y) {
  using Limits = std::numeric_limits<T>;
  if (!std::isfinite(y)) return 0;
  return std::ldexp(1.0, std::max(std::ilogb(y), Limits::min_exponent - 1) - Limits::digits + 1);
}

/// All kinds of numbers: special ones, any bits, small integers and halves, the unit interval.
template <class T>
std::vector<T> all_kinds(uint64_t seed) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> values{T(0),
                        Limits::denorm_min(),
                        Limits::min() / 2,
                        Limits::min(),
                        Limits::epsilon(),
                        T(0.5),
                        T(1),
                        T(1) - Limits::epsilon() / 2,
                        T(1) + Limits::epsilon(),
                        Limits::max(),
                        Limits::infinity(),
                        T(16777216),
                        T(8388607.5),
                        T(1e10)};
  for (int i = 0; i <= 60; ++i) values.push_back(T(i) / 4);
  uint64_t bits = seed * 0x9e3779b97f4a7c15u + 1;
  for (int i = 0; i < 1500; ++i) {
    bits = bits * 6364136223846793005u + 1442695040888963407u;
    const T unit = std::ldexp(T(bits >> 11), -53);
    values.push_back(unit);
    values.push_back(unit * 30);
    values.push_back(std::ldexp(1 + unit, static_cast<int>(bits >> 3) % Limits::max_exponent));
  }
  const size_t positive = values.size();
  for (size_t i = 0; i < positive; ++i) values.push_back(-values[i]);
  values.push_back(Limits::quiet_NaN());
  return values;
}

struct Function {
  const char* name;
  double (*bound)(double x, double y, double ulp);  // y is the correctly rounded result
  Real (*reference)(double x);
  double low, high;
};

#define EXACT_RANGE(function, error, result)                                  \
  Function{#function, [](double, double, double ulp) { return (error)*ulp; }, \
           []([[maybe_unused]] double x) -> Real { return result; }, -INFINITY, INFINITY},
#define FAST(function, low, high, limit, result)                        \
  Function{#function,                                                   \
           []([[maybe_unused]] double x, [[maybe_unused]] double y,     \
              [[maybe_unused]] double ulp) -> double { return limit; }, \
           [](double x) -> Real { return result; }, low, high},
#define LONG_RANGE(function, error, result)                                   \
  Function{#function, [](double, double, double ulp) { return (error)*ulp; }, \
           [](double d) -> Real {                                             \
             [[maybe_unused]] const Real x = d;                               \
             return result;                                                   \
           },                                                                 \
           -INFINITY, INFINITY},

constexpr Function kFloatFunctions[] = {DEVICE_TEST_FLOAT_FUNCTIONS(EXACT_RANGE)};
constexpr Function kFastFunctions[] = {DEVICE_TEST_FAST_FUNCTIONS(FAST)};
constexpr Function kDoubleFunctions[] = {DEVICE_TEST_DOUBLE_FUNCTIONS(LONG_RANGE)};

/// Runs function `number` on `in` and compares what lies in its range.
template <class T, class Launch>
void check(const Function& f, int number, const std::vector<T>& in, Launch launch) {
  const DeviceArray<T> device_in(in), device_out(in.size());
  launch(number, device_in.data(), device_out.data(), static_cast<int>(in.size()));
  const std::vector<T> out = device_out.download();
  int compared = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const T x = in[i];
    if (x < f.low || x > f.high || (std::isnan(x) && std::isfinite(f.low))) continue;
    const T y = static_cast<T>(f.reference(x));
    ++compared;
    if (tile::matches(out[i], y, f.bound(x, y, ulp_of(y)))) continue;
    FAIL_CHECK(std::string(f.name), " of ", x, " gave ", out[i], ", not ", y);
    break;
  }
  CHECK(compared > 300);
}

}  // namespace

TEST_CASE("functions of a float") {
  const std::vector<float> in = all_kinds<float>(1);
  int number = 0;
  for (const Function& f : kFloatFunctions) check(f, number++, in, float_function);
}

TEST_CASE("fast functions of a float") {
  const std::vector<float> in = all_kinds<float>(2);
  int number = 0;
  for (const Function& f : kFastFunctions) check(f, number++, in, fast_function);
}

TEST_CASE("functions of a double") {
  const std::vector<double> in = all_kinds<double>(3);
  int number = 0;
  for (const Function& f : kDoubleFunctions) check(f, number++, in, double_function);
}

TEST_CASE("functions of two floats") {
  struct PairFunction {
    const char* name;
    int error;
    double (*reference)(double x, double y);
  };
#define PAIR(function, error, result) \
  PairFunction{#function, error, [](double x, double y) -> double { return result; }},
  constexpr PairFunction kFunctions[] = {DEVICE_TEST_FLOAT_PAIR_FUNCTIONS(PAIR)};

  std::vector<float> x = all_kinds<float>(4), y = all_kinds<float>(5);
  for (size_t i = 0; i < y.size() / 3; ++i) std::swap(y[i], y[i * 7919 % y.size()]);
  const DeviceArray<float> device_x(x), device_y(y), device_out(x.size());
  int number = 0;
  for (const PairFunction& f : kFunctions) {
    float_pair_function(number++, device_x.data(), device_y.data(), device_out.data(),
                        static_cast<int>(x.size()));
    const std::vector<float> out = device_out.download();
    for (size_t i = 0; i < x.size(); ++i) {
      const float right = static_cast<float>(f.reference(x[i], y[i]));
      // Of two zeros of different sign fmin and fmax may give either.
      if (f.error == 0 && right == 0 && out[i] == 0 && x[i] == 0 && y[i] == 0) continue;
      CHECK_MESSAGE(tile::matches(out[i], right, f.error * ulp_of(right)), std::string(f.name),
                    " of ", x[i], " and ", y[i], " gave ", out[i], ", not ", right);
    }
  }
}

TEST_CASE("fast functions of two floats") {
  std::vector<float> x, y;
  for (int i = 0; i < 2000; ++i) {
    x.push_back(0.5f + 1.5f * static_cast<float>(i * 37 % 2000) / 2000);
    y.push_back(-3.1f + 6.2f * static_cast<float>(i) / 2000);
  }
  const DeviceArray<float> device_x(x), device_y(y);
  const DeviceArray<FastOfTwo> device_out(x.size());
  fast_of_two(device_x.data(), device_y.data(), device_out.data(), static_cast<int>(x.size()));
  const std::vector<FastOfTwo> out = device_out.download();
  for (size_t i = 0; i < x.size(); ++i) {
    const double a = x[i], b = y[i];
    CAPTURE(a);
    CAPTURE(b);
    CHECK(tile::matches(out[i].quotient, a / b, 2.5 * ulp_of(static_cast<float>(a / b))));
    CHECK(tile::matches(out[i].sine, std::sin(b), std::exp2(-21.41)));
    CHECK(tile::matches(out[i].cosine, std::cos(b), std::exp2(-21.19)));
    // exp2f(y * __log2f(x)): the logarithm errs by 2^-22, the product and exp2f by a few ulp.
    const double power = std::pow(a, b);
    CHECK(tile::matches(out[i].power, power, power * (std::fabs(b) + 4) * std::exp2(-22)));
  }
}

TEST_CASE("one rounding of a product and a sum") {
  std::vector<double> a, b, c;
  for (const double x : {1.0 + 0x1p-12, 1.0 + 0x1p-23, 1 + 0x1p-30, 3.7e-20, -0x1p100}) {
    for (const double y : {1.0 + 0x1p-12, 1.0 - 0x1p-24, 1 + 0x1p-52, -1e20, 0x1p-149}) {
      for (const double z : {-1.0, 0x1p-60, -(1.0 + 0x1p-11), 0.0, 1e300}) {
        a.push_back(x), b.push_back(y), c.push_back(z);
      }
    }
  }
  const DeviceArray<double> device_a(a), device_b(b), device_c(c);
  const DeviceArray<Fused> device_out(a.size());
  fused(device_a.data(), device_b.data(), device_c.data(), device_out.data(),
        static_cast<int>(a.size()));
  const std::vector<Fused> out = device_out.download();
  for (size_t i = 0; i < a.size(); ++i) {
    const float p = static_cast<float>(a[i]), q = static_cast<float>(b[i]);
    const float single = std::fma(p, q, static_cast<float>(c[i]));
    const double full = std::fma(a[i], b[i], c[i]);
    CHECK(out[i].single == single);
    CHECK(out[i].single_function == single);
    CHECK(out[i].full == full);
    CHECK(out[i].full_function == full);
    CHECK(out[i].sum == a[i] + b[i]);
    CHECK(out[i].product == a[i] * b[i]);
  }
  // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24, which two roundings lose.
  CHECK(out[2].single == 0x1p-24f);
}

TEST_CASE("the lesser and the greater, of which NaN is neither") {
  const std::vector<float> values{-INFINITY, -2.5f, -0.0f, 1e-40f, 1, 1e38f, INFINITY, NAN};
  std::vector<float> x, y;
  for (const float a : values) {
    for (const float b : values) x.push_back(a), y.push_back(b);
  }
  const DeviceArray<float> device_x(x), device_y(y);
  const DeviceArray<Extremes> device_out(x.size());
  extremes(device_x.data(), device_y.data(), device_out.data(), static_cast<int>(x.size()));
  const std::vector<Extremes> out = device_out.download();
  for (size_t i = 0; i < x.size(); ++i) {
    const float a = x[i], b = y[i];
    const float less = std::isnan(a) ? b : std::isnan(b) ? a : a < b ? a : b;
    const float more = std::isnan(a) ? b : std::isnan(b) ? a : a < b ? b : a;
    CAPTURE(a);
    CAPTURE(b);
    CHECK(tile::matches(out[i].min_float, less, 0));
    CHECK(tile::matches(out[i].max_float, more, 0));
    CHECK(tile::matches(out[i].min_double, less, 0));
    CHECK(tile::matches(out[i].max_double, more, 0));
    CHECK(tile::matches(out[i].max_mixed, more, 0));
  }
}
