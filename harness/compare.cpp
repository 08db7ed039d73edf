#include "harness/compare.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>

#include "harness/hints.hpp"
#include "harness/parallel.hpp"
#include "tile/host/text.hpp"

#ifdef __FAST_MATH__
#error "-ffast-math lets the compiler assume that there are no NaNs: this file must see them"
#endif

namespace tile {
namespace {

// "c[3][17]"
std::string element_name(std::string_view name, std::span<const std::int64_t> at) {
  std::string text(name);
  for (const std::int64_t i : at) text.append("[").append(std::to_string(i)).append("]");
  return text;
}

// The number of elements of `shape`, or -1 if an extent is negative or there are more than 2^63.
std::int64_t element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return -1;
  }
  return count;
}

// Why a comparison is impossible: sizes that disagree.
std::string problem(std::string_view name, std::span<const double> got, const Expected& expected) {
  const auto count = static_cast<std::size_t>(element_count(expected.shape));
  const auto wrong_size = [&](const char* what, std::size_t size) {
    std::string text = element_name(name, expected.shape);
    return text.append(": ").append(what).append(" has ").append(
        counted(static_cast<std::int64_t>(size), "element"));
  };
  if (element_count(expected.shape) < 0) {
    return element_name(name, expected.shape) + ": the shape has a negative extent or is too large";
  }
  if (got.size() != count) return wrong_size("the result", got.size());
  if (expected.value.size() != count) return wrong_size("expected.value", expected.value.size());
  if (expected.bound.size() != count) return wrong_size("expected.bound", expected.bound.size());
  return {};
}

bool has_bound(double value, double bound) {
  return !std::isfinite(value) || (bound >= 0 && std::isfinite(bound));
}

// How many bounds the result is away: at most 1 for a match, above 1 for a mismatch.
double error_ratio(double got, double value, double bound) {
  const double error = std::abs(got - value);
  if (bound > 0 && std::isfinite(error)) return error / bound;
  return matches(got, value, bound) ? 0 : std::numeric_limits<double>::infinity();
}

// "1.5, not 1": in four digits, or in as many as tell the two apart.
std::string both(double got, double value) {
  const bool alike = brief(got) == brief(value);
  return alike ? number(got) + ", not " + number(value) : brief(got) + ", not " + brief(value);
}

// "c[3][17] is 1.5, not 1 (4 times as far off as rounding explains)". How far in bounds says
// something where rounding is in question, and nothing of a result that is simply another.
std::string describe(std::string_view name, std::int64_t index, std::span<const double> got,
                     const Expected& expected) {
  constexpr double kNotRounding = 1000;
  const auto i = static_cast<std::size_t>(index);
  const double ratio = error_ratio(got[i], expected.value[i], expected.bound[i]);
  std::string text = element_name(name, coordinates(index, expected.shape)) + " is " +
                     both(got[i], expected.value[i]);
  if (ratio < kNotRounding) {
    text += " (" + brief(ratio) + " times as far off as rounding explains)";
  }
  return text;
}

// All of a small result: "\n  result    1 2 4\n  expected  1 2 3".
constexpr std::int64_t kFew = 8;
std::string all_values(std::span<const double> got, const Expected& expected) {
  std::string result = "\n  result   ", wanted = "\n  expected ";
  for (std::size_t i = 0; i < got.size(); ++i) {
    result += " " + brief(got[i]);
    wanted += " " + brief(expected.value[i]);
  }
  return result + wanted;
}

// With TILE_COUNT_COMPARED=1 in the environment a program says at its end how many elements it has
// compared.
struct Count {
  std::int64_t elements = 0;
  ~Count() {
    if (std::getenv("TILE_COUNT_COMPARED") != nullptr) {
      std::fprintf(stderr, "elements compared: %lld\n", static_cast<long long>(elements));
    }
  }
} compared;

// What a part of the elements shows.
struct Part {
  std::size_t begin = 0;
  double worst_ratio = 0;
  std::size_t worst = 0;
  std::vector<std::int64_t> wrong;             // the mismatches' indices, ascending
  std::optional<std::size_t> first_unbounded;  // whose bound is no bound
};

