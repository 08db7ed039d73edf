// What the checks of the exercises share. Not part of a task.
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "exercises/exercises.hpp"
#include "harness/answer.hpp"
#include "harness/buffer.hpp"
#include "harness/inputs.hpp"
#include "harness/mistakes.hpp"
#include "harness/tensor.hpp"
#include "test/rotation.hpp"

namespace rope {

using tile::DeviceBuffer;
using tile::DType;
using tile::Expected;
using Values = std::vector<double>;
inline constexpr double kUnit = tile::unit_roundoff(DType::fp32);

inline DeviceBuffer input(const char* name, const Values& values) {
  return DeviceBuffer::input(name, tile::vector_layout(DType::fp32, std::ssize(values)), values);
}
inline DeviceBuffer output(const char* name, std::int64_t count, tile::Poison poison) {
  return DeviceBuffer::output(name, tile::vector_layout(DType::fp32, count), poison);
}
inline float* floats(const DeviceBuffer& buffer) { return static_cast<float*>(buffer.raw()); }

/// Tokens at positions of their own, and the tables.
struct Turned {
  std::int64_t count, heads, head_dim, rotary_dim;
  double factor = 1;
  std::vector<int> position = {};
  static constexpr int kPositions = 70;

  void place() {
    // 29 has no common divisor with 70: positions differ from the tokens' numbers, in no order.
    for (int token = 0; token < count; ++token) position.push_back((5 + 29 * token) % kPositions);
  }
  std::size_t pairs() const { return static_cast<std::size_t>(rotary_dim / 2); }
  TestTables tables() const { return tables_of(paper_frequencies(rotary_dim), kPositions, factor); }
  std::string text() const {
    return "tokens = " + std::to_string(count) + ", heads = " + std::to_string(heads) +
           ", head_dim = " + std::to_string(head_dim) +
           ", rotary_dim = " + std::to_string(rotary_dim);
  }
  /// The tables and positions on the device.
  struct OnDevice {
    TestTables values;
    DeviceBuffer cos, sin, position;
  };
  OnDevice on_device() const {
    TestTables values = tables();
    DeviceBuffer cos = input("cos", values.cos), sin = input("sin", values.sin);
    return {std::move(values), std::move(cos), std::move(sin),
            *tile::lengths_buffer("position", position)};
  }
  Tokens tokens(const OnDevice& device) const {
    return {count,
            heads,
            head_dim,
            rotary_dim,
            static_cast<const int*>(device.position.raw()),
            floats(device.cos),
            floats(device.sin)};
  }
};

}  // namespace rope
