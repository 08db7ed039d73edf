// Which accesses are ordered, and which race (PTX ISA, "Memory Consistency Model").
//
// Two accesses to a byte race if at least one writes, not both are atomic, and neither is ordered
// before the other. What orders them:
//   - one thread's own program order;
//   - a barrier of the block that both threads have passed between them: each access carries the
//     number of barriers passed, its epoch;
//   - __syncwarp, among the lanes of its mask: each lane knows how many ticks of every other lane
//     come before its own (a vector clock of 32 entries);
//   - a release and an acquire: a thread that has executed a fence and then writes some location by
//     an atomic hands on what it knew at the fence to every thread that later reads the location by
//     an atomic, from that thread's next fence on, or at once if it has executed one before. A
//     fence of the block does so among the block's threads only. A barrier hands on its threads'
//     fences. The atomic itself is handed on, too, as far as accesses to its own location go;
//   - a store after an atomic update of the same location by the same thread comes after all
//     updates that this one has found there;
//   - the barrier of a cluster (cluster_clock.hpp). A relaxed arrival hands on only which mbarriers
//     its thread has initialised, and one that is restricted to shared memory also what is known of
//     that of the thread's own block;
//   - an mbarrier: a thread that has waited for a phase knows all that those threads knew that have
//     arrived in it, or had bytes counted there. By mbarrier_wait_cluster() it knows so of shared
//     memory only. A write by st.async or a load by TMA is ordered by nothing else, a store by TMA
//     only by its own thread's wait;
//   - a wait for a wgmma, by its warpgroup, for what that reads of shared memory: until then it may
//     still be read, and nothing else counts.
// Shuffles and votes order nothing.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../cluster.hpp"
#include "../wgmma.hpp"
#include "checker.hpp"
#include "cluster_clock.hpp"
#include "cpu_device/mbarrier.h"
#include "finding.hpp"

namespace cpu_device::check {
namespace {

constexpr uint32_t kWarps = kMaxThreads / kLanes;
constexpr uint8_t kAllBytes = 0xf;  // of a word

using Key = uint64_t;  // block and thread
// After threads, their flights and what their warpgroups read by wgmma.
constexpr uint32_t kEach = (kFlights + 1) * kMaxThreads;
static_assert(Stamp::kWgmma == kFlights * kMaxThreads);
// Then the same for what is known of shared memory only, and again for that of the thread's block.
constexpr uint32_t kOfShared = kEach + 1, kOfOwnShared = 2 * kOfShared;
constexpr uint32_t kThreadKeys = 3 * kOfShared;
Key key(uint32_t block, uint32_t thread) { return Key{block} * kThreadKeys + thread; }

/// Where an access was: in global memory, in shared memory, in that of the block that made it. The
/// value is the last of those tables of thread numbers that counts there.
enum class Memory : uint32_t { global = 0, shared = kOfShared, own_shared = kOfOwnShared };

/// By block and epoch: for each thread the last tick that a fence of the device had followed before
/// the barrier that ended the epoch. A thread that knows of `kEach` at this epoch knows all of it.
std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> fenced_at;

/// What is known of threads of other warps and blocks: all that the thread did until the moment,
/// and all that its block did before the epoch. Of a thread whose number is kOfShared more only
/// what it did in shared memory, and kOfOwnShared more, in that of its block.
class Knowledge {
 public:
  /// Knowledge that many threads gain at the same time is stored once for all of them. Later
  /// knowledge from the same source contains the earlier.
  struct Shared {
    uint64_t source = 0, number = 0;
    std::shared_ptr<const Knowledge> all;  // without shared parts of its own
  };

  bool empty() const { return threads_.empty() && atomics_.empty() && shared_.empty(); }
  bool knows(uint32_t block) const {
    for (uint32_t as = 0; as <= kOfOwnShared; as += kOfShared) {
      if (epochs_.contains(key(block, as))) return true;
    }
    return std::ranges::any_of(shared_, [&](const Shared& part) { return part.all->knows(block); });
  }
  void learn(uint32_t block, uint32_t thread, Moment moment) {
    Moment& known = threads_[key(block, thread)];
    if (is_before(known, moment)) known = moment;
    if (moment.epoch == Stamp::kInFlight) return;
    uint32_t& epoch = epochs_[key(block, thread / kOfShared * kOfShared)];
    epoch = std::max(epoch, moment.epoch);
  }
  void learn(const Shared& part) {
    if (!part.all) return;
    const auto same = std::ranges::find(shared_, part.source, &Shared::source);
    if (same == shared_.end()) {
      shared_.push_back(part);
    } else if (same->number < part.number) {
      *same = part;
    }
  }
  void learn(const Knowledge& other) {
    for (const auto& [k, moment] : other.threads_) {
      learn(static_cast<uint32_t>(k / kThreadKeys), static_cast<uint32_t>(k % kThreadKeys), moment);
    }
    for (const auto& [where, moment] : other.atomics_) learn(where, moment);
    for (const Shared& part : other.shared_) learn(part);
  }
  /// An atomic access to a location, by a thread; or what initialisation() gives.
  using Atomic = std::pair<uintptr_t, Key>;
  void learn(const Atomic& atomic, Moment moment) {
    Moment& known = atomics_[atomic];
    if (is_before(known, moment)) known = moment;
  }
  bool covers(const Atomic& atomic, Moment moment) const {
    if (const auto known = atomics_.find(atomic); known != atomics_.end()) {
      if (!is_before(known->second, moment)) return true;
    }
    return std::ranges::any_of(
        shared_, [&](const Shared& part) { return part.all->covers(atomic, moment); });
  }
  /// Learns all of `other`, and leaves that empty.
  void take(Knowledge& other) {
    if (other.empty()) return;
    learn(other);
    other = {};
  }
  bool covers(const Stamp& stamp, Memory where) const {
    for (const Shared& part : shared_) {
      if (part.all->covers(stamp, where)) return true;
    }
    if (threads_.empty()) return false;
    for (uint32_t as = 0; as <= static_cast<uint32_t>(where); as += kOfShared) {
      if (covers_as(as, stamp)) return true;
    }
    return false;
  }

