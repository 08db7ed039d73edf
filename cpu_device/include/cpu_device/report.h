// What the CPU device says about its kernels, beyond CUDA's error codes.
#pragma once

#include <cstdint>
#include <string>

namespace cpu_device {

/// Returns and clears the report on the last kernel that failed; empty if none did.
/// Reports are printed to stderr as well, unless Options::print_reports is off.
std::string take_report();

/// What was simulated.
struct Activity {
  uint64_t launches = 0;
  uint64_t blocks = 0;
  uint64_t threads = 0;
  uint64_t barriers = 0;     // of a block; one for all its threads
  uint64_t collectives = 0;  // of a warp: shuffles, votes, __syncwarp …
};

/// The activity since the last call.
Activity take_activity();

}  // namespace cpu_device
