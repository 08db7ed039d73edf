// The check build: every load and store of device code is checked. Kernels are compiled with
// -fsanitize=thread, and the callbacks that the compiler then inserts are ours (callbacks.cpp).
//
// In the fast build kChecking is false and none of this is linked. A check build has one worker:
// clusters run one after the other, and their blocks in turns, so this state needs no locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpu_device/check.h"
#include "cpu_device/runtime_api.h"

namespace cpu_device {

struct Launch;
class Block;
enum class Arrival : uint8_t;
struct AsyncCopy;
struct Warpgroup;
struct WgmmaAccumulator;

namespace check {

/// Where device code stands: a line, and the calls that have led there (sources.cpp). 0 for none.
using Place = uint32_t;

enum class Kind : uint8_t { read, write, update };  // an update is an atomic that does both

/// Copies that no barrier orders, only the waits of their thread or of others for them.
enum class Flight : uint8_t {
  none,
  st_async,
  load,           // by TMA: reads global memory, writes shared memory
  read_of_store,  // by TMA, of shared memory
  write_of_store
};
inline constexpr size_t kFlights = 5;

struct Access {
  uintptr_t address;
  size_t bytes;
  Kind kind;
  bool atomic;  // or volatile, which PTX treats in the same way (PTX ISA, "volatile")
  Place place;
  bool copies = false;  // by cp.async: the read of the source, the write to the destination
  Place wait = 0;       // the wait by which that write has landed; until then it is only issued
  Flight flight = Flight::none;
  uint32_t wgmma = 0;        // by wgmma: its number among those of the warpgroup, from 1
  bool of_mbarrier = false;  // an arrival or a wait; mbarrier.cpp reports what it orders
  bool arrives = false;
  bool async_proxy = false;  // TMA or wgmma reads shared memory
  bool is_volatile = false;  // a plain load or store of what is volatile
  bool compares = false;     // by atomicCAS
  uintptr_t source = 0;      // of the write by cp.async: what it copies; 0 if that is zeros