Part compare_part(std::span<const double> got, const Expected& expected, std::size_t begin,
                  std::size_t end) {
  Part part;
  part.begin = begin;
  for (std::size_t i = begin; i < end; ++i) {
    const double value = expected.value[i], bound = expected.bound[i];
    if (!part.first_unbounded && !has_bound(value, bound)) part.first_unbounded = i;
    const double ratio = error_ratio(got[i], value, bound);
    if (ratio > part.worst_ratio) part.worst_ratio = ratio, part.worst = i;
    if (!matches(got[i], value, bound)) part.wrong.push_back(static_cast<std::int64_t>(i));
  }
  return part;
}

}  // namespace

// snippet-begin matches
bool matches(double got, double value, double bound) {
  if (std::isnan(got) || std::isnan(value)) return std::isnan(got) && std::isnan(value);
  if (std::isinf(got) || std::isinf(value)) return got == value;
  if (bound == 0) return std::bit_cast<std::uint64_t>(got) == std::bit_cast<std::uint64_t>(value);
  return std::abs(got - value) <= bound;  // false if the bound is NaN
}
// snippet-end matches

std::vector<Poison> poisons_for(std::initializer_list<const Expected*> all) {
  const auto expects_nan = [](const Expected* expected) {
    return std::ranges::any_of(expected->value, [](double x) { return std::isnan(x); });
  };
  if (std::ranges::none_of(all, expects_nan)) return {Poison::unwritten_nan};
  return {std::begin(kOutputPoisons), std::end(kOutputPoisons)};
}

std::vector<std::int64_t> coordinates(std::int64_t index, std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> at(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    at[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return at;
}

Comparison compare(std::string_view name, std::span<const double> got, const Expected& expected) {
  Comparison result;
  result.message = problem(name, got, expected);
  if (!result.message.empty()) return result;

  std::mutex mutex;
  std::vector<Part> parts;
  in_parts(got.size(), kElementsForAThread, [&](std::size_t begin, std::size_t end) {
    Part part = compare_part(got, expected, begin, end);
    const std::lock_guard lock(mutex);
    parts.push_back(std::move(part));
  });
  std::ranges::sort(parts, {}, &Part::begin);
  std::vector<std::int64_t> wrong;
  std::int64_t worst = 0;
  for (const Part& part : parts) {
    if (part.first_unbounded) {
      const std::size_t i = *part.first_unbounded;
      const auto at = coordinates(static_cast<std::int64_t>(i), expected.shape);
      result.message = element_name(name, at) + ": the bound is " + number(expected.bound[i]) +
                       ", it must be finite and not negative";
      result.worst_ratio = 0;
      return result;
    }
    if (part.worst_ratio > result.worst_ratio) {
      result.worst_ratio = part.worst_ratio;
      worst = static_cast<std::int64_t>(part.worst);
    }
    wrong.insert(wrong.end(), part.wrong.begin(), part.wrong.end());
  }
  result.count = std::ssize(got);
  compared.elements += result.count;
  if (result.count > 0) result.worst = coordinates(worst, expected.shape);
  if (wrong.empty()) return result;

  result.mismatches = std::ssize(wrong);
  result.first = coordinates(wrong.front(), expected.shape);
  result.message = std::string(name) + ": " + grouped(result.mismatches) + " of " +
                   counted(result.count, "element") +
                   (result.mismatches == 1 ? " differs" : " differ") + "\n  first " +
                   describe(name, wrong.front(), got, expected);
  if (result.count > 1 && result.count <= kFew) {
    result.message += all_values(got, expected);
  } else if (worst != wrong.front()) {
    result.message += "\n  worst " + describe(name, worst, got, expected);
  }
  if (const std::string found = hint({expected, got, wrong}); !found.empty()) {
    result.message += "\nHint: " + found;
  }
  return result;
}

}  // namespace tile
