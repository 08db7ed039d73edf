// Which cases of a long list of a test run on a slow device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tile/host/device.hpp"
#include "tile/host/dtype.hpp"

namespace tile {

/// A GPU takes all. The CPU device, on which a case takes milliseconds, divides them between fp16
/// and bf16, if a step has both, and takes one in `2 thinned` of those; its check build, some five
/// times slower, a third of these. Which ones looks random, so that no pattern in the list decides,
/// and differs from step to step, because a case that one step leaves out is run for others. The
/// first is always one of them, or a short list might have none.
class Selection {
 public:
  template <class TestedStep>
  Selection(const TestedStep& step, DType type, std::uint32_t thinned = 1)
      : before_(static_cast<std::uint32_t>(step.number) * 1000), count_(before_) {
    if (!device().simulated) return;
    parts_ = 2 * thinned;
    if (size_bytes(type) == 2 && step.types.contains(DType::fp16) &&
        step.types.contains(DType::bf16)) {
      parts_ *= 2;
      part_ = type == DType::bf16;
    }
    if (!device_reads_host_memory()) parts_ *= 3;  // the check build
  }
  bool takes_next() {
    const bool is_first = count_++ == before_;
    // Knuth's multiplicative hash.
    return is_first || (count_ * 2654435761u >> 16) % parts_ == part_;
  }

 private:
  std::uint32_t before_, count_, parts_ = 1, part_ = 0;
};

/// Whether a test of all types of a step (Types::all) runs case `number` of a list for this one: of
/// a list whose cases are all needed, as drawn_cases() are. A GPU runs each for every type. The CPU
/// device gives them to the types in turn; its check build runs a third.
template <class TestedStep>
bool takes_case(const TestedStep& step, DType type, std::size_t number) {
  if (!device().simulated) return true;
  std::size_t types = 0, place = 0;
  for (const DType each : kDTypes) {
    if (each == type) place = types;
    types += step.types.contains(each);
  }
  const bool checks = !device_reads_host_memory();
  return number % types == place && (!checks || number / types % 3 == 0);
}

}  // namespace tile
