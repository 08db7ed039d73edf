#include "async.hpp"

#include <cstring>

#include "block.hpp"
#include "check/checker.hpp"
#include "cpu_device/async.h"

namespace cpu_device {
namespace {

// Of a thread that issues copies and never waits no more than twice as many are kept.
constexpr size_t kMostCopies = 1 << 16;

AsyncCopies& own_copies(Block& block) { return block.copies_of(block.current_thread()); }

inline void land(char* arena, const AsyncCopy& copy) {
  char* to = arena + copy.to;
  if (copy.source_bytes != copy.bytes) {
    std::memset(to, 0, copy.bytes);
    std::memcpy(to, copy.from, copy.source_bytes);
    return;
  }
  switch (copy.bytes) {  // with constants there is no call
    case 4: std::memcpy(to, copy.from, 4); break;
    case 8: std::memcpy(to, copy.from, 8); break;
    default: std::memcpy(to, copy.from, 16);
  }
}

// Lands the oldest `count` copies of the current thread.
void land_oldest(Block& block, size_t count) {
  auto& under_way = own_copies(block).under_way;
  for (size_t i = 0; i < count; ++i) {
    if constexpr (kChecking) check::copy_lands(under_way[i]);
    land(block.arena(), under_way[i]);
  }
  under_way.erase(under_way.begin(), under_way.begin() + static_cast<std::ptrdiff_t>(count));
}

void wait_for(Block& block, uint32_t pending, const void* caller) {
  AsyncCopies& copies = own_copies(block);
  if constexpr (kChecking) {
    const check::Moment now = check::current_moment();
    copies.last_wait = {check::place_of(caller), pending, copies.groups, now.epoch, now.tick};
  }
  const uint32_t landing = copies.groups > pending ? copies.groups - pending : 0;
  size_t count = 0;
  while (count < copies.under_way.size() && copies.under_way[count].group < landing) ++count;
  land_oldest(block, count);
  if constexpr (kChecking) {
    for (AsyncCopy& copy : copies.under_way) copy.passed_over = true;
  }
}

}  // namespace

void copy_async(void* shared, const void* global, int bytes, int source_bytes) {
  Block& block = block_of_caller("cp.async");
  const auto fail = [&](cudaError_t code, const char* what) {
    block.fail(code, what, Block::Blamed::thread);
  };
  if (source_bytes < 0 || source_bytes > bytes) {
    fail(cudaErrorLaunchFailure,
         "issues a cp.async of less than 0 bytes, or of more than its destination has");
  }
  AsyncCopies& copies = own_copies(block);
  AsyncCopy copy{static_cast<const char*>(global),
                 static_cast<uint32_t>(static_cast<char*>(shared) - block.arena()),
                 copies.groups,
                 0,
                 static_cast<uint8_t>(bytes),
                 static_cast<uint8_t>(source_bytes),
                 false};
  const auto size = static_cast<uintptr_t>(bytes);
  if constexpr (kChecking) {
    check::look_at_copy(shared, copy, check::place_of(__builtin_return_address(0)));
  }
  if (reinterpret_cast<uintptr_t>(shared) % size != 0) {
    fail(cudaErrorMisalignedAddress,
         "issues a cp.async to an address that is no multiple of its size");
  }
  if (reinterpret_cast<uintptr_t>(global) % size != 0) {
    fail(cudaErrorMisalignedAddress,
         "issues a cp.async from an address that is no multiple of its size");
  }
  if (!block.in_arena(shared)) {
    fail(kToWrongMemory, "issues a cp.async to what is not in shared memory");
  }
  if (source_bytes > 0 && (block.in_arena(global) || block.owns_stack(global))) {
    fail(kFromWrongMemory, "issues a cp.async from what is not in global memory");
  }
  if (copies.under_way.size() == 2 * kMostCopies) land_oldest(block, kMostCopies);
  copies.under_way.push_back(copy);
}

void commit_copies() { ++own_copies(block_of_caller("cp.async.commit_group")).groups; }

void wait_for_copies(int pending) {
  wait_for(block_of_caller("cp.async.wait_group"), static_cast<uint32_t>(pending),
           __builtin_return_address(0));
}

// As PTX has it: a commit, and a wait for all groups.
void wait_for_all_copies() {
  Block& block = block_of_caller("cp.async.wait_all");
  ++own_copies(block).groups;
  wait_for(block, 0, __builtin_return_address(0));
}

}  // namespace cpu_device
