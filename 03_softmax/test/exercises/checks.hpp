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
#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "harness/mistakes.hpp"
#include "harness/poison.hpp"
#include "reference.hpp"

namespace softmax {

using Values = std::vector<double>;
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What an answer makes of the output `name`: `launch` gets its pointer.
template <class Launch>
Values run(const char* name, const tile::Layout& layout, tile::Poison poison,
           std::vector<const tile::DeviceBuffer*> buffers, Launch launch,
           const std::string& fault = "") {
  const tile::DeviceBuffer output = tile::DeviceBuffer::output(name, layout, poison);
  buffers.push_back(&output);
  tile::run_answer([&] { return launch(output.raw()); }, buffers, fault);
  return output.download();
}

/// Whether the kernel has left this element as it was.
inline bool is_unwritten(double got) {
  return std::ranges::any_of(tile::kOutputPoisons,
                             [got](tile::Poison poison) { return tile::is_poison(got, poison); });
}

/// What comes out if element i is what `element` gives; as far from it as a right result may be
/// from the right one, or a little more where the numbers on the way are larger.
template <class Element>
tile::Expected if_it_were(const tile::Expected& right, Element element) {
  tile::Expected expected = right;
  for (std::size_t i = 0; i < expected.value.size(); ++i) {
    const double value = element(static_cast<std::int64_t>(i));
    expected.value[i] = value;
    if (std::isfinite(value)) expected.bound[i] *= 4 * (1 + std::abs(value));
  }
  return expected;
}

}  // namespace softmax
