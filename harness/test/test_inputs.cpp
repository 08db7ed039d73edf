#include "harness/inputs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

#include "harness/compare.hpp"
#include "harness/convert.hpp"

namespace tile {
namespace {

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) { return matches(x, y, 0); });
}

TEST_CASE("inputs: all are values of their type already") {
  for (const DType dtype : kDTypes) {
    for (const auto& values :
         {uniform(500, dtype, 1, -3, 5), normal(500, dtype, 1), integers(500, dtype, 1, -8, 8),
          adversarial(500, dtype), adversarial_finite(500, dtype), all_very_negative(500, dtype)}) {
      CHECK(values.size() == 500);
      CHECK(same_bits(rounded(values, dtype), values));
    }
  }
}

TEST_CASE("inputs: the same on every machine") {
  // Once computed by an independent script from the definition of splitmix64.
  CHECK(uniform(3, DType::fp64, 1, 0, 1) ==
        std::vector<double>{0.36818951565166946, 0.9435642308648544, 0.04525699773739167});
  CHECK(integers(5, DType::fp32, 7, -8, 8) == std::vector<double>{-2, 7, -2, -4, -8});
}

TEST_CASE("inputs: a seed gives one sequence, another seed another, a longer one starts the same") {
  const auto ten = uniform(10, DType::fp32, 1, 0, 1);
  const auto five = uniform(5, DType::fp32, 1, 0, 1);
  CHECK(std::ranges::equal(five, std::vector<double>(ten.begin(), ten.begin() + 5)));
  CHECK(uniform(10, DType::fp32, 1, 0, 1) == ten);
  CHECK(uniform(10, DType::fp32, 2, 0, 1) != ten);
  CHECK(normal(10, DType::fp32, 1) != normal(10, DType::fp32, 2));
  CHECK(integers(10, DType::fp32, 1, -8, 8) != integers(10, DType::fp32, 2, -8, 8));
}

