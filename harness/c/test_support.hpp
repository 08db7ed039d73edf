// What the tests of the C interface share.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "harness/buffer.hpp"
#include "harness/c/c_interface.hpp"
#include "harness/inputs.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"

using tile::DeviceBuffer;
using tile::DType;
using tile::Poison;
using tile::Status;
using Values = std::vector<double>;

// As tile::kDTypes.
inline constexpr tile_type kTypes[] = {TILE_FP32, TILE_FP16, TILE_BF16, TILE_FP64, TILE_TF32};

inline bool begins_with(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

// Whether the call failed like this, with a message that names the argument.
inline void check_refused(tile_status got, tile_status wanted, const std::string& argument) {
  CAPTURE(argument);
  CHECK(got == wanted);
  CHECK_MESSAGE(begins_with(tile_last_error(), argument + ": "), tile_last_error());
}

inline void check_ok(tile_status got) {
  CHECK_MESSAGE(got == TILE_OK, tile_last_error());
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

// What the device says it simulated during `work`; nothing on a GPU.
template <class Work>
std::string activity_of(Work work) {
  static_cast<void>(tile::device_activity());
  work();
  return tile::device_activity();
}