  /// What is left of it after a wait that sees shared memory only, or an arrival that tells only of
  /// it. What a copy read elsewhere it has read when its bytes are here.
  Knowledge of_shared_memory() const {
    Knowledge left;
    for (const auto& [k, moment] : threads_) {
      const auto thread = static_cast<uint32_t>(k % kThreadKeys);
      const bool as_before = thread >= kOfShared || moment.epoch == Stamp::kInFlight;
      left.learn(static_cast<uint32_t>(k / kThreadKeys), as_before ? thread : thread + kOfShared,
                 moment);
    }
    for (const auto& [where, moment] : atomics_) {
      if (rank_at(where.first) != no_rank) left.learn(where, moment);
    }
    for (const Shared& part : shared_) left.learn(part.all->of_shared_memory());
    return left;
  }

  /// Makes this the next knowledge from this source.
  Shared share(uint64_t source) && {
    static uint64_t last = 0;
    const std::vector<Shared> parts = std::move(shared_);
    shared_.clear();
    for (const Shared& part : parts) learn(*part.all);
    return {source, ++last, std::make_shared<const Knowledge>(std::move(*this))};
  }

 private:
  struct Hash {
    size_t operator()(const Atomic& atomic) const {
      return std::hash<uint64_t>()(atomic.first * 0x9e3779b97f4a7c15u ^ atomic.second);
    }
  };
  // `as`: 0, kOfShared or kOfOwnShared.
  bool covers_as(uint32_t as, const Stamp& stamp) const {
    const auto epoch = epochs_.find(key(stamp.block, as));
    if (epoch != epochs_.end() && stamp.epoch < epoch->second) return true;
    const auto thread = threads_.find(key(stamp.block, as + stamp.thread));
    if (thread != threads_.end() && !is_before(thread->second, {stamp.epoch, stamp.tick})) {
      return true;
    }
    const auto each = threads_.find(key(stamp.block, as + kEach));
    return each != threads_.end() && each->second.epoch == stamp.epoch &&
           stamp.tick <= fenced_at.at({stamp.block, stamp.epoch})[stamp.thread];
  }

  std::unordered_map<Key, Moment> threads_;
  std::unordered_map<Atomic, Moment, Hash> atomics_;
  std::unordered_map<Key, uint32_t> epochs_;  // the latest known of each block
  std::vector<Shared> shared_;                // by source
};

/// The thread's initialisation of an mbarrier: at an odd address, where no atomic is.
Knowledge::Atomic initialisation(uintptr_t barrier, uint32_t block, uint32_t thread) {
  return {barrier + 1, key(block, thread)};
}

using Clock = std::array<uint32_t, kLanes>;  // ticks of a warp's lanes

/// What a thread had done at some time, and lanes of its warp that it had synchronised with.
struct Done {
  uint32_t epoch = 0;  // 0: nothing
  Clock ticks{};
};

constexpr Scope kScopes[] = {Scope::block, Scope::device};
template <class T>
struct ByScope {
  std::array<T, std::size(kScopes)> values{};
  T& operator[](Scope scope) { return values[static_cast<size_t>(scope)]; }
};

struct Thread {
  uint32_t tick = 1;                         // 0 is before anything that it did
  std::array<uint32_t, kFlights> flights{};  // so far, by kind
  std::vector<Moment> proxy_fences;          // of fence_async_proxy()
  ByScope<Done> fenced;        // before its last fence of this scope, or of a wider one
  Knowledge acquired;          // in force
  ByScope<Knowledge> waiting;  // in force from the next such fence on
  uint32_t phase = 0;          // of the cluster's barrier, that it has waited for
  Moment relaxed;              // its last relaxed arrival there
  std::vector<std::pair<uintptr_t, Moment>> mbarriers;  // initialised, and not told of by such
  Place call = 0;                                       // the innermost
};

/// Of a block.
struct State {
  uint32_t block = 0, epoch = 0;
  uint32_t count = 0;  // of its threads
  std::array<Thread, kMaxThreads> threads;
  // clock[w][i][j]: of warp w, the tick of lane j up to which lane i comes after it.
  std::array<std::array<Clock, kLanes>, kWarps> clock;
  // Of threads that have passed a barrier since.
  Knowledge block_acquired;
  Knowledge block_waiting;  // in force for a thread from its next fence of the device on
  // The last epoch with a fence of the device, and fenced_at of it.
  uint32_t fenced_epoch = 0;
  std::array<uint32_t, kMaxThreads> fenced;
  uint32_t phase = 0;  // of the cluster's barrier, for which a thread had waited before a barrier
  // In this epoch; waiting knowledge counts as acquired.
  bool any_fence = false, any_acquired = false, any_waited = false;
  std::unordered_map<uintptr_t, Knowledge> released;  // by location, to threads of the block
  // For told_without_fence(). Of each atomic: how many signals there were when a thread of the
  // block last updated it.
  struct Seen {
    uint32_t signals, thread, epoch;
  };
  std::unordered_map<uintptr_t, Seen> seen;
  bool has_fence = false;           // of the device, since it began
  bool stored_to_volatile = false;  // in global memory