  bool by_tma() const { return flight > Flight::st_async; }
};

// ---- Called by the memory functions (memory.cpp) ----
/// Memory of a device, far from everything else; null if there is none.
void* allocate(size_t bytes);
void release(void* memory);
/// The host has written these bytes. If `from` is not null, they were copied from there, and what
/// is known about those bytes is copied, too.
void written_by_host(const void* memory, size_t bytes, const void* from = nullptr);
/// Whether the last kernel has, anywhere in the allocation that begins there.
bool is_written_by_kernel(uintptr_t memory);

// ---- Called by the launch and the block (launch.cpp, block.cpp) ----
/// Between begin and end other host threads wait with their calls.
void launch_begins(const Launch& launch);
void launch_ends();
/// What is to be said of the launch although it is right; empty if nothing is.
std::string describe_same_stores();
/// All blocks of a cluster begin before one of them runs.
void block_begins(Block& block);
/// From now on all calls are about this block of the cluster.
void block_runs(uint32_t rank);
/// All its threads have ended. Returns the rank of a block that may still access its shared memory,
/// or no_rank.
uint32_t block_ends(uint32_t rank);
inline constexpr uint32_t no_rank = ~0u;
/// Forgets what the blocks have left in shared memory. Returns the rank of the block with a finding
/// that was held back, or no_rank. `threads_missed` says that some threads did not come to a
/// barrier, which explains a race.
uint32_t cluster_ends(bool threads_missed);
/// The code that CUDA has for the last finding.
cudaError_t error_of_finding();
/// All threads of the block have arrived at a barrier.
void barrier_passed();
/// The current thread has arrived at the barrier of its cluster; all threads have; the current
/// thread has waited for that phase, counted from 1. A relaxed arrival tells of nothing but the
/// mbarriers that the thread has initialised.
void cluster_arrived(Arrival arrival);
void cluster_completed();
void cluster_waited(uint32_t phase);
/// Lanes of one warp have synchronised: __syncwarp orders memory, shuffles and votes do not.
void warp_synchronised(uint32_t warp, uint32_t lanes);

// ---- Called by mbarriers (mbarrier.cpp) ----
/// The current thread has, which has been checked as a write. Forgets an mbarrier that was in the
/// same place before.
void mbarrier_initialised(uintptr_t barrier);
/// The current thread has arrived, or has sent bytes. The bytes of a load publish nothing else that
/// it has done.
enum class Signal : uint8_t { arrival, st_async, load };
void mbarrier_signalled(uintptr_t barrier, Signal signal);
/// The phase of this parity is complete.
void mbarrier_completed(uintptr_t barrier, uint32_t parity);
/// The current thread has seen that this phase is complete; and what was done in global memory
/// before, or in shared memory only.
void mbarrier_waited(uintptr_t barrier, uint32_t parity, bool sees_global_memory = true);

// ---- Called by TMA (tma.cpp) and wgmma ----
/// The current thread has started a load to `shared` in the block of this rank, which has been
/// checked; a load to this offset of the running block's shared memory has landed.
void load_begins(uint32_t rank, const void* shared, size_t bytes);
void load_lands(size_t offset, size_t bytes);
/// The current thread has started a store, which has been checked; it has waited for the reads of
/// this many of its stores since the block's begin, and for this many to be done.
void store_begins();
void stores_waited_for(uint32_t read, uint32_t done);
void fence_async_proxy();
// ---- Called by wgmma (src/wgmma.cpp) ----
/// A wgmma is about to be issued, with these sums. Ends the block if a fence is missing.
void look_at_fence(const Warpgroup& group, const WgmmaAccumulator& sums, Place place);
/// The current thread's warpgroup has waited for its wgmma up to this number.
void wgmma_done(uint32_t number);

// ---- Called by device code ----
/// Ends the block with a report if the access is wrong.
void look_at(const Access& access);
/// An access whose address is not aligned as its type requires.
void look_at_misaligned(const Access& access);
/// A fence orders for threads of the own block, or for all of the device.
enum class Scope : uint8_t { block, device };
void fence(Scope scope);
/// A cp.async is issued, to `shared`. Ends the block with a report if it is wrong.
void look_at_copy(const void* shared, AsyncCopy& copy, Place place);
/// The current thread has called a function there, or has returned from one.
void function_entered(const void* caller);
void function_left();
/// The current thread has waited for a copy.
void copy_lands(const AsyncCopy& copy);

// ---- wgmma.cpp ----
/// An access to the thread's stack, where registers of wgmma are.
void look_at_registers(const Access& access);

// ---- spaces.cpp ----
/// Ends the block if a finding is held back.
void settle();
/// Device code has called, so that its last store has been made.
void kernel_calls();
/// The block of this number in the running cluster, or no_rank.
uint32_t rank_of(uint64_t block);
uint32_t cluster_size();
/// The rank of the block of the running cluster in whose shared memory the address is, or no_rank.
uint32_t rank_at(uintptr_t address);

// ---- races.cpp ----
/// What is remembered about the accesses to one word of four bytes.
struct Stamp {
  // The epoch of a Flight. Its tick counts those of the thread, whose number is after those of all
  // threads, by as many times 1,024 as the flight's kind says. Also the epoch of a read by wgmma,
  // which only the warpgroup's wait ends; its thread is kWgmma plus the warpgroup's first.
  static constexpr uint32_t kInFlight = ~0u;
  static constexpr uint16_t kWgmma = kFlights * 1024;
  uint32_t block = 0;
  uint32_t epoch = 0;  // barriers that the block had passed
  uint32_t tick = 0;   // __syncwarps and fences that the thread had passed
  uint16_t thread = 0;
  uint8_t bytes = 0;  // a bit for each of the word's bytes; 0 for no access
  bool atomic : 1 = false;
  bool copied : 1 = false;   // by cp.async
  bool again : 1 = false;    // a write to bytes of which some had been written before
  bool updates : 1 = false;  // a write to bytes that its thread had read since the last barrier
  // A write to bytes that the same line had written before the last barrier: in another iteration
  // of a loop. A conflicting read takes the flag of the write.
  bool next_turn : 1 = false;
  bool is_volatile : 1 = false;
  bool is_update : 1 = false;  // an atomic that reads and writes
  bool compares : 1 = false;   // by atomicCAS
  Place place = 0;             // for a write by cp.async, with its wait

