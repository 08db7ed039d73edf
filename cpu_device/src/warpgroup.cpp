// Barriers for some of a block's threads, and registers of warpgroups.
#include "cpu_device/warpgroup.h"

#include <algorithm>
#include <bit>
#include <string>

#include "check/checker.hpp"
#include "cluster.hpp"
#include "instruction.hpp"

namespace cpu_device {
namespace {

constexpr const char* kSync = "barrier_sync()";
constexpr const char* kRegisters = "setmaxnreg";
constexpr uint32_t kGroupThreads = Warpgroups::kGroupWarps * kLanes;
constexpr int kAllRegisters = 65536;  // of a multiprocessor

uint32_t lanes_of_warp(const Block& block, uint32_t warp) {
  const uint32_t threads = std::min(kLanes, block.launch().threads - warp * kLanes);
  return threads == kLanes ? ~0u : (1u << threads) - 1;
}

// What a named barrier hands on the check build keeps as it does for an mbarrier, at an address
// where there is none.
[[maybe_unused]] uintptr_t key_of(const Block& block, int id) {
  return reinterpret_cast<uintptr_t>(block.arena()) + kArenaBytes + static_cast<uintptr_t>(id);
}

void complete(const Call& call, Warpgroups::NamedBarrier& barrier, int id) {
  for (uint32_t warp = 0; warp * kLanes < call.block.launch().threads; ++warp) {
    const uint32_t all = lanes_of_warp(call.block, warp);
    if (barrier.came[warp] != 0 && barrier.came[warp] != all) {
      fail_call(call, "completes barrier " + std::to_string(id) + ", to which " +
                          std::to_string(std::popcount(barrier.came[warp])) + " of " +
                          std::to_string(std::popcount(all)) + " threads of warp " +
                          std::to_string(warp) + " have come; all threads of a warp must");
    }
  }
  if constexpr (kChecking) check::mbarrier_completed(key_of(call.block, id), barrier.phase % 2);
  ++barrier.phase;
  barrier.arrived = 0;
  barrier.came = {};
  for (uint32_t warp = 0; warp < Warpgroups::kWarps; ++warp) {
    if (barrier.waiting[warp] != 0) call.block.make_ready(warp, barrier.waiting[warp]);
    barrier.waiting[warp] = 0;
  }
}

void come(const Call& call, int id, int threads, bool waits) {
  Block& block = call.block;
  if (id < 1 || id > 15) fail_with(call, "a number that is not 1 to 15");
  if (threads < 1 || threads % static_cast<int>(kLanes) != 0) {
    fail_with(call, "a number of threads that is no multiple of 32");
  }
  const auto count = static_cast<uint32_t>(threads);
  if (count > block.launch().threads) fail_with(call, "more threads than the block has");
  Warpgroups& warpgroups = block.warpgroups();
  warpgroups.used = true;
  Warpgroups::NamedBarrier& barrier = warpgroups.barriers[static_cast<size_t>(id)];
  if (barrier.arrived == 0) {
    barrier.threads = count;
    barrier.site = call.site;
  } else if (barrier.threads != count) {
    fail_call(call, "names " + std::to_string(count) + " threads at barrier " + std::to_string(id) +
                        ", where another has named " + std::to_string(barrier.threads) + ", at " +
                        barrier.site.file + ":" + std::to_string(barrier.site.line));
  }
  const uint32_t warp = block.current_thread() / kLanes, lane = 1u << block.current_lane();
  if ((barrier.came[warp] & lane) != 0) {
    fail_call(call, "comes to barrier " + std::to_string(id) +
                        " a second time before the barrier is complete");
  }
  if constexpr (kChecking) {
    const uintptr_t key = key_of(block, id);
    if (barrier.phase == 0 && barrier.arrived == 0) check::mbarrier_initialised(key);
    check::mbarrier_signalled(key, check::Signal::arrival);
  }
  barrier.came[warp] |= lane;
  [[maybe_unused]] const uint32_t phase = barrier.phase;
  if (++barrier.arrived == barrier.threads) {
    complete(call, barrier, id);
  } else if (waits) {
    barrier.waiting[warp] |= lane;
    block.park(kSync, call.site);
  }
  if constexpr (kChecking) {
    if (waits) check::mbarrier_waited(key_of(block, id), phase % 2);
  }
}

// ---- Registers ----

int needed(const Warpgroups::Group& group) {
  return (group.asked - group.registers) * static_cast<int>(kGroupThreads);
}

bool grant(Block& block, uint32_t number) {
  Warpgroups& warpgroups = block.warpgroups();
  Warpgroups::Group& group = warpgroups.groups[number];
  if (needed(group) > warpgroups.unused) return false;
  warpgroups.unused -= needed(group);
  group.registers = group.asked;
  group.arrived = 0;
  group.is_waiting = false;
  const uint32_t me = block.current_thread();
  for (uint32_t w = 0; w < Warpgroups::kGroupWarps; ++w) {
    const uint32_t warp = number * Warpgroups::kGroupWarps + w;
    block.make_ready(warp, warp == me / kLanes ? ~(1u << me % kLanes) : ~0u);
  }
  return true;
}

}  // namespace

void barrier_sync(int id, int threads, Site site) {
  come(begin_call("barrier.sync", site, 0), id, threads, true);
}

void barrier_arrive(int id, int threads, Site site) {
  come(begin_call("barrier.arrive", site, 0), id, threads, false);
}

void set_registers(int registers, bool more, Site site) {
  const Call call = begin_call(more ? "setmaxnreg.inc" : "setmaxnreg.dec", site);
  if (options().capability != 90) {
    fail_call(call, std::string("calls ") + call.instruction +
                        ", which needs compute capability 9.0 and no other");
  }
  Block& block = call.block;
  const uint32_t threads = block.launch().threads;
  const uint32_t number = block.current_thread() / kGroupThreads;
  if ((number + 1) * kGroupThreads > threads) {
    fail_call(call, std::string("calls ") + call.instruction + " in a warpgroup of " +
                        std::to_string(threads - number * kGroupThreads) +
                        " threads; it takes 128");
  }
  Warpgroups& warpgroups = block.warpgroups();
  warpgroups.used = true;
  Warpgroups::Group& group = warpgroups.groups[number];
  if (group.registers == 0) {
    group.registers = std::min(256, kAllRegisters / static_cast<int>(threads) / 8 * 8);
  }
  if (group.arrived == 0) {
    group.asked = registers;
    group.site = site;
    if (more ? registers < group.registers : registers > group.registers) {
      fail_call(call, std::string("calls ") + call.instruction + " for " +
                          std::to_string(registers) + " registers, and has " +
                          std::to_string(group.registers));
    }
  } else if (group.asked != registers || group.site.line != site.line) {
    fail_call(call, std::string("calls ") + call.instruction +
                        " where others of its warpgroup call it elsewhere; all 128 threads must "
                        "run the same one\n  at " +
                        group.site.file + ":" + std::to_string(group.site.line));
  }
  if (++group.arrived < kGroupThreads) return block.park(kRegisters, site);
  if (!grant(block, number)) {
    group.is_waiting = true;
    return block.park(kRegisters, site);
  }
  for (uint32_t other = 0; other < Warpgroups::kGroups; ++other) {
    if (warpgroups.groups[other].is_waiting) grant(block, other);
  }
}

std::string warpgroup_wait(const Block& block, const char* name, uint32_t thread) {
  const Warpgroups& warpgroups = block.warpgroups();
  if (name == kSync) {
    for (size_t id = 1; id < warpgroups.barriers.size(); ++id) {
      const Warpgroups::NamedBarrier& barrier = warpgroups.barriers[id];
      if ((barrier.waiting[thread / kLanes] >> thread % kLanes & 1) == 0) continue;
      return ", barrier " + std::to_string(id) + ", to which " + std::to_string(barrier.arrived) +
             " of " + std::to_string(barrier.threads) + " threads have come";
    }
  }
  if (name == kRegisters) {
    const Warpgroups::Group& group = warpgroups.groups[thread / kGroupThreads];
    if (!group.is_waiting) {
      return ", to which " + std::to_string(group.arrived) + " of 128 threads have come";
    }
    return ", for " + std::to_string(needed(group)) +
           " registers more, of which other warpgroups " + "have given up " +
           std::to_string(warpgroups.unused);
  }
  return {};
}

}  // namespace cpu_device