  uint32_t phase_of(uint32_t thread) const { return std::max(threads[thread].phase, phase); }
};
std::array<std::unique_ptr<State>, kLargestCluster> states;  // by rank
State* state = nullptr;                                      // of the block that runs

std::unordered_map<uintptr_t, Knowledge> released;  // by location, to all; for the launch
/// Updates of an atomic by blocks that have stored to volatile locations and executed no fence.
struct Signals {
  struct Signal {
    uint32_t number;  // from 1
    uint32_t thread;
    Moment moment;
    Place place;
  };
  uint32_t count = 0;
  std::unordered_map<uint32_t, Signal> last;  // by block
};
std::unordered_map<uintptr_t, Signals> signals;  // by location, for the launch
ByScope<bool> any_fence;                         // for the launch
ClusterClock cluster_clock;
uint64_t last_source = 0;  // of shared knowledge

/// What is known to those who have waited for a phase of the cluster's barrier.
struct {
  uint64_t source = 0;
  uint32_t phase = 0;
  Knowledge::Shared known;
} cluster_phase;

/// What an mbarrier hands on, by where it is.
struct Handed {
  uint64_t source = 0;
  Knowledge gathered;                          // in this phase and those before
  std::array<Knowledge::Shared, 2> completed;  // up to the last complete phase of each parity
  std::array<Knowledge::Shared, 2> of_shared;  // of that what concerns shared memory, if asked for
};
std::unordered_map<uintptr_t, Handed> handed;
std::array<Knowledge, ClusterClock::kKept> acquired_before;  // by the arrived threads, by phase

/// What arrivals have told that do not tell all: of the initialisation of mbarriers, and perhaps of
/// shared memory.
struct {
  uint64_t source = 0;
  Knowledge gathered;                                        // in this phase
  std::array<Knowledge::Shared, ClusterClock::kKept> known;  // to who has waited for a phase
} told_in_part;

bool is_known(const State& to, uint32_t thread, const Stamp& earlier, Memory where) {
  if (const uint32_t phase = to.phase_of(thread); phase != 0 && !earlier.is_in_flight()) {
    const uint32_t rank = rank_of(earlier.block);
    if (rank != no_rank && cluster_clock.covers(phase, rank, earlier)) return true;
  }
  return to.threads[thread].acquired.covers(earlier, where) ||
         to.block_acquired.covers(earlier, where);
}

Memory memory_of(const Stamp& earlier, uintptr_t location) {
  const uint32_t rank = rank_at(location);
  if (rank == no_rank) return Memory::global;
  return states[rank]->block == earlier.block ? Memory::own_shared : Memory::shared;
}

bool is_ordered(const Stamp& earlier, uintptr_t location, uint32_t me) {
  if (earlier.block == state->block) {
    if (earlier.thread == me || earlier.epoch < state->epoch) return true;
    if (earlier.thread / kLanes == me / kLanes &&
        earlier.tick <= state->clock[me / kLanes][me % kLanes][earlier.thread % kLanes]) {
      return true;
    }
  }
  return is_known(*state, me, earlier, memory_of(earlier, location));
}

// Whether an atomic that the thread knows of has found this one in its location.
bool is_found_by_atomic(const Stamp& earlier, uintptr_t location, uint32_t me) {
  if (!earlier.atomic || earlier.is_in_flight()) return false;
  const Knowledge::Atomic atomic{location, key(earlier.block, earlier.thread)};
  const Moment moment{earlier.epoch, earlier.tick};
  return state->threads[me].acquired.covers(atomic, moment) ||
         state->block_acquired.covers(atomic, moment);
}

// Whether it is the initialisation of an mbarrier of which a relaxed arrival has told the thread.
// That has overwritten what its thread had done there before, and begun a tick: so what is not
// after its moment is the initialisation itself.
bool is_known_initialisation(const Stamp& earlier, uintptr_t location, uint32_t me) {
  if (earlier.atomic || earlier.is_in_flight()) return false;
  const uintptr_t barrier = location / sizeof(Mbarrier) * sizeof(Mbarrier);
  const Knowledge::Atomic init = initialisation(barrier, earlier.block, earlier.thread);
  const Moment moment{earlier.epoch, earlier.tick};
  return state->threads[me].acquired.covers(init, moment) ||
         state->block_acquired.covers(init, moment);
}

bool conflicts(const Stamp& earlier, uintptr_t location, uint8_t bytes, bool atomic, uint32_t me) {
  return (earlier.bytes & bytes) != 0 && !(earlier.atomic && atomic) &&
         !is_ordered(earlier, location, me) && !is_found_by_atomic(earlier, location, me) &&
         !is_known_initialisation(earlier, location, me);
}

// Two readers of different warps are enough: a later writer is in another warp than one of them,
// and is ordered after both by a barrier or not at all. Four readers of one warp are enough, too,
// unless a __syncwarp of some lanes has ordered just these four.
//
// In a cluster, readers of other blocks compete for the places. Its barrier orders all blocks or
// none, so that one of those not yet ordered is as good as another.
void remember_reader(Word& word, uintptr_t location, const Stamp& now) {
  const bool has_cluster = cluster_size() > 1;
  Stamp* room = nullptr;
  int alive = 0;
  bool other_warp = false;
  for (Stamp& reader : word.readers) {
    const bool same_block = reader.block == now.block;
    // No epoch orders copies in flight.
    const bool any_flies = reader.is_in_flight() || now.is_in_flight();
    if (reader.bytes == 0 || (same_block && !any_flies && reader.epoch < now.epoch) ||
        (((has_cluster && !same_block) || any_flies) &&
         is_ordered(reader, location, current_thread()))) {
      room = &reader;
      continue;
    }
    if (same_block && reader.thread == now.thread) {
      const uint8_t bytes = reader.bytes | now.bytes;
      reader = now;
      reader.bytes = bytes;
      return;
    }
    if (reader.bytes != now.bytes || reader.is_in_flight()) continue;
    ++alive;
    other_warp |= same_block && reader.thread / kLanes != now.thread / kLanes;
  }
  if (!room) {
    // The only reader of another block stays: no barrier will ever order it.
    const uint32_t rank = has_cluster ? current_block->rank() : 0;
    uint32_t victim = (now.thread + rank) % Word::kReaders;
    const auto others = std::ranges::count_if(
        word.readers, [&](const Stamp& reader) { return reader.block != now.block; });
    if (others == 1 && word.readers[victim].block != now.block) {
      victim = (victim + 1) % Word::kReaders;
    }
    if (word.readers[victim].is_in_flight()) victim = (victim + 1) % Word::kReaders;
    room = &word.readers[victim];
  }
  *room = now;
  if (now.bytes == kAllBytes && !now.is_in_flight() &&
      (other_warp || alive == Word::kReaders - 1)) {
    word.enough_epoch = now.epoch;
    word.enough_block = now.block;
  }
}

// How likely it is that a thread that knows of one of the two knows of the other as well.
int likeness(const Stamp& a, const Stamp& b) {
  if (a.block != b.block) return 0;
  return a.thread / kLanes == b.thread / kLanes ? 2 : 1;
}

// A place for a writer: if none is free, that of an earlier atomic. Its bytes have another writer,
// or four writers would have four bytes beside those of `now`.
Stamp& room_for_writer(Word& word, const Stamp& now) {
  Stamp* room = nullptr;
  int most = -1;
  for (Stamp& writer : word.writers) {
    uint8_t others = now.bytes;
    int like = likeness(writer, now);
    for (const Stamp& other : word.writers) {
      if (&other == &writer || other.bytes == 0) continue;
      others |= other.bytes;
      like = std::max(like, likeness(writer, other));
    }
    if (writer.bytes == 0) return writer;
    if ((writer.bytes & ~others) != 0 || like <= most) continue;
    room = &writer;
    most = like;
  }
  return *room;
}

void remember_writer(Word& word, uintptr_t location, const Stamp& now) {
  // Earlier accesses are ordered before this write, so a later access that would have conflicted
  // with them conflicts with the write. But atomics need no order.
  const auto forget = [&](Stamp& earlier) {
    if ((earlier.bytes & now.bytes) == 0) return;
    if (earlier.atomic && now.atomic && !is_ordered(earlier, location, current_thread())) return;
    earlier.bytes &= static_cast<uint8_t>(~now.bytes);
  };
  std::ranges::for_each(word.readers, forget);
  std::ranges::for_each(word.writers, forget);
  word.enough_epoch = 0;
  Stamp& room = room_for_writer(word, now);
  room = now;
  word.last_writer = static_cast<uint32_t>(&room - word.writers);
}

// Whether the current thread has updated the bytes by an atomic, and no thread has written since.
bool has_just_updated(const Word& word, uint8_t bytes, uint32_t me) {
  const Stamp& last = word.writers[word.last_writer];
  return last.is_update && last.block == state->block && last.thread == me &&
         (bytes & ~last.bytes) == 0;
}

}  // namespace

Place& current_call() { return state->threads[current_thread()].call; }
uint32_t current_thread() { return current_block->current_thread(); }
uint32_t current_block_number() { return state->block; }
Moment current_moment() { return {state->epoch, state->threads[current_thread()].tick}; }

Stamp current_stamp(const Access& access) {
  const uint32_t me = current_thread();
  const Thread& thread = state->threads[me];
  if (access.wgmma != 0) {
    const auto reader = static_cast<uint16_t>(Stamp::kWgmma + me / kWarpgroup * kWarpgroup);
    return {.block = state->block,
            .epoch = Stamp::kInFlight,
            .tick = access.wgmma,
            .thread = reader,
            .bytes = 1};
  }
  const auto flight = static_cast<size_t>(access.flight);
  return {.block = state->block,
          .epoch = flight != 0 ? Stamp::kInFlight : state->epoch,
          .tick = flight != 0 ? thread.flights[flight] : thread.tick,
          .thread = static_cast<uint16_t>(flight * kMaxThreads + me),
          .bytes = 1};
}

bool knows_of_begin(uint32_t rank) {
  const Thread& me = state->threads[current_thread()];
  return state->phase_of(current_thread()) != 0 || me.acquired.knows(states[rank]->block) ||
         state->block_acquired.knows(states[rank]->block);
}

bool arrived_relaxed_after(const Stamp& stamp) {
  const uint32_t rank = stamp.is_in_flight() ? no_rank : rank_of(stamp.block);
  if (rank == no_rank) return false;
  return is_before({stamp.epoch, stamp.tick}, states[rank]->threads[stamp.thread].relaxed);
}

Limit limit_of_order(const Stamp& stamp) {
  const uint32_t me = current_thread();
  if (is_known(*state, me, stamp, Memory::shared)) return Limit::shared;
  return is_known(*state, me, stamp, Memory::own_shared) ? Limit::own_shared : Limit::none;
}

bool is_known_to_block(uint32_t rank, const Stamp& stamp) {
  for (uint32_t t = 0; t < states[rank]->count; ++t) {
    if (is_known(*states[rank], t, stamp, Memory::shared)) return true;
  }
  return false;
}

void cluster_begins_for_races() {
  cluster_clock.begin();
  acquired_before = {};
  cluster_phase = {++last_source, 0, {}};
  told_in_part = {++last_source, {}, {}};
  handed.clear();
}

void block_begins_for_races(uint32_t rank, uint64_t number, uint32_t threads) {
  if (!states[rank]) states[rank] = std::make_unique<State>();
  state = states[rank].get();
  state->block = static_cast<uint32_t>(number);
  state->count = threads;
  state->epoch = 1;
  state->phase = 0;
  state->fenced_epoch = 0;
  state->any_fence = state->any_acquired = state->any_waited = false;
  state->block_acquired = {};
  state->block_waiting = {};
  state->released.clear();
  state->seen.clear();
  state->has_fence = state->stored_to_volatile = false;
  for (uint32_t t = 0; t < threads; ++t) {
    Thread& thread = state->threads[t];
    thread.tick = 1;
    thread.phase = thread.call = 0;
    thread.relaxed = {};
    thread.flights = {};
    thread.proxy_fences.clear();
    thread.mbarriers.clear();
    if (!thread.acquired.empty()) thread.acquired = {};
    for (const Scope scope : kScopes) {
      thread.fenced[scope].epoch = 0;
      if (!thread.waiting[scope].empty()) thread.waiting[scope] = {};
    }
  }
  for (uint32_t w = 0; w * kLanes < threads; ++w) state->clock[w] = {};
}

void block_runs_for_races(uint32_t rank) { state = states[rank].get(); }

void launch_begins_for_races() {
  released.clear();
  signals.clear();
  fenced_at.clear();
  any_fence = {};
}

bool only_fences_of_blocks() { return any_fence[Scope::block] && !any_fence[Scope::device]; }

void barrier_passed() {
  // In a cluster another block may still write what was read too early.
  if (cluster_size() == 1) settle();
  if (state->any_fence) {
    state->fenced.fill(0);
    for (uint32_t t = 0; t < state->count; ++t) {
      const Done& done = state->threads[t].fenced[Scope::device];
      if (done.epoch != state->epoch) continue;
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        uint32_t& tick = state->fenced[t / kLanes * kLanes + lane];
        tick = std::max(tick, done.ticks[lane]);
      }
    }
    state->fenced_epoch = state->epoch;
  }
  ++state->epoch;
  if (state->any_acquired || state->any_waited) {
    for (Thread& thread : state->threads) {
      state->phase = std::max(state->phase, thread.phase);
      state->block_acquired.take(thread.acquired);
      state->block_waiting.take(thread.waiting[Scope::device]);
    }
  }
  state->any_fence = state->any_acquired = state->any_waited = false;
}

