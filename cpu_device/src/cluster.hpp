// The blocks of a cluster, which one OS thread runs together, and the barrier between them (CUDA
// C++ Programming Guide, "Thread Block Clusters"; PTX ISA, "barrier.cluster"). A block of an
// ordinary launch is a cluster of one.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "block.hpp"
#include "random.hpp"

namespace cpu_device {

inline constexpr uint32_t kPortableCluster = 8;  // blocks that every card with clusters can run
inline constexpr uint32_t kLargestCluster = 16;  // for kernels that ask for it, as on an H100

/// At its barrier: what it tells others of. All that the thread has done, what it has done in the
/// shared memory of its block, or the mbarriers that it has initialised; the first two tell of
/// these, too.
enum class Arrival : uint8_t { release, release_of_shared, relaxed };

class Cluster {
 public:
  /// Runs the launch's clusters, one after the other.
  explicit Cluster(Launch& launch);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Runs cluster `number` of the launch to its end. Returns the failure if it did not get there.
  Failure run(uint64_t number);

  // What device code calls, from within run(): a thread of `block`.
  void arrive(Block& block, Site site, Arrival arrival = Arrival::release);
  void wait(Block& block, const char* name, Site site);
  /// The current thread waits until wake_from(), at an mbarrier in its block.
  void park_at(Block& block, const void* mbarrier, const char* name, Site site);
  /// A phase of this mbarrier of `owner` is complete: the threads that wait there go on.
  void wake_from(Block& owner, const void* mbarrier);
  uint32_t complete_phases(const void* mbarrier) const {
    const auto found = phases_.find(mbarrier);
    return found == phases_.end() ? 0 : found->second;
  }
  /// The mbarrier begins with its first phase.
  void forget_phases(const void* mbarrier) { phases_.erase(mbarrier); }
  /// For a report, if the thread waits at an mbarrier: ", for phase 2 (parity 1) of full[1]".
  std::string phase_waited_for(const Block& block, uint32_t thread) const;
  bool has_ended(uint32_t rank) const { return members_[rank].ended; }
  uint32_t size() const { return static_cast<uint32_t>(members_.size()); }
  Block& block(uint32_t rank) const { return *members_[rank].block; }

  /// The block in whose shared memory the address lies, or null.
  Block* owner_of(const void* address) const;
  /// Where in the block of this rank lies what lies at `shared` in one of the cluster.
  char* map(const void* shared, unsigned rank, Site site) const;
  /// For AddressSanitizer: these bytes of each block's shared memory belong to a declaration.
  void allow_shared(size_t offset, size_t bytes) const;
  /// Grows while any of its blocks gets on.
  uint64_t progress() const;

 private:
  /// Where a warp has come to a barrier: all its lanes must at one place.
  struct Place {
    uint32_t phase = 0;
    Site site{};
  };
  struct Member {
    std::unique_ptr<Block> block;
    bool ended = false;
    std::array<uint32_t, kMaxThreads> arrived_in;        // a phase; 0 if it has waited for it since
    std::array<uint32_t, kMaxThreads / kLanes> waiting;  // lanes
    std::array<Place, kMaxThreads / kLanes> arrival, departure;
    std::array<uint32_t, kMaxThreads / kLanes> parked;  // lanes that wait at mbarriers, and
    std::array<const void*, kMaxThreads> mbarrier;      // at which
  };

  uint64_t index_of(uint64_t number, uint32_t rank) const;
  Block* run_to_end();
  Block* found_late(uint32_t rank);
  void begin_barriers();
  void complete();
  bool complete_without_the_ended();
  void same_place(Block& block, Place& place, uint32_t phase, const char* what, Site site);
  [[noreturn]] void fail(Block& block, const char* what, Block::Blamed who, Site site);
  [[noreturn]] void fail_to_map(const void* shared, unsigned rank, Site site) const;
  std::string report_of_the_others(const Block& failed) const;

  Launch& launch_;
  std::vector<Member> members_;  // by rank
  std::array<uint32_t, kLargestCluster> order_{};
  Random random_;

  std::unordered_map<const void*, uint32_t> phases_;  // complete, of mbarriers
  uint32_t phase_ = 0;      // of the barrier, from 1 on; 0 before its first use
  uint32_t arrived_ = 0;    // threads, in this phase
  uint32_t looked_at_ = 0;  // arrivals and ends of threads when complete_without_the_ended did so
  volatile uint64_t completed_ = 0;  // phases, also of mbarriers, of all clusters; a signal handler
                                     // asks
};

}  // namespace cpu_device
