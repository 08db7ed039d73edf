// What threads of a block wait for that is for some of them only: named barriers, and registers.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "cpu_device/site.h"

namespace cpu_device {

class Block;

/// Of a block.
struct Warpgroups {
  static constexpr uint32_t kWarps = 32, kGroupWarps = 4, kGroups = kWarps / kGroupWarps;

  struct NamedBarrier {
    uint32_t threads = 0;  // that it takes
    uint32_t arrived = 0;  // in this phase
    uint32_t phase = 0;
    Site site{};                                     // of the first that has arrived
    std::array<uint32_t, kWarps> came{}, waiting{};  // lanes, in this phase
  };
  std::array<NamedBarrier, 16> barriers{};

  struct Group {
    uint32_t arrived = 0;  // threads, at a setmaxnreg
    int registers = 0;     // of a thread
    int asked = 0;         // by the setmaxnreg
    bool is_waiting = false;
    Site site{};
  };
  std::array<Group, kGroups> groups{};
  int unused = 0;  // registers that warpgroups have given up

  bool used = false;
};

/// For a report, of a thread that waits at such a call: ", 32 of 64 threads have come".
std::string warpgroup_wait(const Block& block, const char* name, uint32_t thread);

}  // namespace cpu_device