TEST_CASE("inputs: long ones, which several threads make, are the same as short ones") {
  for (const DType dtype : kDTypes) {
    const auto many = uniform(400'000, dtype, 1, 0, 1);
    const auto fewer = uniform(131'000, dtype, 1, 0, 1);  // too few for a second thread
    CHECK(std::ranges::equal(fewer, std::vector<double>(many.begin(), many.begin() + 131'000)));
  }
  // By the same script as above.
  CHECK(uniform(400'000, DType::fp64, 1, 0, 1).back() == 0.26701304254186753);
}

TEST_CASE("inputs: uniform fills its range and no more") {
  const auto values = uniform(10000, DType::fp32, 3, -2, 6);
  const auto [lo, hi] = std::ranges::minmax(values);
  CHECK(lo >= -2);
  CHECK(lo < -1.99);
  CHECK(hi <= 6);
  CHECK(hi > 5.99);
  double sum = 0;
  for (const double x : values) sum += x;
  CHECK(std::abs(sum / 10000 - 2) < 0.1);  // the mean's standard deviation is 0.023
}

TEST_CASE("inputs: normal has mean 0 and variance 1") {
  double sum = 0, squares = 0, products = 0, last = 0;
  for (const double x : normal(10000, DType::fp64, 4)) {
    sum += x;
    squares += x * x;
    products += x * last;
    last = x;
  }
  CHECK(std::abs(sum / 10000) < 0.05);  // five standard deviations of the mean
  CHECK(std::abs(squares / 10000 - 1) < 0.07);
  CHECK(std::abs(products / 10000) < 0.05);  // neighbours share no random numbers
}

TEST_CASE("inputs: of tf32, random ones have more bits than are multiplied, special ones do not") {
  // A multiple of the smallest denormal, 2^-136, and of the last of 11 bits.
  const auto fits = [](double x) {
    int exponent = 0;
    std::frexp(x, &exponent);
    const double last_bit = std::ldexp(1, std::max(exponent - 11, -136));
    return x / last_bit == std::rint(x / last_bit);
  };
  CHECK(std::ranges::count_if(normal(1000, DType::tf32, 1), fits) < 10);
  CHECK(std::ranges::count_if(uniform(1000, DType::tf32, 1, -1, 1), fits) < 10);
  CHECK(normal(1000, DType::tf32, 1) == normal(1000, DType::fp32, 1));
  CHECK(std::ranges::all_of(adversarial_finite(31, DType::tf32), fits));
  CHECK(std::ranges::all_of(integers(1000, DType::tf32, 1, -2048, 2048), fits));
  CHECK_THROWS_AS(integers(1, DType::tf32, 1, 0, 2049), std::invalid_argument);
}

TEST_CASE("inputs: integers meet every value of their range") {
  const auto values = integers(2000, DType::bf16, 5, -8, 8);
  const std::set<double> seen(values.begin(), values.end());
  CHECK(seen.size() == 17);
  CHECK(*seen.begin() == -8);
  CHECK(*seen.rbegin() == 8);
  CHECK(integers(3, DType::fp32, 5, 4, 4) == std::vector<double>{4, 4, 4});
}

TEST_CASE("inputs: integers that the type does not hold are refused") {
  CHECK(integers(1, DType::bf16, 1, 256, 256) == std::vector<double>{256});
  CHECK_THROWS_AS(integers(1, DType::bf16, 1, 0, 257), std::invalid_argument);
  CHECK_THROWS_AS(integers(1, DType::fp16, 1, -2049, 0), std::invalid_argument);
  CHECK_NOTHROW(integers(1, DType::fp16, 1, -2048, 2048));
  CHECK_THROWS_AS(integers(1, DType::fp32, 1, 1, 0), std::invalid_argument);
  CHECK_THROWS_AS(uniform(-1, DType::fp32, 1, 0, 1), std::invalid_argument);
}

TEST_CASE("inputs: adversarial meets every special value within 31 elements") {
  for (const DType dtype : kDTypes) {
    CAPTURE(name(dtype));
    const auto values = adversarial(31, dtype);
    const auto has = [&](double x) {
      return std::ranges::any_of(values, [x](double y) { return matches(y, x, 0); });
    };
    const double infinity = std::numeric_limits<double>::infinity();
    // e4m3 ends at 448.
    const double most = dtype == DType::e4m3 ? 448 : infinity;
    for (const double x : {0.0, -0.0, most, -most, std::nan("")}) CHECK(has(x));
    CHECK((has(1e4) || dtype == DType::bf16 || dtype == DType::e4m3));
    CHECK((has(9984) || dtype != DType::bf16));  // 1e4 in bf16
    CHECK(same_bits(adversarial(40, dtype), [&] {
      auto twice = values;
      twice.insert(twice.end(), values.begin(), values.begin() + 9);
      return twice;
    }()));
  }
  const auto has_all = [](DType dtype, std::vector<double> wanted) {
    const auto values = adversarial_finite(31, dtype);
    return std::ranges::all_of(wanted, [&](double x) {
      return std::ranges::count(values, x) == 1 && std::ranges::count(values, -x) == 1;
    });
  };
  using Float = std::numeric_limits<float>;
  using Double = std::numeric_limits<double>;
  const double min_float = static_cast<double>(Float::min());
  CHECK(has_all(DType::fp32,
                {static_cast<double>(Float::max()), min_float, 0x1p-149, min_float - 0x1p-149}));
  CHECK(has_all(DType::fp16, {65504, 0x1p-14, 0x1p-24, 0x1p-14 - 0x1p-24}));
  CHECK(has_all(DType::bf16, {0x1.FEp127, 0x1p-126, 0x1p-133, 0x1p-126 - 0x1p-133}));
  CHECK(has_all(DType::tf32, {0x1.FFCp127, 0x1p-126, 0x1p-136, 0x1p-126 - 0x1p-136}));
  CHECK(has_all(DType::fp64, {Double::max(), Double::min(), Double::denorm_min(),
                              Double::min() - Double::denorm_min()}));
}

TEST_CASE("inputs: the finite adversarial values are finite") {
  for (const DType dtype : kDTypes) {
    for (const double x : adversarial_finite(100, dtype)) CHECK(std::isfinite(x));
  }
}

TEST_CASE("inputs: very negative values lie below a mask of -1e4, and differ") {
  for (const DType dtype : kDTypes) {
    if (dtype == DType::e4m3) continue;  // has no such numbers
    const auto values = all_very_negative(100, dtype);
    for (const double x : values) CHECK((x < -2e4 && x > -3e4));
    CHECK(std::set<double>(values.begin(), values.end()).size() == 5);
  }
  CHECK(all_very_negative(2, DType::fp32) == std::vector<double>{-20480, -20480.25});
  CHECK(all_very_negative(2, DType::bf16) == std::vector<double>{-20480, -20608});
}

TEST_CASE("inputs: sizes around a tile, ascending and each once") {
  CHECK(odd_sizes(128) ==
        std::vector<std::int64_t>{0, 1, 2, 97, 113, 127, 128, 129, 255, 257, 587, 799, 1023, 1025});
  CHECK(odd_sizes(1) == std::vector<std::int64_t>{0, 1, 2, 3, 97, 113, 257, 587, 799, 1023, 1025});
  CHECK(odd_sizes(512).size() == 13);  // 1023 and 1025 are 2T-1 and 2T+1 as well
  CHECK(pointer_offsets() == std::vector<std::int64_t>{0, 1, 3});
}

}  // namespace
}  // namespace tile
