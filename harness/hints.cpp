#include "harness/hints.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "harness/poison.hpp"
#include "tile/host/text.hpp"

namespace tile {
namespace {

// Below this many mismatches a coincidence could look like a pattern.
constexpr std::int64_t kEnough = 3;

double got_at(const Mismatches& m, std::int64_t i) { return m.got[static_cast<std::size_t>(i)]; }
double value_at(const Mismatches& m, std::int64_t i) {
  return m.expected.value[static_cast<std::size_t>(i)];
}
double bound_at(const Mismatches& m, std::int64_t i) {
  return m.expected.bound[static_cast<std::size_t>(i)];
}

// Whether element i of the result is what was expected at j. The bound is j's: if the kernel put
// j's result into the wrong place, it made j's rounding errors.
bool holds(const Mismatches& m, std::int64_t i, std::int64_t j) {
  return matches(got_at(m, i), value_at(m, j), bound_at(m, j));
}

std::int64_t count_poison(const Mismatches& m, Poison poison) {
  return std::ranges::count_if(m.wrong,
                               [&](std::int64_t i) { return is_poison(got_at(m, i), poison); });
}

std::string share(std::int64_t count, const Mismatches& m) {
  return count == std::ssize(m.wrong) ? "all of them" : std::to_string(count) + " of them";
}

// Whether got[i] = expected[i + step * stride] at every mismatch that has such a neighbour on an
// axis of this extent and stride.
bool is_shifted(const Mismatches& m, std::int64_t extent, std::int64_t stride, std::int64_t step) {
  std::int64_t seen = 0;
  for (const std::int64_t i : m.wrong) {
    const std::int64_t neighbour = i / stride % extent + step;
    if (neighbour < 0 || neighbour >= extent) continue;
    if (!holds(m, i, i + step * stride)) return false;
    ++seen;
  }
  return seen >= kEnough;
}

}  // namespace

std::string hint(const Mismatches& m) {
  for (const auto guess : {hint_unwritten, hint_uninitialised, hint_read_outside, hint_sign,
                           hint_factor, hint_shift, hint_transposed, hint_tail}) {
    if (std::string text = guess(m); !text.empty()) return text;
  }
  return {};
}

std::string hint_unwritten(const Mismatches& m) {
  const std::int64_t count =
      count_poison(m, Poison::unwritten_nan) + count_poison(m, Poison::unwritten_finite);
  if (count == 0) return {};
  return share(count, m) +
         " still hold the poison, which fills the output before the kernel runs: never "
         "written, did the kernel skip them?";
}

std::string hint_read_outside(const Mismatches& m) {
  const std::int64_t count = count_poison(m, Poison::outside);
  if (count == 0) return {};
  return share(count, m) + " are the NaN from around an input: read outside it, or its padding?";
}

std::string hint_uninitialised(const Mismatches& m) {
  const std::int64_t count = count_poison(m, Poison::uninitialised);
  if (count == 0) return {};
  return share(count, m) +
         " are the NaN that fresh memory holds: read before anything wrote it (a missing "
         "__syncthreads, or a tile not filled to its end)?";
}

// A tail of an axis starts where the line through element 0 along that axis first goes wrong. All
// mismatches must lie in a tail, and at least half of what lies in the tails must be wrong.
std::string hint_tail(const Mismatches& m) {
  const std::vector<std::int64_t>& shape = m.expected.shape;
  std::vector<std::int64_t> start = shape;  // the extent: no tail on this axis
  for (const std::int64_t i : m.wrong) {
    const std::vector<std::int64_t> at = coordinates(i, shape);
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const bool others_are_0 = std::ranges::count(at, 0) + (at[axis] != 0) == std::ssize(at);
      if (others_are_0) start[axis] = std::min(start[axis], at[axis]);
    }
  }
  const bool all_in_tails = std::ranges::none_of(m.wrong, [&](std::int64_t i) {
    return std::ranges::equal(coordinates(i, shape), start, std::less<>());  // before every start
  });
  if (!all_in_tails) return {};

