// Which cases of a long list of a test run on a slow device.
#pragma once

#include <cstdint>

#include "tile/host/device.hpp"
#include "tile/host/step.hpp"

namespace tile {

/// A GPU takes all. The CPU device, on which a case takes milliseconds, divides them between fp16
/// and bf16, if a step has both; its check build, some five times slower, takes a sixth of those.
/// Which ones looks random, so that no pattern in the list decides. Both take the first, or one of
/// them might have none of a short list.
class Selection {
 public:
  Selection(EnumSet<DType> types, DType type) {
    if (!device().simulated) return;
    if (size_bytes(type) == 2 && types.contains(DType::fp16) && types.contains(DType::bf16)) {
      parts_ = 2;
      part_ = type == DType::bf16;
    }
    if (!device_reads_host_memory()) parts_ *= 6;  // the check build
  }
  bool takes_next() {
    ++count_;
    // Knuth's multiplicative hash.
    return count_ == 1 || (count_ * 2654435761u >> 16) % parts_ == part_;
  }

 private:
  std::uint32_t count_ = 0, parts_ = 1, part_ = 0;
};

}  // namespace tile
