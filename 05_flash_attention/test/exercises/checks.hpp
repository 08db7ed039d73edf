// What the checks of the exercises share. Not part of a task.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "exercises/exercises.hpp"
#include "harness/answer.hpp"
#include "harness/buffer.hpp"
#include "harness/inputs.hpp"
#include "harness/mistakes.hpp"
#include "harness/poison.hpp"
#include "reference.hpp"

namespace flash_attention {

using Values = std::vector<double>;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The errors of a kernel add up as in harness/attention_reference.cpp: an operation multiplies its
// result by at most e^kUnit, an exponential is off by two units in the last place.
inline constexpr double kUnit = 0x1.00001p-24, kExp = 4 * kUnit, kTinyExponential = 0x1p-126;

/// An array of fp32 in device memory, [rows][cols], or [rows] of single numbers.
inline tile::DeviceBuffer input(const char* name, const Values& values) {
  return tile::DeviceBuffer::input(name, tile::vector_layout(tile::DType::fp32, std::ssize(values)),
                                   values);
}
inline tile::DeviceBuffer output(const char* name, std::size_t count, tile::Poison poison) {
  return tile::DeviceBuffer::output(
      name, tile::vector_layout(tile::DType::fp32, static_cast<std::int64_t>(count)), poison);
}
inline float* floats(const tile::DeviceBuffer& buffer) { return static_cast<float*>(buffer.raw()); }

/// Whether the kernel has left this element as it was.
inline bool is_unwritten(double got) {
  return std::ranges::any_of(tile::kOutputPoisons,
                             [got](tile::Poison poison) { return tile::is_poison(got, poison); });
}
inline bool any_unwritten(const Values& got) { return std::ranges::any_of(got, is_unwritten); }

/// Whether all that is not right is NaN or infinite, and something is.
inline bool only_not_finite(const Values& got, const tile::Expected& right) {
  bool any = false;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (tile::matches(got[i], right.value[i], right.bound[i])) continue;
    if (std::isfinite(got[i]) || is_unwritten(got[i])) return false;
    any = true;
  }
  return any;
}

/// What comes out if element i is what `element` gives; as far from it as a right result may be
/// from the right one, or a little more where the numbers on the way are larger.
template <class Element>
tile::Expected if_it_were(const tile::Expected& right, Element element) {
  tile::Expected expected = right;
  for (std::size_t i = 0; i < expected.value.size(); ++i) {
    const double value = element(i);
    expected.value[i] = value;
    if (std::isfinite(value)) {
      expected.bound[i] = 8 * (expected.bound[i] + kUnit) * (1 + std::abs(value));
    }
  }
  return expected;
}

}  // namespace flash_attention
