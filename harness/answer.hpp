// Runs the answer to an exercise and holds its result against what is right. A check begins with
// the simple and ends at the first failure: it tells the most.
#pragma once

#include <doctest/doctest.h>

#include <span>
#include <string>

#include "harness/buffer.hpp"
#include "harness/compare.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"
#include "tile/host/status.hpp"

namespace tile {

/// Launches and waits. Ends the test unless both went well and the answer wrote only where it may,
/// into and around these buffers. `fault` says what the reason may be if it fails while it runs.
template <class Launch>
void run_answer(Launch launch, std::span<const DeviceBuffer* const> buffers,
                const std::string& fault = "") {
  keep_device_reports();  // the messages have them
  const Status launched = launch();
  REQUIRE_MESSAGE(launched.ok(), launched.message, fault);
  const Status done = synchronize_status(nullptr);
  REQUIRE_MESSAGE(done.ok(), done.message, fault);
  for (const DeviceBuffer* buffer : buffers) {
    const Status intact = buffer->check();
    REQUIRE_MESSAGE(intact.ok(), intact.message);
  }
}

/// Ends the test unless `got` is right. `explain` says what has likely happened if not.
template <class Explain>
void require_right(const char* name, std::span<const double> got, const Expected& expected,
                   Explain explain) {
  const Comparison result = compare(name, got, expected);
  REQUIRE_MESSAGE(result.ok(), result.message, result.ok() ? std::string() : explain());
}

}  // namespace tile
