// The copies of TMA that no thread has waited for yet: a block's loads, and the stores of its
// threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu_device/site.h"
#include "cpu_device/tensor_map.h"

namespace cpu_device {

class Block;

/// What a copy moves on the side of global memory: a box of a tensor, or a run of bytes.
struct GlobalBox {
  TensorMap map{};  // for a run of bytes only its type counts
  int32_t at[5] = {};
  char* run = nullptr;  // or null
  uint32_t bytes = 0;

  /// The bytes of shared memory that it may touch: chunks change places in lines of 128 bytes.
  uint32_t footprint() const { return map.swizzle_bytes == 0 ? bytes : (bytes + 127) / 128 * 128; }
};

struct PendingLoad {
  GlobalBox from;
  uint32_t to;          // in the arena
  const void* barrier;  // which counts it
  uint32_t phase;       // of the mbarrier, from 0 on
  uint64_t issuing_block;
  uint32_t issuing_thread;
  uint32_t place;  // of the call: a check::Place
  Site site;
};

struct PendingStore {
  GlobalBox to;
  bool adds;
  uint32_t from;   // in the arena
  uint32_t group;  // of its thread's groups, counted from 0
  Site site;
  std::unique_ptr<char[]> read;  // what was there, once it has been read
};

struct PendingStores {
  std::vector<PendingStore> under_way;  // oldest first
  uint32_t groups = 0;                  // committed
  uint32_t read = 0, done = 0;          // stores since the block's begin
};

/// Stores of a block that has ended, which no thread has waited for: they are there when the kernel
/// ends, and not before.
struct LateStores {
  char* arena = nullptr;  // for addresses
  std::vector<PendingStore> stores;
};

struct BulkCopies {
  std::vector<PendingLoad> loads;  // into this block, oldest first
  std::array<PendingStores, 1024> stores;
  bool any_stores = false;
};

/// The current thread has seen that the mbarrier's last phase is complete: what was counted in it
/// and before is there.
void land_loads(Block& block, const void* barrier);
/// All threads have ended. Completes what may go on without them, now or, in a random order, after
/// other blocks. Returns false, with the block failed, if a copy needs its shared memory still.
bool end_copies(Block& block);
void finish(const LateStores& late);

}  // namespace cpu_device