void cluster_arrived(Arrival arrival) {
  const uint32_t me = current_thread(), rank = current_block->rank();
  Thread& thread = state->threads[me];
  // And what the lanes did with which it has synchronised: they may return instead of arriving.
  const auto for_each_lane = [&](auto tell) {
    const auto& clock = state->clock[me / kLanes][me % kLanes];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      if (clock[lane] != 0) tell(me / kLanes * kLanes + lane, {state->epoch, clock[lane]});
    }
    tell(me, {state->epoch, thread.tick++});
  };
  if (arrival != Arrival::release) {
    cluster_clock.tell(rank, me, {});
    Knowledge& told = told_in_part.gathered;
    for (const auto& [barrier, moment] : thread.mbarriers) {
      told.learn(initialisation(barrier, state->block, me), moment);
    }
    thread.mbarriers.clear();
    if (arrival == Arrival::relaxed) {
      thread.relaxed = {state->epoch, ++thread.tick};
      return;
    }
    for_each_lane([&](uint32_t lane, Moment moment) {
      told.learn(state->block, kOfOwnShared + lane, moment);
    });
    // Of what others did here it tells more than it may: of all shared memory.
    told.learn(thread.acquired.of_shared_memory());
    told.learn(state->block_acquired.of_shared_memory());
    return;
  }
  for_each_lane([&](uint32_t lane, Moment moment) { cluster_clock.tell(rank, lane, moment); });
  Knowledge& known = acquired_before[cluster_clock.phase() % acquired_before.size()];
  if (!thread.acquired.empty()) known.learn(thread.acquired);
  if (!state->block_acquired.empty()) known.learn(state->block_acquired);
}

