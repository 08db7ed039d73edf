// One block of threads, run by one OS thread: the scheduler, barriers and warp collectives. It runs
// as a member of a cluster (cluster.hpp), alone as a rule.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "async.hpp"
#include "cpu_device/launch.h"
#include "cpu_device/options.h"
#include "cpu_device/shared.h"
#include "cpu_device/sync.h"
#include "fiber.hpp"
#include "random.hpp"
#include "tma.hpp"
#include "warpgroup.hpp"

namespace cpu_device {

class Cluster;
struct WgmmaGroups;

inline constexpr uint32_t kMaxThreads = 1024;  // a block's; every CUDA device has this limit
inline constexpr uint32_t kLanes = 32;

inline constexpr size_t kArenaBytes = 256 * 1024;  // for a block's shared memory

/// A shared declaration that has its place in the arena, for reports and AddressSanitizer.
struct PlacedShared {
  const char* names;
  size_t offset, bytes;
};

/// A kernel on its way: what all blocks share.
struct Launch {
  KernelName name;
  Config config{1, 1};
  const void* function;  // the kernel's address, or null
  void (*body)(const void* frame);
  const void* frame;  // the kernel and its arguments, of
  size_t frame_bytes;
  uint32_t number;          // tells a shared declaration whether it has been placed
  uint64_t blocks;          // in the grid
  uint32_t threads;         // in a block
  uint32_t cluster_blocks;  // in a cluster
  size_t shared_limit;      // of static and dynamic bytes together
  std::array<uint3, kMaxThreads> thread_index;  // of each thread of a block
  std::atomic<uint64_t> next_cluster{0};
  mutable std::mutex placing;             // of what follows, up to `failed`
  std::atomic<uint32_t> shared_bytes{0};  // placed so far, dynamic part included
  size_t shared_bytes_without_gaps = 0;
  std::vector<PlacedShared> placed;
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> barriers{0};     // of blocks, passed, a block counting once for each
  std::atomic<uint64_t> collectives{0};  // of warps
  // By TMA: from global memory, and most of them on their way to one block.
  std::atomic<uint64_t> loaded_bytes{0}, most_on_the_way{0};
  std::mutex ending;
  std::vector<LateStores> late_stores;

  bool holds_argument(const void* address) const {
    return static_cast<size_t>(static_cast<const char*>(address) -
                               static_cast<const char*>(frame)) < frame_bytes;
  }
};

/// Why a block ended before its threads did. The code is the one that CUDA gives for it.
struct Failure {
  cudaError_t code = cudaSuccess;
  std::string report;
};

class Block {
 public:
  Block();
  ~Block();

  // What the cluster does with it.
  void begin(Launch& launch, uint64_t index, Cluster& cluster, uint32_t rank);
  bool can_go_on() const {
    return started_ < threads_ || ready_ranks_ != 0 || polling_head_ != polling_tail_ || gave_way_;
  }
  /// Lets threads run until all have ended, one has failed, or none can go on before other blocks
  /// have.
  void resume();
  bool has_ended() const { return finished_ == threads_ && !failed(); }
  bool failed() const { return failure_.code != cudaSuccess; }
  /// Its threads wait, and no other is left that could wake them.
  void found_stuck();
  bool is_stuck() const;
  bool misses_threads() const;                               // at a barrier or collective
  bool has_arrived() const { return barrier_.arrived > 0; }  // a thread, at __syncthreads()
  /// What the check build has held back, of a block that has ended.
  void found_late();
  /// Its threads have ended, and should not have.
  void ended_too_early(const char* what);
  Failure failure() const { return {failure_.code, report()}; }
  /// Ended or not, nothing of it is left.
  void end();
  /// Shared memory that no thread has written.
  void poison_arena();

