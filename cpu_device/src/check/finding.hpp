// What the check build has found, and how it is reported.
#pragma once

#include <string>
#include <vector>

#include "checker.hpp"
#include "cpu_device/site.h"

namespace cpu_device::check {

/// An array as reports name it.
struct Array {
  std::string name;
  uintptr_t begin = 0;
  size_t bytes = 0;
  size_t element_bytes = 1;
  std::vector<size_t> extents;  // none: a single variable
  size_t padding = 0;           // elements at the end of each row, of which the last has none

  size_t elements() const {
    size_t count = 1;
    for (const size_t extent : extents) count *= extent;
    return count - padding;
  }
  bool holds(uintptr_t address, size_t size) const {
    if (address - begin >= bytes || size > begin + bytes - address) return false;
    if (padding == 0) return true;
    const size_t row = extents.back() * element_bytes;
    return (address - begin) % row + size <= row - padding * element_bytes;
  }
};

struct Finding {
  enum What {
    outside,
    misaligned,
    host_memory,
    nowhere,
    unwritten,
    race,
    wrong_memory,  // for cp.async
    under_way,     // a cp.async has not landed yet
    not_begun,     // the block of the cluster whose shared memory it is
    ended,
    unfenced,               // a thread has written it, and TMA or wgmma reads it
    registers_under_way,    // of a wgmma
    no_fence,               // before a wgmma
    no_fence_before_atomic  // by which the reader knows of a volatile store
  } what = outside;
  uint32_t block = 0, thread = 0;
  Access access{};
  const Array* array = nullptr;  // the array accessed, or the nearest
  uintptr_t space_begin = 0;     // the memory in which it lies: an allocation, the shared memory
  size_t space_bytes = 0;
  bool shared = false;
  uint32_t owner = 0;       // the block whose shared memory it is
  Stamp earlier{};          // of a race
  bool in_cluster = false;  // both blocks of a race, which are two
  bool earlier_was_write = false;
  bool earlier_was_first = false;  // the read of a race came before any write
  bool arrived_relaxed = false;    // the thread of the earlier access, since
  Limit limit = Limit::none;       // of what orders the earlier access of a race elsewhere

  // For a race, what distinguishes its common causes (causes.cpp). "There" means writes to the
  // array by the line of the earlier access, or of the later one if the earlier was a read. Indices
  // count the elements of one access.
  struct Around {
    static constexpr uint32_t kNone = ~0u;
    size_t index = 0;  // that of the race
    struct Written {
      size_t count = 0, first = 0, last = 0;
      size_t step = 0;  // from one to the next; 0 if there is no next, or it varies
      void add(size_t at) {
        if (count == 1) step = at - first;
        if (count > 1 && at - last != step) step = 0;
        if (count == 0) first = at;
        last = at;
        ++count;
      }
    } earlier, later;            // there, by either thread
    bool others = false;         // other threads of the earlier one's block have written there
    bool later_in_turn = false;  // the later thread has written there since the last barrier
    bool across_warps = false;   // one has read of this memory what another has written
    uint32_t third = kNone;      // thread of the block that has come to the same element there
    // The earlier thread has read everything in global memory that the later one has read so far.
    bool same_reads = false;
  } around{};
  bool updates = false;        // the later access, a read, begins an update; the earlier ended one
  bool until_barrier = false;  // held back until a barrier is complete
  Place told_by = 0;           // the atomic of no_fence_before_atomic

  // Of a copy that is under way. Every thread knows of its issue.
  struct Copy {
    enum Lack { commit, wait, smaller_wait, barrier, mbarrier } lack = commit;
    bool committed = false;
    uint32_t thread = 0;
    uint32_t issuing_block = 0;  // of a load
    Place issued = 0;
    Place waited = 0;                  // the thread's last wait, if there was one
    uint32_t pending = 0, enough = 0;  // the number of that wait, and the largest that will do
  } copy{};

  // Of registers of a wgmma that is under way, or that were touched after the last fence.
  struct Registers {
    // `name`: the wait was made, but does not name the sums.
    enum Lack { commit, wait, smaller_wait, name } lack = wait;
    const char* operand = "d";
    size_t index = 0;
    bool committed = false;
    Site issued{}, waited{};  // no line if there was none
    uint32_t pending = 0, enough = 0;
    Place touched_at = 0;
    uint32_t touched_by = 0;
  } registers{};
};

/// Ends the block. The text is made later, on a stack that has room for it.
[[noreturn]] void found(const Finding& finding);
/// For describe_finding and error_of_finding, of a block that has ended already.
void keep(const Finding& finding);

/// The probable mistake, other than a missing barrier or atomic, if both accesses write; empty if
/// there is no sign of one. `certain` says whether it is the only explanation.
std::string cause_of_race(const Finding& race, const Block& block, bool* certain);
/// "c[3]", for an index as in Finding::Around.
std::string element_name(const Finding& finding, size_t index);
/// "full[1]", for an address in shared memory.
std::string name_of(uintptr_t address);
/// The array of the running cluster's shared memory in which the address lies, or null.
const Array* shared_array_at(uintptr_t address);
/// The text of the last finding, "thread 5 reads …". Looks up sources.
std::string describe_finding(const Block& block);
/// That of two threads that have stored one value to one element.
std::string describe_same_store(const Finding& finding, const Block& block);

void launch_begins_for_races();
void cluster_begins_for_races();
void block_runs_for_races(uint32_t rank);
void block_begins_for_races(uint32_t rank, uint64_t number, uint32_t threads);

}  // namespace cpu_device::check