  std::string where;
  std::int64_t before_tails = 1;  // elements
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    before_tails *= start[axis];
    if (start[axis] == shape[axis]) continue;
    // Vectors, warps and tiles have a multiple of 4 elements, and a tail is shorter than the tile.
    if (start[axis] % 4 != 0 || 2 * start[axis] < shape[axis]) return {};
    where += (where.empty() ? "" : " or ") + std::string("indices >= ") +
             std::to_string(start[axis]) + " of axis " + std::to_string(axis);
  }
  if (2 * std::ssize(m.wrong) < std::ssize(m.got) - before_tails) return {};
  return "only " + where + " differ: a tail that is not handled?";
}

std::string hint_sign(const Mismatches& m) {
  if (std::ssize(m.wrong) < kEnough) return {};
  const bool flipped = std::ranges::all_of(m.wrong, [&](std::int64_t i) {
    return matches(got_at(m, i), -value_at(m, i), bound_at(m, i));
  });
  // A value as small as its error has no known sign.
  const auto known = std::ranges::count_if(
      m.wrong, [&](std::int64_t i) { return std::abs(value_at(m, i)) > 2 * bound_at(m, i); });
  return flipped && known >= kEnough ? "each has the wrong sign: got = -expected" : "";
}

std::string hint_factor(const Mismatches& m) {
  if (std::ssize(m.wrong) < kEnough) return {};
  // The greatest value tells the factor most exactly.
  const std::int64_t top =
      std::ranges::max(m.wrong, {}, [&](std::int64_t i) { return std::abs(value_at(m, i)); });
  const double factor = got_at(m, top) / value_at(m, top);
  if (!std::isfinite(factor) || factor == 0 || std::abs(factor + 1) < 1e-6) return {};
  // Errors of this element and of the factor: |value| <= |value at top|, so the latter makes at
  // most bound_at(top). 1e-6: a factor such as 1/3 is itself rounded where the bound is 0.
  const auto tolerance = [&](std::int64_t i) {
    return std::abs(factor) * (bound_at(m, i) + bound_at(m, top)) +
           1e-6 * std::abs(factor * value_at(m, i));
  };
  // Everywhere: where the result is right, there is no such factor. Beyond the tolerance: within it
  // any numbers have one.
  std::int64_t beyond = 0;
  for (std::int64_t i = 0; i < std::ssize(m.got); ++i) {
    const double scaled = factor * value_at(m, i);
    // An expected NaN or infinity gives no hint.
    if (!std::isfinite(value_at(m, i)) && matches(got_at(m, i), value_at(m, i), 0)) continue;
    if (!(std::abs(got_at(m, i) - scaled) <= tolerance(i))) return {};
    beyond += std::abs(scaled - value_at(m, i)) > 2 * tolerance(i);
  }
  if (beyond < kEnough) return {};
  return "got = " + brief(factor) +
         " * expected: a factor (a scale, 1/n) that is missing, or applied twice?";
}

std::string hint_shift(const Mismatches& m) {
  std::int64_t stride = 1;
  for (std::size_t axis = m.expected.shape.size(); axis-- > 0;) {
    const std::int64_t extent = m.expected.shape[axis];
    for (const std::int64_t step : {1, -1}) {
      if (!is_shifted(m, extent, stride, step)) continue;
      return std::string("got[i] = expected[i ") + (step > 0 ? '+' : '-') + " 1] along axis " +
             std::to_string(axis) + ": an index off by one?";
    }
    stride *= extent;
  }
  return {};
}

std::string hint_transposed(const Mismatches& m) {
  const std::vector<std::int64_t>& shape = m.expected.shape;
  if (std::ssize(m.wrong) < kEnough || shape.size() < 2 ||
      shape.back() != shape[shape.size() - 2]) {
    return {};
  }
  const std::int64_t n = shape.back();
  const bool transposed = std::ranges::all_of(m.wrong, [&](std::int64_t i) {
    const std::int64_t row = i / n % n, column = i % n;
    return holds(m, i, i + (column - row) * n + (row - column));
  });
  return transposed ? "got[i][j] = expected[j][i]: transposed?" : "";
}

}  // namespace tile
