// The warpgroups of a block, and the wgmma instructions that they have under way.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu_device/site.h"
#include "cpu_device/wgmma.h"

namespace cpu_device {

inline constexpr uint32_t kWarpgroup = 128;  // threads

/// An operand in shared memory, as a descriptor says it.
struct WgmmaTile {
  uint32_t start = 0, leading = 0, stride = 0;  // bytes; the first from the block's beginning
  Major major = Major::k;
  int extent = 0;         // of m or n
  bool is_plain = false;  // without a swizzle
};

/// One instruction, issued.
struct Wgmma {
  WgmmaType type;
  bool accumulate, a_in_registers;
  WgmmaTile a, b;
  std::vector<uint32_t> a_registers;               // [thread][4]
  std::array<const uint32_t*, kWarpgroup> a_held;  // where they are, for the check build
  size_t accumulator;
  uint32_t group;   // of its warpgroup's groups, counted from 0
  uint32_t number;  // of its warpgroup's instructions, counted from 1
  Site site;
};

/// What the threads of a warpgroup hold of a D.
struct WgmmaAccumulator {
  std::array<float*, kWarpgroup> registers{};
  int columns = 0;
  std::vector<float> sums;    // by rows, while the registers hold the pattern
  bool is_held_back = false;  // the registers hold the pattern
  uint32_t under_way = 0;     // instructions
  Site last{};                // of them
  // For the check build: by which thread, and a check::Place, or 0 if not since the last fence.
  uint32_t touched_by = 0, touched_at = 0;
};

struct Warpgroup {
  // Those that have come to a call.
  uint32_t arrived = 0;
  const char* call = nullptr;
  Site site{};
  std::array<const WgmmaOperands*, kWarpgroup> operands{};
  std::array<float*, kWarpgroup> named{};  // by a wait

  std::vector<Wgmma> under_way;  // oldest first
  std::vector<WgmmaAccumulator> accumulators;
  uint32_t issued = 0, groups = 0;

  // For the check build.
  bool fenced = false;  // since the last wait
  struct Wait {
    Site site{};
    uint32_t pending = 0;
    uint32_t groups = 0, issued = 0;  // committed groups, and instructions, by then
  } last_wait;
};

/// Where a tile's elements become numbers.
struct WgmmaScratch {
  alignas(64) unsigned char bytes[256 * 32];
  alignas(64) float values[256 * 32];
  alignas(64) double a[64 * 16], b[16 * 256];
  alignas(64) float a_fp8[64 * 32], b_fp8[32 * 256];
};

struct WgmmaGroups {
  std::array<Warpgroup, 1024 / kWarpgroup> each;
  std::unique_ptr<WgmmaScratch> scratch = std::make_unique<WgmmaScratch>();
};

class Block;
/// The current thread has come to its end. Ends the block if that is too early.
void thread_leaves_wgmma(Block& block);

}  // namespace cpu_device
