// What the checks of the exercises share. Not part of a task.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "exercises/exercises.hpp"
#include "harness/answer.hpp"
#include "harness/buffer.hpp"
#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "harness/mistakes.hpp"
#include "reference.hpp"

namespace layernorm {

using Values = std::vector<double>;
inline constexpr double kUnit = tile::unit_roundoff(tile::DType::fp32);

/// For rows far from zero, where the same formula was right before.
inline constexpr const char* kLostToRounding =
    "\nHint: numbers near zero were right. Is something far from zero squared, and something "
    "almost "
    "as large subtracted?";

inline tile::DeviceBuffer input(const char* name, const Values& values) {
  return tile::DeviceBuffer::input(name, tile::vector_layout(tile::DType::fp32, std::ssize(values)),
                                   values);
}
inline tile::DeviceBuffer output(const char* name, std::int64_t count, tile::Poison poison) {
  return tile::DeviceBuffer::output(name, tile::vector_layout(tile::DType::fp32, count), poison);
}
inline float* floats(const tile::DeviceBuffer& buffer) { return static_cast<float*>(buffer.raw()); }

}  // namespace layernorm
