#include "cluster.hpp"

#include <algorithm>
#include <bit>
#include <mutex>
#include <numeric>

#include "check/checker.hpp"
#include "cpu_device/cluster.h"
#include "cpu_device/tensor.h"
#include "instruction.hpp"
#include "tma.hpp"

namespace cpu_device {
namespace {

// Blocks are kept from launch to launch: each has 1,024 stacks. No launch uses more at a time than
// kMostBlocks (launch.cpp), so no more are made.
std::mutex pool_mutex;
std::vector<std::unique_ptr<Block>>& pool() {
  static std::vector<std::unique_ptr<Block>> blocks;
  return blocks;
}

std::unique_ptr<Block> take_block() {
  {
    const std::lock_guard lock(pool_mutex);
    if (!pool().empty()) {
      std::unique_ptr<Block> block = std::move(pool().back());
      pool().pop_back();
      return block;
    }
  }
  return std::make_unique<Block>();
}

}  // namespace

Cluster::Cluster(Launch& launch) : launch_(launch), members_(launch.cluster_blocks) {
  for (Member& member : members_) member.block = take_block();
}

// The block of rank 0 goes back last, so that it has this rank in the next launch too: the check
// build keeps what it knows of memory by rank.
Cluster::~Cluster() {
  const std::lock_guard lock(pool_mutex);
  for (size_t rank = members_.size(); rank-- > 0;) {
    pool().push_back(std::move(members_[rank].block));
  }
}

// Clusters are to their grid what blocks are, and blocks to a cluster what threads are to a block.
uint64_t Cluster::index_of(uint64_t number, uint32_t rank) const {
  if (members_.size() == 1) return number;
  const dim3 grid = launch_.config.grid, cluster = launch_.config.cluster;
  const uint64_t clusters_x = grid.x / cluster.x, clusters_y = grid.y / cluster.y;
  const uint64_t x = number % clusters_x * cluster.x + rank % cluster.x;
  const uint64_t y = number / clusters_x % clusters_y * cluster.y + rank / cluster.x % cluster.y;
  const uint64_t z = number / clusters_x / clusters_y * cluster.z + rank / cluster.x / cluster.y;
  return (z * grid.y + y) * grid.x + x;
}

Failure Cluster::run(uint64_t number) {
  phase_ = arrived_ = looked_at_ = 0;
  phases_.clear();
  for (uint32_t rank = 0; rank < size(); ++rank) {
    Member& member = members_[rank];
    member.ended = false;
    member.parked.fill(0);
    member.block->begin(launch_, index_of(number, rank), *this, rank);
  }
  Failure failure;
  Block* failed = run_to_end();
  if constexpr (kChecking) {
    // It was first, whatever else has gone wrong since.
    if (Block* late = found_late(check::cluster_ends(failed && failed->misses_threads())))
      failed = late;
  }
  if (failed) {
    failure = failed->failure();
    if (failed->is_stuck()) failure.report += report_of_the_others(*failed);
  }
  for (Member& member : members_) {
    if (!member.ended) {
      member.block->end();
    } else if (size() > 1) {
      member.block->poison_arena();  // another block may have written there since
    }
  }
  return failure;
}

// Each block goes on for as long as it can: so far ahead of the others that what it should have
// waited for is missing from the result. Returns the block that has failed, or null.
Block* Cluster::run_to_end() {
  const Order order = options().order;
  random_.seed(options().seed ^ (members_[0].block->index() * 0x9e3779b97f4a7c15u));
  std::iota(order_.begin(), order_.begin() + size(), 0u);
  if (order == Order::reverse) std::reverse(order_.begin(), order_.begin() + size());
  for (uint32_t left = size(); left > 0;) {
    if (order == Order::random) {
      for (uint32_t i = size(); i > 1; --i) std::swap(order_[i - 1], order_[random_(i)]);
    }
    bool any_ran = false;
    for (uint32_t i = 0; i < size(); ++i) {
      Member& member = members_[order_[i]];
      Block& block = *member.block;
      if (member.ended || !block.can_go_on()) continue;
      any_ran = true;
      block.resume();
      if (block.failed()) return &block;
      if (!block.has_ended()) continue;
      if (!end_copies(block)) return &block;
      if constexpr (kChecking) {
        if (Block* other = found_late(check::block_ends(block.rank()))) return other;
      }
      block.end();
      // Until the cluster ends, no thread may touch its shared memory.
      if constexpr (kAsan) {
        if (size() > 1) __asan_poison_memory_region(block.arena(), kArenaBytes);
      }
      member.ended = true;
      --left;
    }
    if (complete_without_the_ended() || any_ran) continue;
    Block* stuck = std::ranges::find(members_, false, &Member::ended)->block.get();
    stuck->found_stuck();
    return stuck;
  }
  return nullptr;
}

// The block of which the check build has found something that was held back, or null.
Block* Cluster::found_late(uint32_t rank) {
  if constexpr (kChecking) {
    if (rank != check::no_rank) {
      members_[rank].block->found_late();
      return members_[rank].block.get();
    }
  }
  return nullptr;
}

uint64_t Cluster::progress() const {
  uint64_t sum = completed_;
  for (const Member& member : members_) sum += member.block->progress();
  return sum;
}

Block* Cluster::owner_of(const void* address) const {
  for (const Member& member : members_) {
    if (member.block->in_arena(address)) return member.block.get();
  }
  return nullptr;
}

char* Cluster::map(const void* shared, unsigned rank, Site site) const {
  const Block* owner = owner_of(shared);
  if (!owner || rank >= size()) fail_to_map(shared, rank, site);
  return block(rank).arena() + (static_cast<const char*>(shared) - owner->arena());
}

// ---- The barrier ----

void Cluster::begin_barriers() {
  phase_ = 1;
  for (Member& member : members_) {
    member.arrived_in.fill(0);
    member.waiting.fill(0);
    member.arrival.fill({});
    member.departure.fill({});
    member.block->is_not_alone();  // a thread of it may wait for one that has ended
  }
}

void Cluster::arrive(Block& block, Site site, Arrival arrival) {
  if (phase_ == 0) begin_barriers();
  Member& member = members_[block.rank()];
  const uint32_t thread = block.current_thread();
  if (member.arrived_in[thread] != 0) {
    fail(block, "arrives at the barrier of its cluster a second time, without a cluster_wait()",
         Block::Blamed::thread, site);
  }
  same_place(block, member.arrival[thread / kLanes], phase_, "arrive at the barrier", site);
  member.arrived_in[thread] = phase_;
  if constexpr (kChecking) check::cluster_arrived(arrival);
  if (++arrived_ == launch_.threads * size()) complete();
}

void Cluster::wait(Block& block, const char* name, Site site) {
  Member& member = members_[block.rank()];
  const uint32_t thread = block.current_thread();
  const uint32_t phase = phase_ == 0 ? 0 : member.arrived_in[thread];
  if (phase == 0) {
    fail(block, "waits at the barrier of its cluster, where it has not arrived",
         Block::Blamed::thread, site);
  }
  same_place(block, member.departure[thread / kLanes], phase, "wait at the barrier", site);
  if (phase == phase_) {
    member.waiting[thread / kLanes] |= 1u << thread % kLanes;
    block.park(name, site);
  }
  member.arrived_in[thread] = 0;
  if constexpr (kChecking) check::cluster_waited(phase);
}

void Cluster::complete() {
  if constexpr (kChecking) check::cluster_completed();
  ++phase_;
  completed_ = completed_ + 1;
  arrived_ = looked_at_ = 0;
  for (Member& member : members_) {
    for (uint32_t warp = 0; warp * kLanes < launch_.threads; ++warp) {
      if (member.waiting[warp] == 0) continue;
      member.block->make_ready(warp, member.waiting[warp]);
      member.waiting[warp] = 0;
    }
  }
}

// Threads that have ended are not waited for. One that has arrived and ended then has been counted,
// so that only a look at all of them can tell.
bool Cluster::complete_without_the_ended() {
  if (arrived_ == 0) return false;
  uint32_t ended = 0;
  for (const Member& member : members_) ended += member.block->ended_threads();
  if (ended == 0 || looked_at_ == arrived_ + ended) return false;
  looked_at_ = arrived_ + ended;
  for (const Member& member : members_) {
    for (uint32_t t = 0; t < launch_.threads; ++t) {
      if (member.arrived_in[t] != phase_ && !member.block->has_ended(t)) return false;
    }
  }
  complete();
  return true;
}

// ---- Mbarriers (mbarrier.cpp) ----

void Cluster::park_at(Block& block, const void* mbarrier, const char* name, Site site) {
  Member& member = members_[block.rank()];
  const uint32_t thread = block.current_thread();
  member.parked[thread / kLanes] |= 1u << thread % kLanes;
  member.mbarrier[thread] = mbarrier;
  block.park(name, site);
}

void Cluster::wake_from(Block& owner, const void* mbarrier) {
  completed_ = completed_ + 1;
  ++phases_[mbarrier];
  Member& member = members_[owner.rank()];
  for (uint32_t warp = 0; warp * kLanes < launch_.threads; ++warp) {
    uint32_t lanes = 0;
    for (uint32_t rest = member.parked[warp]; rest; rest &= rest - 1) {
      const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
      if (member.mbarrier[warp * kLanes + lane] == mbarrier) lanes |= 1u << lane;
    }
    if (lanes == 0) continue;
    member.parked[warp] &= ~lanes;
    owner.make_ready(warp, lanes);
  }
}

// Only the parity is compared, so that the phase is the one in progress, whichever was meant.
std::string Cluster::phase_waited_for(const Block& block, uint32_t thread) const {
  const Member& member = members_[block.rank()];
  if ((member.parked[thread / kLanes] >> thread % kLanes & 1) == 0) return {};
  const void* mbarrier = member.mbarrier[thread];
  const uint32_t complete = complete_phases(mbarrier);
  std::string text = ", for phase " + std::to_string(complete + 1) + " (parity " +
                     std::to_string(complete % 2) + ") of " + block.name_of_shared(mbarrier) +
                     missing_in_phase(mbarrier);
  if (complete >= 2) {
    text += "; whoever means phase " + std::to_string(complete - 1) +
            ", of the same parity, comes too late";
  }
  return text;
}

// ---- What can be wrong ----

void Cluster::same_place(Block& block, Place& place, uint32_t phase, const char* what, Site site) {
  if (place.phase != phase) {
    place = {phase, site};
    return;
  }
  if (place.site.line == site.line) return;
  block.leaves_kernel();
  static thread_local std::string text;  // outlives the block that fails
  text = std::string("lanes of one warp ") + what +
         " of their cluster at different places; all must run the same instruction\n  at " +
         place.site.file + ":" + std::to_string(place.site.line);
  fail(block, text.c_str(), Block::Blamed::block, site);
}

void Cluster::fail(Block& block, const char* what, Block::Blamed who, Site site) {
  block.leaves_kernel();
  static thread_local std::string text;
  text = std::string(what) + "\n  at " + site.file + ":" + std::to_string(site.line);
  block.fail(cudaErrorLaunchFailure, text.c_str(), who);
}

void Cluster::fail_to_map(const void* shared, unsigned rank, Site site) const {
  current_block->leaves_kernel();
  static thread_local std::string text;
  text = owner_of(shared)
             ? "asks for an address in the block of rank " + std::to_string(rank) +
                   "; its cluster has " + std::to_string(size()) +
                   (size() == 1 ? " block" : " blocks")
             : std::string("asks where in another block lies what is not in shared memory");
  text += std::string("\n  at ") + site.file + ":" + std::to_string(site.line) +
          "\n  the address is";  // which follows
  current_block->fail(cudaErrorIllegalAddress, text.c_str(), Block::Blamed::thread, shared);
}

// One paragraph for all blocks in the same state.
std::string Cluster::report_of_the_others(const Block& failed) const {
  std::vector<std::pair<std::string, std::vector<const Block*>>> states;
  for (const Member& member : members_) {
    if (member.block.get() == &failed) continue;
    const std::string waits = member.block->waits("    ");  // empty: it has not begun
    auto state = std::ranges::find(states, waits, [](const auto& s) { return s.first; });
    if (state == states.end()) state = states.insert(state, {waits, {}});
    state->second.push_back(member.block.get());
  }
  std::string text;
  for (const auto& [waits, blocks] : states) {
    text += "  of its cluster, " + std::string(blocks.size() == 1 ? "block" : "blocks");
    for (size_t i = 0; i < blocks.size(); ++i) {
      text += (i == 0 ? " " : ", ") + failed.block_name(blocks[i]->index());
    }
    text += waits.empty() ? ", which had not begun\n" : ":\n" + waits;
  }
  return text;
}

// ---- The doors through which device code comes in ----

namespace {

Cluster& cluster_of_caller(const char* instruction, Site site) {
  Block& block = block_of_caller(instruction);
  require_capability(instruction, 90, site);
  return block.cluster();
}

}  // namespace

unsigned cluster_rank(Site site) {
  cluster_of_caller("%cluster_ctarank", site);
  return current_block->rank();
}

unsigned cluster_size(Site site) { return cluster_of_caller("%cluster_nctarank", site).size(); }

void* map_to_block_of_cluster(const void* shared, unsigned rank, Site site) {
  return cluster_of_caller("mapa", site).map(shared, rank, site);
}

void cluster_arrive(Site site) {
  cluster_of_caller("barrier.cluster.arrive", site).arrive(*current_block, site);
}

void cluster_arrive_relaxed(Site site) {
  cluster_of_caller("barrier.cluster.arrive", site).arrive(*current_block, site, Arrival::relaxed);
}

void cluster_arrive_shared(Site site) {
  cluster_of_caller("barrier.cluster.arrive", site)
      .arrive(*current_block, site, Arrival::release_of_shared);
}

void cluster_wait(Site site) {
  cluster_of_caller("barrier.cluster.wait", site).wait(*current_block, "cluster_wait()", site);
}

void cluster_sync(Site site) {
  Cluster& cluster = cluster_of_caller("barrier.cluster.arrive", site);
  cluster.arrive(*current_block, site);
  cluster.wait(*current_block, "cluster_sync()", site);
}

bool in_cooperative_launch() { return block_of_caller("this_grid()").launch().config.cooperative; }

void grid_sync(Site site) {
  Block& block = block_of_caller("grid.sync()");
  if (!block.launch().config.cooperative) {
    block.leaves_kernel();
    static thread_local std::string text;
    text = std::string("calls grid.sync() in a launch that is not cooperative\n  at ") + site.file +
           ":" + std::to_string(site.line);
    block.fail(cudaErrorLaunchFailure, text.c_str(), Block::Blamed::thread);
  }
  block.cluster().arrive(block, site);
  block.cluster().wait(block, "grid.sync()", site);
}

}  // namespace cpu_device