  // What device code calls, from within run().
  BarrierResult barrier(const BarrierCall& call, bool predicate, Site site);
  uint64_t collective(const WarpCall& call, uint32_t mask, uint64_t value, uint32_t argument,
                      Site site);
  uint32_t active_mask(Site site);
  void yield();
  /// The same for a thread that was interrupted in a loop without calls.
  void give_way();
  /// The current thread waits until make_ready.
  void park(const char* name, Site site);
  void make_ready(uint32_t warp, uint32_t lanes);
  /// For those that meet otherwise than in this file: they have met.
  void made_progress() { progress_ = progress_ + 1; }
  /// Blocks beside it are waited for, or may be.
  void is_not_alone() { alone_ = false; }
  Cluster& cluster() const { return *cluster_; }
  uint32_t rank() const { return rank_; }  // in the cluster
  uint64_t index() const { return index_; }
  bool has_ended(uint32_t thread) const { return state_[thread] == State::finished; }
  uint32_t ended_threads() const { return finished_; }
  uint32_t current_thread() const { return current_; }
  uint32_t current_lane() const { return current_ % kLanes; }
  Launch& launch() const { return *launch_; }
  char* arena() const { return arena_; }
  bool in_arena(const void* address) const {
    return static_cast<size_t>(static_cast<const char*>(address) - arena_) < kArenaBytes;
  }
  AsyncCopies& copies_of(uint32_t thread) {
    any_copies_ = true;
    return copies_[thread];
  }

  BulkCopies& bulk() { return bulk_; }
  Warpgroups& warpgroups() { return warpgroups_; }
  const Warpgroups& warpgroups() const { return warpgroups_; }
  /// Of wgmma; null if there has been none.
  WgmmaGroups* wgmma_groups() const { return wgmma_groups_.get(); }
  WgmmaGroups& make_wgmma_groups();

  /// Ends the block from inside one of its threads, or from a signal handler in one. `what` is a
  /// literal, told of the current thread if `who` says so; a bad address is added.
  enum class Blamed : uint8_t { block, thread };
  [[noreturn]] void fail(cudaError_t code, const char* what, Blamed who,
                         const void* address = nullptr);

  // What reports ask.
  std::string thread_name(uint32_t thread) const;
  std::string block_name(uint64_t index) const;
  std::string waits(const char* indentation) const;
  /// What lies at an address in its shared memory: "full[1]", or in the fast build "byte 8 of
  /// full".
  std::string name_of_shared(const void* address) const;
  bool owns_stack(const void* address) const { return stacks_.hold(address); }
  bool has_room_below(uintptr_t stack, size_t bytes) const {
    return stacks_.have_room_below(stack, bytes);
  }
  /// The thread that touches the address, for a report of AddressSanitizer.
  std::string describe_access(const void* address) const;

  // What signal handlers ask (faults.cpp).
  bool in_kernel() const { return in_kernel_; }
  /// Between the two the runtime works for itself. It shares inline functions of the standard
  /// library with kernels' files, where the check build has them looked at.
  void leaves_kernel() { in_kernel_ = false; }
  void enters_kernel() { in_kernel_ = true; }
  /// Whether fail() may be called now: not in the middle of a switch that AddressSanitizer follows.
  bool can_leave() const { return !stacks_.switching(); }
  uint64_t progress() const { return progress_; }
  uint64_t yields() const { return yields_; }

 private:
  enum class State : uint8_t { unstarted, ready, running, waiting, finished };

  /// What a thread waits for, as a report tells it.
  struct Wait {
    const char* name;
    Site site;
    uint32_t mask;  // of lanes; 0 if the call has none
  };

  struct Warp {
    struct Group {  // lanes that wait for one another
      uint32_t mask = 0;
      uint32_t arrived = 0;
      const WarpCall* call = nullptr;
    };
    uint32_t existing = 0;
    // A group's place is that of its lowest lane, unless another one is pending there: a lane may
    // wait for all of its warp while some of the others are still among themselves.
    std::array<Group, kLanes> groups;
    uint32_t out_of_place = 0;  // groups
    Group& group_apart(uint32_t mask, uint32_t lane);
    WarpExchange exchange;
  };

