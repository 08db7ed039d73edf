// pack and to_tf32, bit for bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "fragments_of.hpp"
#include "harness/test_main.hpp"
#include "memory.hpp"
#include "ptx_kernels.hpp"
#include "tile/host/device.hpp"

using namespace ptx_test;

namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

// Floats whose bits but for the last `dropped` are the ones given: those where the rest makes no
// difference, and those next to a tie.
void add_around(std::vector<float>& values, std::uint32_t bits, int dropped) {
  const std::uint32_t tie = 1u << (dropped - 1);
  for (const std::uint32_t rest : {0u, 1u, tie - 1, tie, tie + 1, 2 * tie - 1}) {
    values.push_back(from_bits(bits + rest));
    values.push_back(from_bits((bits + rest) ^ 0x80000000));
  }
}

// Each exponent with some mantissas, each with all that can follow the last place of a format that
// has `mantissa_bits`; below its normal numbers, the last place lies higher.
std::vector<float> values_for(int mantissa_bits, int smallest_exponent) {
  std::mt19937 random(6);
  std::vector<float> values;
  for (int exponent = 0; exponent < 256; ++exponent) {
    const int below = std::max(0, smallest_exponent + 127 - exponent);
    const int dropped = std::min(23, 23 - mantissa_bits + below);
    for (int i = 0; i < 24; ++i) {
      const std::uint32_t mantissa = i == 0 ? 0 : i == 1 ? 0x7fffff : random() & 0x7fffff;
      const std::uint32_t kept = mantissa >> dropped << dropped;
      add_around(values, static_cast<std::uint32_t>(exponent) << 23 | kept, dropped);
    }
  }
  for (int i = 0; i < 4096; ++i) values.push_back(from_bits(static_cast<std::uint32_t>(random())));
  return values;
}

std::vector<std::uint32_t> run(Conversion conversion, const std::vector<float>& values) {
  const bool pairs = conversion != Conversion::tf32;
  const std::size_t words = values.size() / (pairs ? 2 : 1);
  const DeviceVector<float> in("values", values);
  const DeviceWords out("out", std::vector<std::uint32_t>(words));
  require(convert(conversion, static_cast<int>(words), in.data(), out.data()));
  return out.download();
}

// The nearest number of the format, by looking at all of them: a tie goes to the even one, and what
// lies past the largest becomes that one.
std::uint32_t nearest_fp8(Number number, float value) {
  if (std::isnan(value)) return 0x7f;
  const unsigned largest = number == Number::e4m3 ? 0x7e : 0x7b;
  const double magnitude = std::fabs(double{value});
  const std::uint32_t sign = std::signbit(value) ? 0x80 : 0;
  if (magnitude > value_of_fp8(number, largest)) return largest | sign;
  unsigned best = 0;
  for (unsigned bits = 1; bits <= largest; ++bits) {
    const double distance = std::fabs(value_of_fp8(number, bits) - magnitude);
    const double least = std::fabs(value_of_fp8(number, best) - magnitude);
    if (distance < least || (distance == least && bits % 2 == 0)) best = bits;
  }
  return best | sign;
}

void check_pairs(Conversion conversion, const std::vector<float>& values, int bits,
                 std::uint32_t (*expected)(float value)) {
  const std::vector<std::uint32_t> words = run(conversion, values);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const float low = values[2 * i], high = values[2 * i + 1];
    const bool right = words[i] == (expected(low) | expected(high) << bits);
    CHECK_MESSAGE(right, low, " and ", high, " give ", words[i]);
  }
}

}  // namespace

TEST_SUITE("convert") {
  TEST_CASE("two floats become two fp16") {
    check_pairs(Conversion::fp16, values_for(10, -14), 16, [](float value) {
      return std::isnan(value) ? 0x7fffu : encode(Number::fp16, value);
    });
  }

  TEST_CASE("two floats become two bf16") {
    if (tile::device().capability < 80) return tile::skip("cvt of two needs a newer card");
    check_pairs(Conversion::bf16, values_for(7, -126), 16, [](float value) {
      return std::isnan(value) ? 0x7fffu : encode(Number::bf16, value);
    });
  }

  TEST_CASE("a float becomes tf32, ties away from zero") {
    if (tile::device().capability < 80) return tile::skip("cvt to tf32 needs a newer card");
    const std::vector<float> values = values_for(10, -126);
    const std::vector<std::uint32_t> words = run(Conversion::tf32, values);
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(values[i]);
      // The next number of the format below in magnitude, and above if at least half is cut off.
      const std::uint32_t below = bits & ~0x1fffu;
      const double unit = std::fabs(double{from_bits(below + 0x2000)} - double{from_bits(below)});
      const bool infinite = !is_nan(bits) && !std::isfinite(unit);
      bool up = std::fabs(double{values[i]} - double{from_bits(below)}) >= unit / 2;
      if (is_nan(bits)) up = false;                  // its bits are cut off
      if (infinite) up = (bits & 0x1fff) >= 0x1000;  // at the last step, to infinity
      // A program must not count on the lower 13 bits, which mma ignores.
      const bool right = (words[i] & ~0x1fffu) == (up ? below + 0x2000 : below);
      CHECK_MESSAGE(right, values[i], " gives ", words[i]);
    }
  }
}

TEST_SUITE("convert_fp8") {
  TEST_CASE("two floats become two e4m3, or the largest") {
    if (tile::device().capability < 89) return tile::skip("cvt to fp8 needs a newer card");
    check_pairs(Conversion::e4m3, values_for(3, -6), 8,
                [](float value) { return nearest_fp8(Number::e4m3, value); });
  }

  TEST_CASE("two floats become two e5m2, or the largest") {
    if (tile::device().capability < 89) return tile::skip("cvt to fp8 needs a newer card");
    check_pairs(Conversion::e5m2, values_for(2, -14), 8,
                [](float value) { return nearest_fp8(Number::e5m2, value); });
  }
}