void cluster_completed() {
  if (current_block) settle();
  const uint32_t phase = cluster_clock.phase();
  const Knowledge::Shared& before = told_in_part.known[(phase - 1) % ClusterClock::kKept];
  Knowledge::Shared& known = told_in_part.known[phase % ClusterClock::kKept];
  known = before;
  if (!told_in_part.gathered.empty()) {
    told_in_part.gathered.learn(before);
    known = std::move(told_in_part.gathered).share(told_in_part.source);
    told_in_part.gathered = {};
  }
  cluster_clock.complete();
  acquired_before[cluster_clock.phase() % acquired_before.size()] = {};
}

void cluster_waited(uint32_t phase) {
  Thread& thread = state->threads[current_thread()];
  thread.phase = phase;
  state->any_waited = true;
  thread.acquired.learn(told_in_part.known[phase % ClusterClock::kKept]);
  thread.acquired.learn(acquired_before[phase % acquired_before.size()]);
  state->any_acquired |= !thread.acquired.empty();
}

void warp_synchronised(uint32_t warp, uint32_t lanes) {
  auto& clock = state->clock[warp];
  std::array<uint32_t, kLanes> latest{};
  uint32_t phase = 0;
  Knowledge acquired;
  for (uint32_t i = 0; i < kLanes; ++i) {
    if ((lanes >> i & 1) == 0) continue;
    Thread& thread = state->threads[warp * kLanes + i];
    clock[i][i] = thread.tick++;
    phase = std::max(phase, thread.phase);
    for (uint32_t j = 0; j < kLanes; ++j) latest[j] = std::max(latest[j], clock[i][j]);
    if (!thread.acquired.empty()) acquired.learn(thread.acquired);
  }
  for (uint32_t i = 0; i < kLanes; ++i) {
    if ((lanes >> i & 1) == 0) continue;
    clock[i] = latest;
    state->threads[warp * kLanes + i].phase = phase;
    if (!acquired.empty()) state->threads[warp * kLanes + i].acquired.learn(acquired);
  }
}

