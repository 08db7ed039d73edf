// What kernels ask of memory, counted for each warp and line: an option of the check build.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cpu_device {

/// The accesses of one kind at one line of a kernel, of all its launches.
struct XrayLine {
  std::string kernel;     // "matmul_naive<float>"
  std::string place;      // "02_matmul/step1_naive.cu:27"
  std::string access;     // "global load of a", "shared store of tile", "global atomic" …
  uint64_t requests = 0;  // a request is what a warp's lanes ask for at one time
  uint64_t cost = 0;      // in sectors of 32 bytes; in shared memory, in wavefronts
  uint64_t least = 0;     // what the same bytes would cost in the best layout
  uint64_t used = 0;      // bytes that lanes asked for, each byte of a request once
};

/// What was counted since the last call, by kernel and line, if Options::xray was on.
std::vector<XrayLine> take_xray();

}  // namespace cpu_device
