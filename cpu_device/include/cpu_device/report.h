// What the CPU device says about its kernels, beyond CUDA's error codes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cpu_device {

/// Returns and clears the report on the last kernel that failed; empty if none did.
/// Reports are printed to stderr as well, unless Options::print_reports is off.
std::string take_report();
/// The same for what was said of a kernel that did not fail.
std::string take_remark();

/// What was simulated.
struct Activity {
  uint64_t launches = 0;
  uint64_t blocks = 0;
  uint64_t threads = 0;
  uint64_t barriers = 0;         // of a block; one for all its threads
  uint64_t collectives = 0;      // of a warp: shuffles, votes, __syncwarp …
  uint64_t loaded_bytes = 0;     // by TMA, from global memory: those of a multicast count once
  uint64_t most_on_the_way = 0;  // of the bytes that TMA loads to a block, at one time
};

/// The activity since the last call.
Activity take_activity();

/// The kernels launched since the last call, as the source names them: "add_vectors<T>". Only the
/// first 16.
std::vector<std::string> take_launched_kernels();

}  // namespace cpu_device