namespace {

Done done_until_now(uint32_t me) {
  Done done{state->epoch, state->clock[me / kLanes][me % kLanes]};
  done.ticks[me % kLanes] = state->threads[me].tick++;
  return done;
}

}  // namespace

void fence(Scope scope) {
  const uint32_t me = current_thread();
  Thread& thread = state->threads[me];
  const Done done = done_until_now(me);
  for (const Scope s : kScopes) {
    if (s > scope) continue;
    thread.fenced[s] = done;
    thread.acquired.take(thread.waiting[s]);
  }
  any_fence[scope] = true;
  if (scope == Scope::device) {
    state->any_fence = state->has_fence = true;
    thread.acquired.learn(state->block_waiting);
  }
  state->any_acquired |= !thread.acquired.empty();
}

namespace {

// Adds what the thread knows of other warps and blocks.
void hand_on_acquired(Knowledge& told, uint32_t me) {
  told.learn(state->block_acquired);
  told.learn(state->threads[me].acquired);
  const uint32_t phase = state->phase_of(me);
  if (phase == 0) return;
  if (cluster_phase.phase != phase) {
    Knowledge all;
    for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
      for (uint32_t t = 0; t < state->count; ++t) {
        const Moment known = cluster_clock.known(phase, rank, t);
        if (known.tick != 0) all.learn(states[rank]->block, t, known);
      }
    }
    // A thread may be a phase late. Its knowledge does not contain what was shared before, and so
    // needs another source.
    if (phase < cluster_phase.phase) cluster_phase.source = ++last_source;
    cluster_phase.phase = phase;
    cluster_phase.known = std::move(all).share(cluster_phase.source);
  }
  told.learn(cluster_phase.known);
}

void hand_on(Knowledge& told, uint32_t me, const Done& done) {
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (done.ticks[lane] == 0) continue;
    told.learn(state->block, me / kLanes * kLanes + lane, {done.epoch, done.ticks[lane]});
  }
}

void hand_on_fences_before_barrier(Knowledge& told) {
  const uint32_t epoch = state->fenced_epoch;
  told.learn(state->block, kEach, {epoch, 0});
  fenced_at.try_emplace({state->block, epoch}, state->fenced.begin(), state->fenced.end());
}

}  // namespace

