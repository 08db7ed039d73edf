#include "harness/compare.hpp"
#include "harness/test/contains.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace tile {
namespace {

const double kNan = std::nan("");

// 2 x 3 elements 10, 11, ... with a bound of 1/8, exact in binary.
Expected six() { return {{2, 3}, {10, 11, 12, 13, 14, 15}, std::vector<double>(6, 0.125)}; }

// The comparison after element [1][2] of an otherwise right result became `got` and is expected to
// be `value` within `bound`.
Comparison with_last(double got, double value, double bound) {
  Expected expected = six();
  std::vector<double> result = expected.value;
  result.back() = got;
  expected.value.back() = value;
  expected.bound.back() = bound;
  return compare("c", result, expected);
}

TEST_CASE("compare: the right result passes") {
  const Comparison c = compare("c", six().value, six());
  CHECK(c.ok());
  CHECK(c.count == 6);
  CHECK(c.mismatches == 0);
  CHECK(c.worst_ratio == 0);
  CHECK(c.worst == std::vector<std::int64_t>{0, 0});
  CHECK(c.first.empty());
  CHECK(c.message.empty());
}

TEST_CASE("compare: exactly at the bound passes, one ulp beyond fails") {
  for (const double sign : {1.0, -1.0}) {
    const double edge = 15 + sign * 0.125;
    const Comparison at_bound = with_last(edge, 15, 0.125);
    CHECK(at_bound.ok());
    CHECK(at_bound.worst_ratio == 1);
    CHECK(at_bound.worst == std::vector<std::int64_t>{1, 2});
    const Comparison beyond = with_last(std::nextafter(edge, sign * HUGE_VAL), 15, 0.125);
    CHECK_FALSE(beyond.ok());
    CHECK(beyond.worst_ratio > 1);
  }
}

TEST_CASE("compare: one wrong element among many is found and described") {
  const Comparison c = with_last(15.5, 15, 0.125);
  CHECK_FALSE(c.ok());
  CHECK(c.count == 6);
  CHECK(c.mismatches == 1);
  CHECK(c.first == std::vector<std::int64_t>{1, 2});
  CHECK(c.worst == c.first);
  CHECK(c.worst_ratio == 4);
  CHECK(c.message ==
        "c: 1 of 6 elements differs\n"
        "  first c[1][2] is 15.5, not 15 (4 times as far off as rounding explains)\n"
        "  result    10 11 12 13 14 15.5\n"
        "  expected  10 11 12 13 14 15");
}

TEST_CASE("compare: the first and the worst are told apart") {
  Expected expected{{3, 3}, {10, 11, 12, 13, 14, 15, 16, 17, 18}, std::vector<double>(9, 0.125)};
  const Comparison c =
      compare("c", std::vector<double>{10, 11.25, 12, 14, 14, 15.5, 16, 17, 18}, expected);
  CHECK(c.mismatches == 3);
  CHECK(c.first == std::vector<std::int64_t>{0, 1});
  CHECK(c.worst == std::vector<std::int64_t>{1, 0});
  CHECK(c.worst_ratio == 8);
  CHECK(c.message ==
        "c: 3 of 9 elements differ\n"
        "  first c[0][1] is 11.25, not 11 (2 times as far off as rounding explains)\n"
        "  worst c[1][0] is 14, not 13 (8 times as far off as rounding explains)");
}

TEST_CASE("compare: four digits, or as many as tell two numbers apart") {
  CHECK(contains(with_last(1234.5678, 2, 0.001).message, "is 1235, not 2\n"));
  CHECK(contains(with_last(1.00001, 1.00002, 1e-9).message, "is 1.00001, not 1.00002\n"));
}

TEST_CASE("compare: NaN and infinities pass only by class") {
  const double classes[] = {15, kNan, HUGE_VAL, -HUGE_VAL};
  for (const double got : classes) {
    for (const double value : classes) {
      CAPTURE(got);
      CAPTURE(value);
      const bool same = (std::isnan(got) && std::isnan(value)) || got == value;
      const Comparison c = with_last(got, value, 0.125);
      CHECK(c.ok() == same);
      CHECK(c.mismatches == (same ? 0 : 1));
      CHECK(c.worst_ratio == (same ? 0 : HUGE_VAL));
    }
  }
  CHECK(contains(with_last(kNan, 15, 0.125).message, "c[1][2] is nan, not 15"));
  CHECK(contains(with_last(-HUGE_VAL, HUGE_VAL, 0).message, "is -inf, not inf"));
  CHECK_FALSE(contains(with_last(kNan, 15, 0.125).message, "times as far"));
}

TEST_CASE("compare: NaN fails in every position and does not hide other errors") {
  for (std::size_t i = 0; i < 6; ++i) {
    std::vector<double> result = six().value;
    result[i] = kNan;
    CHECK_FALSE(compare("c", result, six()).ok());
    result[(i + 1) % 6] += 1;
    CHECK(compare("c", result, six()).mismatches == 2);
  }
}

TEST_CASE("compare: a finite result has no infinite error in disguise") {
  const double max = std::numeric_limits<double>::max();
  CHECK_FALSE(with_last(max, -max, max).ok());  // the difference overflows
}

TEST_CASE("compare: bound 0 asks for the same bits") {
  CHECK(with_last(15, 15, 0).ok());
  CHECK(with_last(15, 15, 0).worst_ratio == 0);
  const Comparison one_ulp = with_last(std::nextafter(15, 16), 15, 0);
  CHECK_FALSE(one_ulp.ok());
  CHECK(one_ulp.worst_ratio == HUGE_VAL);
  CHECK_FALSE(with_last(-0.0, 0.0, 0).ok());
  CHECK_FALSE(with_last(0.0, -0.0, 0).ok());
  CHECK(with_last(-0.0, -0.0, 0).ok());
  CHECK(with_last(-0.0, 0.0, 1e-300).ok());
  CHECK(with_last(kNan, -kNan, 0).ok());
  CHECK_FALSE(with_last(0x1p-1074, 0.0, 0).ok());
}

TEST_CASE("compare: a bound that means nothing is refused, even where the result is right") {
  for (const double bound : {kNan, -1.0, -1e-300, HUGE_VAL}) {
    CAPTURE(bound);
    const Comparison c = with_last(15, 15, bound);
    CHECK_FALSE(c.ok());
    CHECK(contains(c.message, "c[1][2]: the bound is "));
    // Where the value is not finite, only the class counts.
    CHECK(with_last(kNan, kNan, bound).ok());
    CHECK(with_last(HUGE_VAL, HUGE_VAL, bound).ok());
    CHECK_FALSE(with_last(15, HUGE_VAL, bound).ok());
  }
}

TEST_CASE("compare: matches() passes nothing finite with a NaN bound") {
  CHECK_FALSE(matches(15, 15, kNan));
  CHECK_FALSE(matches(15, 15, -1));
}

TEST_CASE("compare: sizes that disagree are refused and named") {
  const std::vector<double> five(5, 0.0), six_values = six().value;
  const Comparison short_result = compare("c", five, six());
  CHECK_FALSE(short_result.ok());
  CHECK(short_result.message == "c[2][3]: the result has 5 elements");
  CHECK(compare("c", std::vector<double>(7, 0.0), six()).message ==
        "c[2][3]: the result has 7 elements");
  CHECK_FALSE(compare("c", {}, six()).ok());

  const Comparison short_value = compare("c", six_values, {{2, 3}, five, six().bound});
  CHECK(short_value.message == "c[2][3]: expected.value has 5 elements");
  const Comparison short_bound = compare("c", six_values, {{2, 3}, six_values, five});
  CHECK(short_bound.message == "c[2][3]: expected.bound has 5 elements");
  CHECK_FALSE(short_bound.ok());
  CHECK_FALSE(compare("c", six_values, {{2, 2}, six_values, six().bound}).ok());
}

TEST_CASE("compare: a shape that means nothing is refused") {
  const Expected expected = six();
  CHECK(contains(compare("c", expected.value, {{-2, -3}, expected.value, expected.bound}).message,
                 "negative extent"));
  const std::int64_t huge = std::int64_t{1} << 32;
  CHECK(contains(compare("c", {}, {{huge, huge}, {}, {}}).message, "too large"));
  CHECK_FALSE(compare("c", {}, {{huge, huge}, {}, {}}).ok());
}

TEST_CASE("compare: no elements are a success of count 0, a scalar is one element") {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{0}, {3, 0}, {0, 3}}) {
    const Comparison none = compare("c", {}, {shape, {}, {}});
    CHECK(none.ok());
    CHECK(none.count == 0);
    CHECK(none.worst.empty());
  }
  CHECK(compare("c", std::vector{1.0}, {{}, {1.0}, {0.0}}).count == 1);
  CHECK(
      contains(compare("c", std::vector{2.0}, {{}, {1.0}, {0.0}}).message, "first c is 2, not 1"));
  CHECK_FALSE(compare("c", {}, Expected{}).ok());  // a reference that is empty
}

TEST_CASE("compare: coordinates are row-major") {
  const std::vector<std::int64_t> shape = {2, 3, 4};
  CHECK(coordinates(0, shape) == std::vector<std::int64_t>{0, 0, 0});
  CHECK(coordinates(23, shape) == std::vector<std::int64_t>{1, 2, 3});
  CHECK(coordinates(17, shape) == std::vector<std::int64_t>{1, 1, 1});
}

}  // namespace
}  // namespace tile
