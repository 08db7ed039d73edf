#include "block.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "check/checker.hpp"
#include "check/xray.hpp"
#include "cpu_device/memory.h"
#include "wgmma.hpp"

namespace cpu_device {
namespace {

constexpr uint32_t kStart = kMaxThreads;       // from pick(): start a thread
constexpr uint32_t kNobody = kMaxThreads + 1;  // from pick(): nothing can go on
constexpr uint64_t kPatience = 1 << 12;        // collectives until the warps change their ranks
constexpr const char* kActiveMask = "__activemask()";
constexpr const char* kStuck = "its threads wait for each other";
constexpr const char* kAtDifferent = "its threads wait at different barriers";

// The window that a wgmma descriptor can name: its start address field holds 18 bits (PTX ISA,
// "Matrix descriptor"), so an arena aligned to a power of two above 256 KB keeps offsets apart.
constexpr size_t kArenaAlignment = 1 << 20;

// Fresh shared memory is all ones: NaN in every floating-point type, -1 in the integers.
constexpr int kPoison = 0xff;

// A switch invalidates the processor's stack of predicted return addresses, so that each return
// after it is mispredicted. From the kernel to the switch there is therefore one call and no more
// (CONTRIBUTING.md has what that gained).
#define CPU_DEVICE_HOT inline __attribute__((always_inline))

bool same_site(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace

CPU_DEVICE_THREAD_LOCAL Block* current_block;

Block& block_of_caller(const char* name) {
  if (current_block) return *current_block;
  std::fprintf(stderr, "%s was called on the host; it works in kernels only\n", name);
  std::abort();
}

Block::Block() {
  void* window = mmap(nullptr, kArenaAlignment + kArenaBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (window == MAP_FAILED) throw std::bad_alloc();
  window_ = static_cast<char*>(window);
  const auto address = reinterpret_cast<uintptr_t>(window);
  arena_ = window_ + (kArenaAlignment - address % kArenaAlignment) % kArenaAlignment;
  std::memset(arena_, kPoison, kArenaBytes);
}

Block::~Block() { munmap(window_, kArenaAlignment + kArenaBytes); }

// ---- Which thread runs next ----

CPU_DEVICE_HOT void Block::go_on(uint32_t thread, Context* left) {
  if (thread == kStart) return start_fiber(left);
  stacks_.switch_to(context_[thread], left);
}

CPU_DEVICE_HOT void Block::suspend() {
  const uint32_t me = current_;
  uint32_t next = pick();
  if (next == kNobody) next = wait_for_other_blocks();
  if (next != me) {
    const int my_stack = current_stack_;
    go_on(next, &context_[me]);
    current_ = me;
    current_stack_ = my_stack;
    threadIdx = launch_->thread_index[me];
  }
  state_[me] = State::running;
}

CPU_DEVICE_HOT void Block::waits_here(const char* name, Site site, uint32_t mask) {
  state_[current_] = State::waiting;
  waits_[current_] = {name, site, mask};
}

CPU_DEVICE_HOT void Block::wait(const char* name, Site site, uint32_t mask) {
  waits_here(name, site, mask);
  suspend();
}

CPU_DEVICE_HOT void Block::poll() {
  state_[current_] = State::ready;
  polling_[polling_tail_++ % kMaxThreads] = static_cast<uint16_t>(current_);
  suspend();
}

void Block::yield() {
  yields_ = yields_ + 1;
  poll();
}

void Block::give_way() {
  if (started_ < threads_) made_progress();
  poll();
}

void Block::park(const char* name, Site site) { wait(name, site, 0); }

CPU_DEVICE_HOT void Block::wake(uint32_t warp, uint32_t lanes) {
  ready_lanes_[warp] |= lanes;
  ready_ranks_ |= 1u << rank_of_[warp];
}

void Block::make_ready(uint32_t warp, uint32_t lanes) {
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    state_[warp * kLanes + static_cast<uint32_t>(std::countr_zero(rest))] = State::ready;
  }
  wake(warp, lanes);
  progress_ = progress_ + 1;
}

// Ready threads come before those not yet started, so that few stacks are in use, and those that
// poll come last. Of the ready ones the warp of the lowest rank goes on for as long as it can: so
// far ahead of the others that what it should have waited for is missing from the result.
CPU_DEVICE_HOT uint32_t Block::pick() {
  const bool can_start = started_ < threads_;
  if (ready_ranks_ == 0) {
    if (can_start) return kStart;
    if (!release_active_masks()) {
      // What the others poll for may be the work of another block.
      if (polling_head_ == polling_tail_ || !alone_) return kNobody;
      return polling_[polling_head_++ % kMaxThreads];
    }
  }
  const uint32_t chance = order_kind_ == Order::random ? random_(2 * kLanes) : 0;
  if (can_start && chance >= kLanes) return kStart;
  const auto rank = static_cast<uint32_t>(std::countr_zero(ready_ranks_));
  const uint32_t warp = warp_of_[rank];
  uint32_t& lanes = ready_lanes_[warp];
  // The lowest lane from lane `chance` on, or the highest.
  const int from = static_cast<int>(chance % kLanes);
  const int lane = order_kind_ == Order::reverse
                       ? 31 - std::countl_zero(lanes)
                       : (std::countr_zero(std::rotr(lanes, from)) + from) % 32;
  lanes &= ~(1u << lane);
  if (lanes == 0) ready_ranks_ &= ~(1u << rank);
  return warp * kLanes + static_cast<uint32_t>(lane);
}

// Which warps go first. In a random order they change places at every barrier.
void Block::rank_warps() {
  const uint32_t warps = (threads_ + kLanes - 1) / kLanes;
  for (uint32_t r = 0; r < warps; ++r) {
    warp_of_[r] = static_cast<uint8_t>(order_kind_ == Order::reverse ? warps - 1 - r : r);
  }
  if (order_kind_ == Order::random) {
    for (uint32_t r = warps; r > 1; --r) std::swap(warp_of_[r - 1], warp_of_[random_(r)]);
  }
  for (uint32_t r = 0; r < warps; ++r) rank_of_[warp_of_[r]] = static_cast<uint8_t>(r);
}

// To the cluster, which lets other blocks go on before this one.
void Block::pause() {
  in_kernel_ = false;
  stacks_.switch_to(caller_, &paused_);
  in_kernel_ = true;
  threadIdx = launch_->thread_index[current_];
}

// Returns the thread to go on with. The cluster comes back only if there is one.
uint32_t Block::wait_for_other_blocks() {
  pause();
  if (ready_ranks_ == 0) return polling_[polling_head_++ % kMaxThreads];
  return pick();
}

// A warp may vote in a loop until another has done something. So that the other gets its turn, the
// first in rank becomes the last, and those that poll are as good as any.
void Block::pass_the_turn() {
  if (!alone_) {
    gave_way_ = true;
    pause();
    gave_way_ = false;
  }
  const uint32_t warps = (threads_ + kLanes - 1) / kLanes;
  std::rotate(warp_of_.begin(), warp_of_.begin() + 1, warp_of_.begin() + warps);
  for (; polling_head_ != polling_tail_; ++polling_head_) {
    const uint32_t t = polling_[polling_head_ % kMaxThreads];
    ready_lanes_[t / kLanes] |= 1u << t % kLanes;
  }
  ready_ranks_ = 0;
  for (uint32_t r = 0; r < warps; ++r) {
    rank_of_[warp_of_[r]] = static_cast<uint8_t>(r);
    if (ready_lanes_[warp_of_[r]] != 0) ready_ranks_ |= 1u << r;
  }
}

// ---- The life of a block ----

void Block::begin(Launch& launch, uint64_t index, Cluster& cluster, uint32_t rank) {
  launch_ = &launch;
  cluster_ = &cluster;
  rank_ = rank;
  index_ = index;
  const dim3 grid = launch.config.grid;
  block_index_ = {static_cast<uint32_t>(index % grid.x),
                  static_cast<uint32_t>(index / grid.x % grid.y),
                  static_cast<uint32_t>(index / grid.x / grid.y)};
  if constexpr (kChecking) check::block_begins(*this);
  if constexpr (kAsan) guard_arena();

  if (threads_ != launch.threads) {
    threads_ = launch.threads;
    reset_warps();
  }
  started_ = finished_ = polling_head_ = polling_tail_ = active_mask_waiters_ = 0;
  ready_ranks_ = 0;
  ready_lanes_ = {};
  barriers_ = collectives_ = 0;
  failure_ = {};  // of a block that had ended when it was found
  alone_ = launch.cluster_blocks == 1;
  random_.seed(options().seed ^ (index * 0x9e3779b97f4a7c15u));
  make_order();
  rank_warps();
  std::memset(state_.data(), static_cast<int>(State::unstarted), threads_);
  if (any_copies_) forget_copies();
  if (bulk_.any_stores || !bulk_.loads.empty()) forget_bulk_copies();
  if (warpgroups_.used) warpgroups_ = {};
  if (wgmma_groups_) wgmma_groups_->each = {};
}

void Block::resume() {
  blockIdx = block_index_;
  gridDim = launch_->config.grid;
  blockDim = launch_->config.block;
  shared_arena = arena_;
  launch_number = launch_->number;
  current_block = this;
  if constexpr (kChecking) check::block_runs(rank_);
  // The block itself says that it is in the kernel, and that it no longer is. Until it has arrived
  // on its own stack, caller_ is an old one, and a signal that made it leave would leave to there.
  if (started_ == 0) {
    start_fiber(&caller_);
  } else {
    stacks_.switch_to(paused_, &caller_);
  }
  current_block = nullptr;
}

void Block::found_stuck() { failure_ = {cudaErrorLaunchFailure, kStuck, Blamed::block, nullptr}; }

bool Block::is_stuck() const { return failure_.what == kStuck; }
bool Block::misses_threads() const { return is_stuck() || failure_.what == kAtDifferent; }

void Block::found_late() {
  if constexpr (kChecking) failure_ = {check::error_of_finding(), nullptr, Blamed::block, nullptr};
}

void Block::ended_too_early(const char* what) {
  failure_ = {cudaErrorLaunchFailure, what, Blamed::block, nullptr};
}

void Block::end() {
  launch_->barriers += barriers_;
  launch_->collectives += collectives_;
  poison_arena();
  if (has_ended()) return;
  // Threads were left where they stood. Their stacks hold nothing that must be destroyed, since
  // device code owns nothing.
  failure_ = {};
  barrier_ = {};
  gave_way_ = false;
  stacks_.give_back_all();
  reset_warps();
}

void Block::poison_arena() {
  if constexpr (kAsan) __asan_unpoison_memory_region(arena_, kArenaBytes);
  std::memset(arena_, kPoison, launch_->shared_bytes.load(std::memory_order_relaxed));
}

void Block::make_order() {
  order_kind_ = options().order;
  for (uint32_t i = 0; i < threads_; ++i) {
    order_[i] = static_cast<uint16_t>(order_kind_ == Order::reverse ? threads_ - 1 - i : i);
  }
  if (order_kind_ != Order::random) return;
  for (uint32_t i = threads_; i > 1; --i) std::swap(order_[i - 1], order_[random_(i)]);
}

// A thread may have ended without a wait, or with the block. The copies complete on a GPU as well,
// and no thread may look.
void Block::forget_copies() {
  for (AsyncCopies& copies : copies_) {
    copies.under_way.clear();
    copies.groups = 0;
    copies.last_wait = {};
  }
  any_copies_ = false;
}

void Block::forget_bulk_copies() {
  bulk_.loads.clear();
  for (PendingStores& stores : bulk_.stores) stores = {};
  bulk_.any_stores = false;
}

WgmmaGroups& Block::make_wgmma_groups() {
  if (!wgmma_groups_) wgmma_groups_ = std::make_unique<WgmmaGroups>();
  return *wgmma_groups_;
}

void Block::reset_warps() {
  for (uint32_t w = 0; w * kLanes < threads_; ++w) {
    const uint32_t lanes = std::min(kLanes, threads_ - w * kLanes);
    warps_[w].existing = lanes == kLanes ? ~0u : (1u << lanes) - 1;
    warps_[w].groups = {};
    warps_[w].out_of_place = 0;
  }
}

void Block::start_fiber(Context* left) {
  const int stack = stacks_.take();
  starting_stack_ = stack;
  stacks_.switch_to(stacks_.prepare(stack, fiber_entry), left);
}

void Block::fiber_entry() {
  current_block->stacks_.begin();
  current_block->in_kernel_ = true;
  current_block->run_threads();
}

// Runs threads one after the other on one stack for as long as no other is ready. A kernel in
// which no thread waits needs no switch at all.
void Block::run_threads() {
  current_stack_ = starting_stack_;
  uint32_t next = kStart;
  while (next == kStart) {
    current_ = order_[started_++];
    state_[current_] = State::running;
    threadIdx = launch_->thread_index[current_];
    launch_->body(launch_->frame);
    if (wgmma_groups_) thread_leaves_wgmma(*this);
    state_[current_] = State::finished;
    ++finished_;
    progress_ = progress_ + 1;
    next = finished_ == threads_ ? kNobody : pick();
  }
  // No thread comes back to this stack. It is not handed out again before the switch below, because
  // the thread that goes on has a stack already.
  stacks_.give_back(current_stack_);
  if (finished_ == threads_) leave();
  if (next == kNobody) next = wait_for_other_blocks();
  go_on(next, nullptr);
}

void Block::leave() {
  in_kernel_ = false;
  stacks_.switch_to(caller_, nullptr);
  __builtin_unreachable();
}

void Block::fail(cudaError_t code, const char* what, Blamed who, const void* address) {
  failure_ = {code, what, who, address};
  leave();
}

// ---- Barriers and collectives ----

CPU_DEVICE_HOT BarrierResult Block::barrier(const BarrierCall& call, bool predicate, Site site) {
  if (barrier_.arrived == 0) {
    barrier_.call = &call;
    barrier_.site = site;
    barrier_.count = 0;
    barrier_.mixed = false;
  } else if (barrier_.call != &call || !same_site(barrier_.site, site)) {
    barrier_.mixed = true;
  }
  barrier_.count += predicate;
  if (++barrier_.arrived < threads_) {
    wait(call.name, site, 0);
    return barrier_.result;
  }

  if (barrier_.mixed) {
    waits_here(call.name, site, 0);
    fail(cudaErrorLaunchFailure, kAtDifferent, Blamed::block);
  }
  // The result stays until the next barrier is complete, which takes all threads: no thread
  // can miss it.
  barrier_.result = {barrier_.count, barrier_.count == static_cast<int>(threads_)};
  barrier_.arrived = 0;
  ++barriers_;
  if constexpr (kChecking) {
    check::barrier_passed();
    check::xray_block_met(rank_);
  }
  progress_ = progress_ + 1;
  if (order_kind_ == Order::random) rank_warps();
  std::memset(state_.data(), static_cast<int>(State::ready), threads_);
  for (uint32_t w = 0; w * kLanes < threads_; ++w) wake(w, warps_[w].existing);
  suspend();
  return barrier_.result;
}

// The pending group of this mask, or a place for one. But if a lane waits elsewhere for `lane`, and
// would be waited for here, the group that it waits in: neither can go on.
Block::Warp::Group& Block::Warp::group_apart(uint32_t mask, uint32_t lane) {
  for (Group& group : groups) {
    const bool waits_for_lane = (group.mask >> lane & 1) != 0;
    if (group.mask != mask && waits_for_lane && (group.arrived & mask) != 0) return group;
  }
  for (Group& group : groups) {
    if (group.arrived != 0 && group.mask == mask) return group;
  }
  Group& place = groups[static_cast<size_t>(std::countr_zero(mask & existing))];
  if (place.arrived == 0) return place;
  ++out_of_place;
  return *std::ranges::find(groups, 0u, &Group::arrived);  // a lane waits in one group at most
}

CPU_DEVICE_HOT uint64_t Block::collective(const WarpCall& call, uint32_t mask, uint64_t value,
                                          uint32_t argument, Site site) {
  Warp& warp = warps_[current_ / kLanes];
  const uint32_t first = current_ / kLanes * kLanes;
  const uint32_t lane = current_ % kLanes;
  const uint32_t lanes = mask & warp.existing;
  if ((mask >> lane & 1) == 0) {
    waits_here(call.name, site, mask);  // for the report
    fail(cudaErrorLaunchFailure, "calls a collective with a mask that lacks its own lane",
         Blamed::thread);
  }

  Warp::Group* const place = &warp.groups[static_cast<size_t>(std::countr_zero(lanes))];
  const bool is_in_place = warp.out_of_place == 0 && (place->arrived == 0 || place->mask == mask);
  Warp::Group& group = is_in_place ? *place : warp.group_apart(mask, lane);
  if (group.arrived == 0) {
    group.mask = mask;
    group.call = &call;
  } else if (group.mask != mask || group.call != &call) {
    waits_here(call.name, site, mask);
    fail(cudaErrorLaunchFailure, "lanes of one warp do not agree on a call or its mask",
         Blamed::block);
  }
  warp.exchange.value[lane] = value;
  warp.exchange.argument[lane] = argument;
  group.arrived |= 1u << lane;
  if (group.arrived != lanes) {
    wait(call.name, site, mask);
    return warp.exchange.result[lane];
  }

  call.body(warp.exchange, lanes);
  if constexpr (kChecking) {
    if (&call == &kSyncwarp) check::warp_synchronised(current_ / kLanes, lanes);
    if (lanes == warp.existing) check::xray_warp_met(current_ / kLanes);
  }
  group.arrived = 0;
  if (&group != place) --warp.out_of_place;
  ++collectives_;
  progress_ = progress_ + 1;
  if (const uint32_t others = lanes & ~(1u << lane); others != 0) {
    for (uint32_t rest = others; rest; rest &= rest - 1) {
      state_[first + static_cast<uint32_t>(std::countr_zero(rest))] = State::ready;
    }
    wake(current_ / kLanes, others);
  }
  if (collectives_ % kPatience == 0) pass_the_turn();
  return warp.exchange.result[lane];
}

uint32_t Block::active_mask(Site site) {
  ++active_mask_waiters_;
  wait(kActiveMask, site, 0);
  return active_mask_[current_];
}

// When no other thread can go on, each warp's lanes that ask at the same place are active together:
// what lock-step execution would give at its most convergent.
bool Block::release_active_masks() {
  if (active_mask_waiters_ == 0) return false;
  auto asks = [this](uint32_t t) {
    return state_[t] == State::waiting && waits_[t].name == kActiveMask;
  };
  for (uint32_t first = 0; first < threads_; first += kLanes) {
    const uint32_t end = std::min(first + kLanes, threads_);
    uint32_t leader = first;
    while (leader < end && !asks(leader)) ++leader;
    uint32_t mask = 0;
    for (uint32_t t = leader; t < end; ++t) {
      if (asks(t) && same_site(waits_[t].site, waits_[leader].site)) mask |= 1u << (t - first);
    }
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
      const uint32_t t = first + static_cast<uint32_t>(std::countr_zero(rest));
      active_mask_[t] = mask;
      state_[t] = State::ready;
      --active_mask_waiters_;
    }
    if (mask) wake(first / kLanes, mask);
  }
  return true;
}

// ---- The doors through which device code comes in ----

BarrierResult block_barrier(const BarrierCall& call, bool predicate, Site site) {
  return block_of_caller(call.name).barrier(call, predicate, site);
}

uint64_t warp_collective(const WarpCall& call, uint32_t mask, uint64_t value, uint32_t argument,
                         Site site) {
  return block_of_caller(call.name).collective(call, mask, value, argument, site);
}

uint32_t active_mask(Site site) { return block_of_caller(kActiveMask).active_mask(site); }

uint32_t lane_id() { return block_of_caller("a shuffle").current_lane(); }

void yield() { block_of_caller("__nanosleep()").yield(); }

void trap() {
  block_of_caller("__trap()")
      .fail(cudaErrorLaunchFailure, "called __trap()", Block::Blamed::thread);
}

}  // namespace cpu_device

// What assert() calls: in a kernel it ends that, and not the program.
extern "C" void __assert_fail(const char* expression, const char* file, unsigned line,
                              const char* function) noexcept(true) {
  using namespace cpu_device;
  if (!current_block) {
    std::fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, expression);
    std::abort();
  }
  current_block->leaves_kernel();
  static thread_local std::string text;
  text = std::string("assert(") + expression + ") failed\n  at " + file + ":" +
         std::to_string(line) + ", in " + function;
  current_block->fail(cudaErrorAssert, text.c_str(), Block::Blamed::thread);
}