void stored_to_volatile() { state->stored_to_volatile = true; }

namespace {

// What told_without_fence() asks: who has updated the atomic after volatile stores.
void signal_without_fence(uintptr_t location, const Access& access, uint32_t me) {
  Thread& thread = state->threads[me];
  if (state->stored_to_volatile && !state->has_fence) {
    Signals& here = signals[location];
    here.last[state->block] = {++here.count, me, {state->epoch, thread.tick++}, access.place};
  }
  const auto found = signals.find(location);
  if (found != signals.end()) state->seen[location] = {found->second.count, me, state->epoch};
}

}  // namespace

const Stamp* told_without_fence(const Word& word, uintptr_t location, uint8_t bytes,
                                Place* atomic) {
  const uint32_t me = current_thread();
  for (const auto& [signal_location, seen] : state->seen) {
    // A flag that is waited for tells of itself.
    if (signal_location == location) continue;
    if (seen.thread != me && seen.epoch == state->epoch) continue;
    const Signals& here = signals.at(signal_location);
    for (const Stamp& writer : word.writers) {
      if ((writer.bytes & bytes) == 0 || !writer.is_volatile || writer.block == state->block)
        continue;
      const auto signal = here.last.find(writer.block);
      if (signal == here.last.end() || signal->second.number > seen.signals) continue;
      const Moment& moment = signal->second.moment;
      const bool is_before_signal =
          writer.epoch < moment.epoch ||
          (writer.thread == signal->second.thread && writer.tick <= moment.tick);
      if (!is_before_signal || is_ordered(writer, location, me)) continue;
      *atomic = signal->second.place;
      return &writer;
    }
  }
  return nullptr;
}

void synchronise_through(const Access& access) {
  const uintptr_t location = access.address;
  const Kind kind = access.kind;
  const uint32_t me = current_thread();
  Thread& thread = state->threads[me];
  for (const Scope scope : kScopes) {
    auto& all = scope == Scope::block ? state->released : released;
    const Done& fenced = thread.fenced[scope];
    // Within the block the barrier has published it.
    const bool by_barrier = scope == Scope::device && state->fenced_epoch != 0;
    const bool has_fence = fenced.epoch != 0 || by_barrier;
    const auto found = all.find(location);
    if (kind != Kind::write && found != all.end()) {
      // A fence before the atomic counts as one after it, as in NVIDIA's examples.
      (has_fence ? thread.acquired : thread.waiting[scope]).learn(found->second);
      state->any_acquired = true;
    }
    if (kind == Kind::read || !has_fence) continue;
    Knowledge& told = found != all.end() ? found->second : all[location];
    hand_on_acquired(told, me);
    if (by_barrier) hand_on_fences_before_barrier(told);
    if (fenced.epoch != 0) hand_on(told, me, fenced);
    for (uintptr_t word = location / 4 * 4; word < location + access.bytes; word += 4) {
      told.learn({word, key(state->block, me)}, {state->epoch, thread.tick});
    }
  }
  if (kind == Kind::update) signal_without_fence(location, access, me);
}

void mbarrier_initialised(uintptr_t barrier) {
  handed[barrier] = {++last_source, {}, {}, {}};
  Thread& thread = state->threads[current_thread()];
  thread.mbarriers.emplace_back(barrier, Moment{state->epoch, thread.tick++});
}

namespace {

void learn_of_flights(Knowledge& knowledge, Flight flight, uint32_t count) {
  if (count == 0) return;
  const uint32_t thread = static_cast<uint32_t>(flight) * kMaxThreads + current_thread();
  knowledge.learn(state->block, thread, {Stamp::kInFlight, count - 1});
}

}  // namespace

void mbarrier_signalled(uintptr_t barrier, Signal signal) {
  const uint32_t me = current_thread();
  Knowledge& told = handed[barrier].gathered;
  if (signal != Signal::load) {
    hand_on_acquired(told, me);
    hand_on(told, me, done_until_now(me));
  }
  if (signal == Signal::arrival) return;
  const Flight flight = signal == Signal::load ? Flight::load : Flight::st_async;
  learn_of_flights(told, flight, ++state->threads[me].flights[static_cast<size_t>(flight)]);
}

void store_begins() {
  auto& flights = state->threads[current_thread()].flights;
  ++flights[static_cast<size_t>(Flight::read_of_store)];
  ++flights[static_cast<size_t>(Flight::write_of_store)];
}

void stores_waited_for(uint32_t read, uint32_t done) {
  Knowledge& acquired = state->threads[current_thread()].acquired;
  learn_of_flights(acquired, Flight::read_of_store, read);
  learn_of_flights(acquired, Flight::write_of_store, done);
  state->any_acquired |= read > 0;
}

void fence_async_proxy() {
  Thread& thread = state->threads[current_thread()];
  thread.proxy_fences.push_back({state->epoch, thread.tick++});
}

