#include "harness/convert.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness/compare.hpp"
#include "harness/inputs.hpp"

namespace tile {
namespace {

double bits_to_double(std::uint16_t bits, DType dtype) {
  return to_double(&bits, dtype, 1).front();
}

std::uint16_t double_to_bits(double value, DType dtype) {
  std::uint16_t bits;
  const std::vector<std::byte> bytes = from_double(std::vector{value}, dtype);
  REQUIRE(bytes.size() == sizeof bits);
  std::memcpy(&bits, bytes.data(), sizeof bits);
  return bits;
}

// The value of a positive pattern, from the definition of the format (IEEE 754-2019, 3.4).
double decode(std::uint16_t bits, int mantissa_bits) {
  const int fraction = bits & ((1 << mantissa_bits) - 1);
  const int exponent = bits >> mantissa_bits;
  const int bias = (1 << (14 - mantissa_bits)) - 1;
  const int hidden = exponent > 0 ? 1 << mantissa_bits : 0;
  return std::ldexp(fraction + hidden, std::max(exponent, 1) - bias - mantissa_bits);
}

// All finite values of a 16-bit type, and around the midpoint of each two neighbours: there one ulp
// of a double decides, which a detour through float loses.
void check_every_value(DType dtype, int mantissa_bits) {
  const auto infinity = static_cast<std::uint16_t>(0x7FFF >> mantissa_bits << mantissa_bits);
  std::int64_t wrong = 0;
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const auto next = static_cast<std::uint16_t>(bits + 1);
    const double value = decode(bits, mantissa_bits);
    // For the largest value: what the next would be if the exponents went on.
    const double middle = (value + decode(next, mantissa_bits)) / 2;
    const std::uint16_t even = bits % 2 == 0 ? bits : next;
    wrong += bits_to_double(bits, dtype) != value;
    wrong += double_to_bits(value, dtype) != bits;
    wrong += double_to_bits(middle, dtype) != even;
    wrong += double_to_bits(std::nextafter(middle, 0), dtype) != bits;
    wrong += double_to_bits(std::nextafter(middle, HUGE_VAL), dtype) != next;
    wrong += double_to_bits(-std::nextafter(middle, HUGE_VAL), dtype) != (next | 0x8000);
    // Nearer to the float beside the midpoint than to the midpoint, which is a float itself.
    const double float_ulp =
        static_cast<double>(std::nextafter(static_cast<float>(middle), HUGE_VALF)) - middle;
    wrong += double_to_bits(middle + 0.75 * float_ulp, dtype) != next;
    wrong += double_to_bits(middle - 0.25 * float_ulp, dtype) != bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("convert: every fp16 value and midpoint rounds once, to nearest even") {
  check_every_value(DType::fp16, 10);
}

TEST_CASE("convert: every bf16 value and midpoint rounds once, to nearest even") {
  check_every_value(DType::bf16, 7);
}

TEST_CASE("convert: every e4m3 value and midpoint rounds once, to nearest even, and saturates") {
  const auto encode = [](double x) {
    return std::to_integer<unsigned>(from_double(std::vector{x}, DType::e4m3).front());
  };
  std::vector<double> values;  // of the positive patterns, as the format is defined
  for (int bits = 0; bits < 0x7f; ++bits) {
    const int exponent = bits / 8;
    values.push_back(std::ldexp(bits % 8 + (exponent > 0 ? 8 : 0), std::max(exponent, 1) - 10));
  }
  CHECK(values.back() == 448);
  for (unsigned bits = 0; bits < values.size(); ++bits) {
    const std::uint8_t patterns[] = {static_cast<std::uint8_t>(bits),
                                     static_cast<std::uint8_t>(bits | 0x80)};
    CHECK(to_double(patterns, DType::e4m3, 2) == std::vector{values[bits], -values[bits]});
    CHECK(encode(values[bits]) == bits);
    if (bits + 1 == values.size()) continue;
    const double middle = (values[bits] + values[bits + 1]) / 2;
    CHECK(encode(middle) == bits + bits % 2);
    CHECK(encode(std::nextafter(middle, 0)) == bits);
    CHECK(encode(std::nextafter(middle, HUGE_VAL)) == bits + 1);
    CHECK(encode(-std::nextafter(middle, HUGE_VAL)) == ((bits + 1) | 0x80));
  }
  for (const double large : {449.0, 1e300, HUGE_VAL}) {
    CHECK(encode(large) == 0x7e);
    CHECK(encode(-large) == 0xfe);
  }
  CHECK(std::isnan(rounded(std::vector{std::nan("")}, DType::e4m3).front()));
}

TEST_CASE("convert: known halves") {
  CHECK(double_to_bits(1.0, DType::fp16) == 0x3C00);
  CHECK(double_to_bits(65504, DType::fp16) == 0x7BFF);
  CHECK(double_to_bits(1e300, DType::fp16) == 0x7C00);
  CHECK(double_to_bits(0x1p-24, DType::fp16) == 0x0001);
  CHECK(double_to_bits(-1e-300, DType::fp16) == 0x8000);
  CHECK(double_to_bits(1.0, DType::bf16) == 0x3F80);
  CHECK(double_to_bits(1e300, DType::bf16) == 0x7F80);
  // As a float this is the midpoint 1 + 2^-11, which would tie to 1.
  CHECK(double_to_bits(1 + 0x1p-11 + 0x1p-40, DType::fp16) == 0x3C01);
}

TEST_CASE("convert: fp32 rounds to nearest even, fp64 is kept") {
  CHECK(rounded(std::vector{1 + 0x1p-24}, DType::fp32).front() == 1.0);
  CHECK(rounded(std::vector{1 + 0x3p-24}, DType::fp32).front() == 1 + 0x1p-22);
  CHECK(rounded(std::vector{0.1}, DType::fp32).front() == static_cast<double>(0.1f));
  CHECK(rounded(std::vector{0.1}, DType::fp64).front() == 0.1);
}

TEST_CASE("convert: the largest error of rounding is the unit roundoff") {
  for (const DType dtype : kDTypes) {
    const double u = unit_roundoff(dtype);
    CHECK(rounded(std::vector{1 + 2 * u}, dtype).front() == 1 + 2 * u);  // 1 and its neighbour
    if (dtype == DType::fp64 || dtype == DType::tf32) continue;          // not rounded here
    CHECK(rounded(std::vector{1 + u}, dtype).front() == 1.0);            // halfway: an error of u
    CHECK(rounded(std::vector{1 / u - 1}, dtype).front() == 1 / u - 1);
    CHECK(rounded(std::vector{1 / u + 1}, dtype).front() != 1 / u + 1);
  }
}

TEST_CASE("convert: tf32 is stored as fp32, with all its bits") {
  // They are rounded when they are multiplied.
  const std::vector<double> values = normal(1000, DType::fp32, 1);
  CHECK(rounded(values, DType::tf32) == values);
  CHECK(from_double(values, DType::tf32) == from_double(values, DType::fp32));
  CHECK(to_double(from_double(values, DType::tf32).data(), DType::tf32, 1000) == values);
  CHECK(rounded(std::vector{1 + 0x1p-24}, DType::tf32).front() == 1.0);
}

TEST_CASE("convert: zeros keep their sign, Inf and NaN stay what they are") {
  const std::vector<double> values = {0.0, -0.0, HUGE_VAL, -HUGE_VAL, std::nan("")};
  for (const DType dtype : kDTypes) {
    if (dtype == DType::e4m3) continue;  // has no infinity
    const std::vector<double> back = rounded(values, dtype);
    REQUIRE(back.size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(matches(back[i], values[i], 0));
  }
}

TEST_CASE("convert: elements need not be aligned, and none are fine") {
  std::byte storage[9];
  const float value = 1.5f;
  std::memcpy(storage + 1, &value, sizeof value);
  CHECK(to_double(storage + 1, DType::fp32, 1) == std::vector{1.5});
  CHECK(to_double(nullptr, DType::fp16, 0).empty());
  CHECK(from_double({}, DType::fp16).empty());
}

}  // namespace
}  // namespace tile
