// Shared by the tests of the C interface.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "harness/buffer.hpp"
#include "harness/c/c_interface.hpp"
#include "harness/compare.hpp"
#include "harness/inputs.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"

using tile::DeviceBuffer;
using tile::DType;
using tile::Poison;
using tile::Status;
using Values = std::vector<double>;

// As tile::kDTypes.
inline constexpr tile_type kTypes[] = {TILE_FP32, TILE_FP16, TILE_BF16,
                                       TILE_FP64, TILE_TF32, TILE_E4M3};

// On the CPU device a step that is called by its name runs each case of attention in one type only.
inline bool is_others_turn(std::ptrdiff_t number, std::size_t step, DType type) {
  return (static_cast<std::size_t>(number) + step + static_cast<std::size_t>(type)) % 3 != 0;
}

inline bool begins_with(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

// Whether the call failed like this, with a message that names the argument.
inline void check_refused(tile_status got, tile_status wanted, const std::string& argument) {
  CAPTURE(argument);
  CHECK(got == wanted);
  CHECK_MESSAGE(begins_with(tile_last_error(), argument + ": "), std::string(tile_last_error()));
}

inline void check_ok(tile_status got) {
  CHECK_MESSAGE(got == TILE_OK, std::string(tile_last_error()));
  CHECK(std::string(tile_last_error()).empty());
}

inline void check_intact(const DeviceBuffer& buffer) {
  const Status status = buffer.check();
  CHECK_MESSAGE(status.ok(), status.message);
}

inline void check_equal(const DeviceBuffer& buffer, const tile::Expected& expected) {
  const Status done = tile::synchronize_status(nullptr);
  REQUIRE_MESSAGE(done.ok(), done.message);
  const tile::Comparison result = tile::compare("c", buffer.download(), expected);
  CHECK_MESSAGE(result.ok(), result.message);
}

// The names of the ladder's steps whose own kernels take the problem here, in order.
template <class Ladder>
std::vector<std::string> steps_here(const Ladder& ladder, const typename Ladder::Problem& problem,
                                    const typename Ladder::Buffers& buffers) {
  std::vector<std::string> names;
  for (const auto& step : ladder.steps) {
    if (tile::check_step(step, problem, buffers).ok()) names.emplace_back(step.name);
  }
  return names;
}

// What the device reports to have simulated during `work`; empty on a GPU.
template <class Work>
std::string activity_of(Work work) {
  static_cast<void>(tile::device_activity());
  work();
  return tile::device_activity();
}

// Device memory by name; null if there are no values, or the output is not wanted.
class Memory {
 public:
  void* input(const char* name, DType type, std::int64_t rows, std::int64_t ld, const Values& v) {
    if (v.empty()) return nullptr;
    const std::int64_t cols = std::ssize(v) / rows;
    return keep(DeviceBuffer::input(name, tile::matrix_layout(type, rows, cols, ld), v));
  }
  // As floats of the same bits: the harness has no buffers of integers.
  const int* integers(const char* name, const std::vector<int>& values) {
    Values floats;
    for (const int each : values) floats.push_back(std::bit_cast<float>(each));
    return static_cast<const int*>(input(name, DType::fp32, 1, std::ssize(floats), floats));
  }
  void* output(const char* name, DType type, std::int64_t rows, std::int64_t cols, std::int64_t ld,
               const tile::Expected& expected) {
    wanted_.emplace_back(buffers_.size(), expected);
    return keep(DeviceBuffer::output(name, tile::matrix_layout(type, rows, cols, ld),
                                     Poison::unwritten_nan));
  }
  void* scratch(std::int64_t bytes) {
    if (bytes == 0) return nullptr;
    return keep(DeviceBuffer::output("workspace", tile::vector_layout(DType::fp32, bytes / 4),
                                     Poison::unwritten_nan));
  }
  void check() const {
    for (const auto& [index, expected] : wanted_) check_equal(buffers_[index], expected);
    for (const DeviceBuffer& buffer : buffers_) check_intact(buffer);
  }
  void check_untouched() const {
    for (const DeviceBuffer& buffer : buffers_) {
      const Status untouched = buffer.check_unchanged();
      CHECK_MESSAGE(untouched.ok(), untouched.message);
    }
  }

 private:
  void* keep(DeviceBuffer buffer) {
    buffers_.push_back(std::move(buffer));
    return buffers_.back().raw();
  }

  std::vector<DeviceBuffer> buffers_;
  std::vector<std::pair<std::size_t, tile::Expected>> wanted_;
};

// A matrix of the host at a distance `ld`, with `fill` between its rows; a vector is one row.
inline Values spread(const Values& packed, std::int64_t cols, std::int64_t ld, double fill) {
  const std::int64_t rows = std::ssize(packed) / cols;
  Values values(static_cast<std::size_t>(rows * ld), fill);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(packed.begin() + row * cols, cols, values.begin() + row * ld);
  }
  return values;
}

// Reorders the references' [batch][query][head] to [batch][head][query].
inline Values heads_first(const Values& lse, std::int64_t batch, std::int64_t heads) {
  const std::int64_t queries = std::ssize(lse) / (batch * heads);
  Values turned;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t query = 0; query < queries; ++query) {
        turned.push_back(lse[static_cast<std::size_t>((b * queries + query) * heads + head)]);
      }
    }
  }
  return turned;
}