const Stamp* unfenced_writer(const Word& word, uintptr_t location, uint8_t bytes) {
  for (const Stamp& writer : word.writers) {
    if ((writer.bytes & bytes) == 0 || writer.is_in_flight()) continue;
    const uint32_t rank = rank_of(writer.block);
    if (rank == no_rank) continue;
    // The first fence after the write, which the current thread must know of.
    const auto& fences = states[rank]->threads[writer.thread].proxy_fences;
    const auto fence =
        std::ranges::lower_bound(fences, Moment{writer.epoch, writer.tick},
                                 [](const Moment& a, const Moment& b) { return is_before(a, b); });
    if (fence == fences.end()) return &writer;
    Stamp fenced = writer;
    fenced.epoch = fence->epoch;
    fenced.tick = fence->tick;
    if (!is_ordered(fenced, location, current_thread())) return &writer;
  }
  return nullptr;
}

// A thread that waits for a later phase only knows of this one too: all signals are updates of one
// location.
void mbarrier_completed(uintptr_t barrier, uint32_t parity) {
  Handed& here = handed[barrier];
  here.completed[parity] = std::move(here.gathered).share(here.source);
  here.gathered = {};
  here.gathered.learn(here.completed[parity]);
}

void mbarrier_waited(uintptr_t barrier, uint32_t parity, bool sees_global_memory) {
  Handed& here = handed[barrier];
  const Knowledge::Shared& all = here.completed[parity];
  Knowledge::Shared& shared = here.of_shared[parity];
  if (!sees_global_memory && all.all && shared.number != all.number) {
    // From another source than all of it.
    shared = {~all.source, all.number,
              std::make_shared<const Knowledge>(all.all->of_shared_memory())};
  }
  state->threads[current_thread()].acquired.learn(sees_global_memory ? all : shared);
  state->any_acquired = true;
}

void wgmma_done(uint32_t number) {
  const uint32_t first = current_thread() / kWarpgroup * kWarpgroup;
  for (uint32_t t = first; t < first + kWarpgroup; ++t) {
    Knowledge& acquired = state->threads[t].acquired;
    acquired.learn(state->block, t, {state->epoch, 0});
    acquired.learn(state->block, Stamp::kWgmma + first, {Stamp::kInFlight, number});
  }
  state->any_acquired = true;
}

namespace {

bool is_of_next_turn(const Word& word, uint8_t bytes, const Access& access) {
  const uint32_t me = current_thread();
  return std::ranges::any_of(word.writers, [&](const Stamp& writer) {
    if ((writer.bytes & bytes) == 0 || writer.block != state->block) return false;
    if (access.wait != 0) return writer.thread == me && writer.next_turn;  // as at its issue
    return writer.epoch < state->epoch && same_line(writer.place, access.place);
  });
}

bool has_read(const Word& word, uint8_t bytes) {
  return std::ranges::any_of(word.readers, [&](const Stamp& reader) {
    return (reader.bytes & bytes) != 0 && reader.block == state->block &&
           reader.thread == current_thread() && reader.epoch == state->epoch;
  });
}

}  // namespace

void forget(Word& word, const Stamp& earlier, uint8_t bytes) {
  const auto forget_in = [&](std::span<Stamp> stamps) {
    for (Stamp& stamp : stamps) {
      if (stamp.block == earlier.block && stamp.thread == earlier.thread &&
          stamp.atomic == earlier.atomic) {
        stamp.bytes &= static_cast<uint8_t>(~bytes);
      }
    }
  };
  forget_in(word.writers);
  forget_in(word.readers);
}

const Stamp* conflict(Word& word, uintptr_t location, uint32_t tag, uint8_t bytes,
                      const Access& access, bool again, bool* earlier_was_write) {
  if (word.tag != tag) {
    word = {};
    word.tag = tag;
  }
  const uint32_t me = current_thread();
  static Stamp earlier;  // outlives the word's change
  const bool follows_update =
      access.kind == Kind::write && !access.atomic && has_just_updated(word, bytes, me);
  for (const Stamp& writer : word.writers) {
    if (!conflicts(writer, location, bytes, access.atomic, me)) continue;
    if (follows_update && writer.is_update) continue;
    *earlier_was_write = true;
    earlier = writer;
    return &earlier;
  }
  const bool writes = access.kind != Kind::read;
  if (!writes && access.flight == Flight::none && access.wgmma == 0 &&
      word.enough_epoch == state->epoch && word.enough_block == state->block) {
    return nullptr;
  }
  if (writes) {
    for (const Stamp& reader : word.readers) {
      if (!conflicts(reader, location, bytes, access.atomic, me)) continue;
      *earlier_was_write = false;
      earlier = reader;
      earlier.next_turn = is_of_next_turn(word, bytes, access);
      return &earlier;
    }
  }
  Stamp now = current_stamp(access);
  now.bytes = bytes;
  now.atomic = access.atomic;
  now.copied = access.copies;
  now.again = again;
  now.is_volatile = access.is_volatile;
  now.compares = access.compares;
  now.is_update = access.atomic && access.kind == Kind::update && !access.of_mbarrier;
  now.place = access.wait != 0 ? with_wait(access.place, access.wait) : access.place;
  if (writes) {
    now.updates = has_read(word, bytes);
    now.next_turn = is_of_next_turn(word, bytes, access);
    remember_writer(word, location, now);
  } else {
    remember_reader(word, location, now);
  }
  return nullptr;
}

}  // namespace cpu_device::check