  bool is_in_flight() const { return epoch == kInFlight; }
  Flight flight() const { return by_wgmma() ? Flight::none : static_cast<Flight>(thread / 1024); }
  bool by_wgmma() const { return thread >= kWgmma; }
};
struct Word {
  // A byte has one last writer, so four are enough; beside the last of several unordered atomics
  // some earlier ones are kept.
  static constexpr int kWriters = 4, kReaders = 4;
  uint32_t tag = 0;  // the launch, or in shared memory the block, that all of it belongs to
  // Up to this epoch of this block more readers need not be remembered.
  uint32_t enough_epoch = 0, enough_block = 0;
  uint32_t last_writer = 0;  // the latest of:
  Stamp writers[kWriters];
  Stamp readers[kReaders];
};
/// Returns the earlier access to the word that conflicts with this one, or null; then remembers
/// this one. `location` is the word's address; `again` says that a write is not the first one.
const Stamp* conflict(Word& word, uintptr_t location, uint32_t tag, uint8_t bytes,
                      const Access& access, bool again, bool* earlier_was_write);
/// Forgets what the thread of an earlier access to these bytes has done there in the same way.
void forget(Word& word, const Stamp& earlier, uint8_t bytes);
/// The place of the call that the current thread is in.
Place& current_call();
/// The number of the current thread in stamps.
uint32_t current_thread();
uint32_t current_block_number();
/// Epoch and tick of a thread, which change with a barrier and with a __syncwarp.
struct Moment {
  uint32_t epoch = 0, tick = 0;
};
Moment current_moment();
/// A writer of these bytes whose write is not ordered before the current thread by a proxy fence;
/// null if there is none.
const Stamp* unfenced_writer(const Word& word, uintptr_t location, uint8_t bytes);
/// The stamp of what the current thread does now, for one byte.
Stamp current_stamp(const Access& access);
/// Whether the current thread knows that this block of its cluster has begun.
bool knows_of_begin(uint32_t rank);
/// Whether its thread has made a relaxed arrival at the barrier of its cluster since.
bool arrived_relaxed_after(const Stamp& stamp);
/// Of an access that is not ordered before the current thread: where it would be. By a wait it may
/// be in shared memory only, by an arrival in that of the block that made it.
enum class Limit : uint8_t { none, shared, own_shared };
Limit limit_of_order(const Stamp& stamp);
/// Whether any thread of the block knows of this access of another block to shared memory.
bool is_known_to_block(uint32_t rank, const Stamp& stamp);
/// An atomic has accessed the location. If it reads, this thread now knows what was released there;
/// if it writes, the next threads to read it know what this thread has released.
void synchronise_through(const Access& access);
/// The running block has stored to a volatile location in global memory.
void stored_to_volatile();
/// A volatile store of another block to these bytes that an atomic has told the current thread of,
/// but without a fence, so that the store may come later; or null. Sets the atomic's place.
const Stamp* told_without_fence(const Word& word, uintptr_t location, uint8_t bytes, Place* atomic);
/// Whether the kernel has executed fences, and none reached further than a block.
bool only_fences_of_blocks();

// ---- sources.cpp ----
/// The place of the current thread; `caller` is a return address.
Place place_of(const void* caller);
/// The place of a cp.async together with the place where its thread waited; and the latter, or 0.
Place with_wait(Place place, Place wait);
Place wait_of(Place place);
bool same_line(Place a, Place b);
/// "02_matmul/step3_shared_tile.cu:42", or of a helper with ", called at " and the kernel's line.
const char* source_of(Place place);
/// For each place its line in a kernel's .cu file: the innermost one of its calls, or of a header
/// if there is none. "?" if there is no line.
std::vector<std::string> kernel_lines_of(std::span<const Place> places);

}  // namespace check
}  // namespace cpu_device
