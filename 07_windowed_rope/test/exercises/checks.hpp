// What the checks of the exercises share. Not part of a task.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "exercises/exercises.hpp"
#include "harness/answer.hpp"
#include "harness/buffer.hpp"
#include "harness/inputs.hpp"
#include "harness/mistakes.hpp"

namespace windowed_rope {

using tile::DeviceBuffer;
using tile::DType;
using tile::Expected;
using Values = std::vector<double>;

// An operation in fp32 multiplies its result by at most e^kUnit.
inline constexpr double kUnit = 0x1.00001p-24;

inline DeviceBuffer input(const char* name, const Values& values) {
  return DeviceBuffer::input(name, tile::vector_layout(DType::fp32, std::ssize(values)), values);
}
inline DeviceBuffer output(const char* name, std::int64_t count, tile::Poison poison) {
  return DeviceBuffer::output(name, tile::vector_layout(DType::fp32, count), poison);
}
inline float* floats(const DeviceBuffer& buffer) { return static_cast<float*>(buffer.raw()); }

/// What comes out if the values are these; as far from them as a right result may be from the right
/// one, or a little more where the numbers on the way are larger.
inline Expected if_it_were(const Expected& right, const Values& values) {
  Expected expected = right;
  expected.value = values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    expected.bound[i] = 8 * (expected.bound[i] + kUnit) * (1 + std::abs(values[i]));
  }
  return expected;
}

}  // namespace windowed_rope