  static void fiber_entry();
  void run_threads();
  void start_fiber(Context* left);
  void make_order();
  void reset_warps();
  void forget_copies();
  void forget_bulk_copies();
  void waits_here(const char* name, Site site, uint32_t mask);
  void wait(const char* name, Site site, uint32_t mask);
  void suspend();
  void poll();
  void go_on(uint32_t thread, Context* left);
  void wake(uint32_t warp, uint32_t lanes);
  uint32_t pick();
  void pause();
  uint32_t wait_for_other_blocks();
  void rank_warps();
  void pass_the_turn();
  bool release_active_masks();
  [[noreturn]] void leave();
  void guard_arena() const;
  std::string report() const;

  Launch* launch_ = nullptr;
  Cluster* cluster_ = nullptr;
  uint32_t rank_ = 0;
  uint64_t index_ = 0;
  uint3 block_index_{};
  uint32_t threads_ = 0;

  // Scheduling. A thread is picked from the ready ones first, then from those not yet started:
  // so few stacks are in use, and a kernel without barriers needs one.
  uint32_t current_ = 0;
  int current_stack_ = 0;
  int starting_stack_ = 0;  // handed to the fiber that is about to run
  uint32_t started_ = 0;
  uint32_t finished_ = 0;
  uint32_t ready_ranks_ = 0;  // of the warps that have ready lanes
  std::array<uint32_t, kMaxThreads / kLanes> ready_lanes_{};
  std::array<uint8_t, kMaxThreads / kLanes> warp_of_{}, rank_of_{};  // rank 0 goes first
  uint32_t polling_head_ = 0, polling_tail_ = 0;
  uint32_t active_mask_waiters_ = 0;
  std::array<uint16_t, kMaxThreads> polling_;  // a ring; a thread stands in it at most once
  std::array<uint16_t, kMaxThreads> order_;    // in which threads start
  std::array<State, kMaxThreads> state_;
  std::array<Context, kMaxThreads> context_;
  std::array<Wait, kMaxThreads> waits_;
  std::array<uint32_t, kMaxThreads> active_mask_;
  Context caller_ = nullptr;  // resume()
  Context paused_ = nullptr;  // where resume() goes on
  bool alone_ = true;         // no thread outside of this block is waited for
  bool gave_way_ = false;     // paused though a thread runs
  Stacks stacks_{kMaxThreads};
  Order order_kind_ = Order::forward;
  Random random_;

  struct {
    const BarrierCall* call = nullptr;
    Site site{};
    uint32_t arrived = 0;
    bool mixed = false;
    int count = 0;
    BarrierResult result{};
  } barrier_;
  std::array<Warp, kMaxThreads / kLanes> warps_;
  uint64_t barriers_ = 0, collectives_ = 0;  // since begin()

  std::array<AsyncCopies, kMaxThreads> copies_;
  bool any_copies_ = false;  // in this block
  BulkCopies bulk_;
  Warpgroups warpgroups_;
  std::unique_ptr<WgmmaGroups> wgmma_groups_;

  char* window_ = nullptr;  // mapped memory, of which the arena is an aligned part
  char* arena_ = nullptr;
  struct {
    cudaError_t code = cudaSuccess;
    const char* what = nullptr;
    Blamed who = Blamed::block;
    const void* address = nullptr;
  } failure_;
  volatile bool in_kernel_ = false;
  volatile uint64_t progress_ = 0;
  volatile uint64_t yields_ = 0;  // of threads that have asked for it
};

std::string to_string(const dim3& v);

/// The block that this OS thread runs, or null.
extern CPU_DEVICE_THREAD_LOCAL Block* current_block;
/// The same for a device function of this name, which ends the program if there is no block.
Block& block_of_caller(const char* name);

}  // namespace cpu_device
