// Wrong results with a pattern, for the tests of the hints.
#pragma once

#include <doctest/doctest.h>

#include "harness/hints.hpp"
#include "harness/inputs.hpp"
#include "harness/test/contains.hpp"

namespace tile {
using Shape = std::vector<std::int64_t>;
using Hint = std::string (*)(const Mismatches&);

// Random values and a bound far below the distance of any two of them.
inline Expected random_expected(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  const auto size = static_cast<std::size_t>(count);
  return {shape, uniform(count, DType::fp32, 1, -4, 4), std::vector<double>(size, 1e-9)};
}

inline std::string ask(Hint hint, const Expected& expected, const std::vector<double>& got) {
  std::vector<std::int64_t> wrong;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!matches(got[i], expected.value[i], expected.bound[i])) {
      wrong.push_back(static_cast<std::int64_t>(i));
    }
  }
  REQUIRE_FALSE(wrong.empty());
  return hint({expected, got, wrong});
}

// Sets got[i] = change(i) where where(i) holds.
template <class Where, class Change>
std::vector<double> changed(const Expected& expected, Where where, Change change) {
  std::vector<double> got = expected.value;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (where(i)) got[i] = change(i);
  }
  return got;
}

inline constexpr auto everywhere = [](std::size_t) { return true; };

}  // namespace tile
