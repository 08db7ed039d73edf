// Which accesses are ordered, and which race (PTX ISA, "Memory Consistency Model").
//
// Two accesses to a byte race if at least one writes, not both are atomic, and neither is ordered
// before the other. What orders them:
//   - one thread's own program order;
//   - a barrier of the block that both threads have passed between them: each access carries the
//     number of barriers passed, its epoch;
//   - __syncwarp, among the lanes of its mask: each lane knows how many ticks of every other lane
//     lie behind it (a vector clock of 32 entries);
//   - a release and an acquire: a thread that has executed a fence and then an atomic on some
//     location hands on all it knows to whoever touches the location by an atomic later. Without a
//     fence on the reader's side it counts from the reader's next fence on.
//   - the barrier of a cluster (cluster_clock.hpp);
//   - an mbarrier: who has waited for a phase knows all that those knew who have arrived in it, or
//     had bytes counted there. For a write by st.async nothing else counts.
// Shuffles and votes order nothing.
#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../cluster.hpp"
#include "checker.hpp"
#include "cluster_clock.hpp"
#include "finding.hpp"

namespace cpu_device::check {
namespace {

constexpr uint32_t kWarps = kMaxThreads / kLanes;
constexpr uint8_t kAllBytes = 0xf;  // of a word

using Key = uint64_t;                              // block and thread
constexpr uint32_t kThreadKeys = 2 * kMaxThreads;  // threads, and then what each sends by st.async
Key key(uint32_t block, uint32_t thread) { return Key{block} * kThreadKeys + thread; }

/// What is known of threads of other warps and blocks: all that the thread did until the moment,
/// and all that its block did before the epoch.
class Knowledge {
 public:
  /// What very many threads learn at one time is kept once for all of them. What comes later from
  /// the same source contains what came before.
  struct Shared {
    uint64_t source = 0, number = 0;
    std::shared_ptr<const Knowledge> all;  // without shared parts of its own
  };

  bool empty() const { return threads_.empty() && shared_.empty(); }
  bool knows(uint32_t block) const {
    return epochs_.contains(block) ||
           std::ranges::any_of(shared_, [&](const Shared& part) { return part.all->knows(block); });
  }
  void learn(uint32_t block, uint32_t thread, Moment moment) {
    Moment& known = threads_[key(block, thread)];
    if (is_before(known, moment)) known = moment;
    if (moment.epoch == Stamp::kInFlight) return;
    uint32_t& epoch = epochs_[block];
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
    for (const Shared& part : other.shared_) learn(part);
  }
  bool covers(const Stamp& stamp) const {
    for (const Shared& part : shared_) {
      if (part.all->covers(stamp)) return true;
    }
    if (threads_.empty()) return false;
    const auto epoch = epochs_.find(stamp.block);
    if (epoch == epochs_.end()) return false;
    if (stamp.epoch < epoch->second) return true;
    const auto thread = threads_.find(key(stamp.block, stamp.thread));
    return thread != threads_.end() && !is_before(thread->second, {stamp.epoch, stamp.tick});
  }

  /// To be told as what comes next from this source.
  Shared share(uint64_t source) && {
    static uint64_t last = 0;
    const std::vector<Shared> parts = std::move(shared_);
    shared_.clear();
    for (const Shared& part : parts) learn(*part.all);
    return {source, ++last, std::make_shared<const Knowledge>(std::move(*this))};
  }

 private:
  std::unordered_map<Key, Moment> threads_;
  std::unordered_map<uint32_t, uint32_t> epochs_;  // the latest known of each block
  std::vector<Shared> shared_;                     // by source
};

struct Thread {
  uint32_t tick = 1;  // 0 is before anything that it did
  uint32_t fence_tick = 0;
  uint32_t sends = 0;  // by st.async, that mbarriers have counted
  Knowledge acquired;  // in force
  Knowledge waiting;   // in force from the next fence on
  uint32_t phase = 0;  // of the cluster's barrier, that it has waited for
};

/// Of a block.
struct State {
  uint32_t block = 0, epoch = 0;
  uint32_t count = 0;  // of its threads
  std::array<Thread, kMaxThreads> threads;
  // clock[w][i][j]: of warp w, the tick of lane j up to which lane i comes after it.
  std::array<std::array<std::array<uint32_t, kLanes>, kLanes>, kWarps> clock;
  Knowledge block_acquired;   // by threads that have passed a barrier since
  uint32_t fenced_epoch = 0;  // what the block did before it was followed by a fence and a barrier
  uint32_t phase = 0;  // of the cluster's barrier, that a thread had waited for before a barrier
  bool any_fence = false, any_acquired = false, any_waited = false;  // in this epoch

  uint32_t phase_of(uint32_t thread) const { return std::max(threads[thread].phase, phase); }
};
std::array<std::unique_ptr<State>, kLargestCluster> states;  // by rank
State* state = nullptr;                                      // of the block that runs

std::unordered_map<uintptr_t, Knowledge> released;  // by location, for the launch
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
  std::array<Knowledge::Shared, 2> completed;  // by then, for the last phase of either parity
};
std::unordered_map<uintptr_t, Handed> handed;
std::array<Knowledge, ClusterClock::kKept> acquired_before;  // by who has arrived, by phase

bool is_known(const State& to, uint32_t thread, const Stamp& earlier) {
  if (const uint32_t phase = to.phase_of(thread); phase != 0 && !earlier.is_in_flight()) {
    const uint32_t rank = rank_of(earlier.block);
    if (rank != no_rank && cluster_clock.covers(phase, rank, earlier)) return true;
  }
  return to.threads[thread].acquired.covers(earlier) || to.block_acquired.covers(earlier);
}

bool is_ordered(const Stamp& earlier, uint32_t me) {
  if (earlier.block == state->block) {
    if (earlier.thread == me || earlier.epoch < state->epoch) return true;
    if (earlier.thread / kLanes == me / kLanes &&
        earlier.tick <= state->clock[me / kLanes][me % kLanes][earlier.thread % kLanes]) {
      return true;
    }
  }
  return is_known(*state, me, earlier);
}

bool conflicts(const Stamp& earlier, uint8_t bytes, bool atomic, uint32_t me) {
  return (earlier.bytes & bytes) != 0 && !(earlier.atomic && atomic) && !is_ordered(earlier, me);
}

// Two readers of different warps are enough: whoever writes later is in another warp than one of
// them, and is ordered after both by a barrier or not at all. So are four of one warp, unless a
// __syncwarp of some lanes only has ordered just these four.
//
// In a cluster, readers of other blocks compete for the places. Its barrier orders all blocks or
// none, so that one of those not yet ordered is as good as another.
void remember_reader(Word& word, const Stamp& now) {
  const bool has_cluster = cluster_size() > 1;
  Stamp* room = nullptr;
  int alive = 0;
  bool other_warp = false;
  for (Stamp& reader : word.readers) {
    const bool same_block = reader.block == now.block;
    if (reader.bytes == 0 || (same_block && reader.epoch < now.epoch) ||
        (has_cluster && !same_block && is_ordered(reader, now.thread))) {
      room = &reader;
      continue;
    }
    if (same_block && reader.thread == now.thread) {
      const uint8_t bytes = reader.bytes | now.bytes;
      reader = now;
      reader.bytes = bytes;
      return;
    }
    if (reader.bytes != now.bytes) continue;
    ++alive;
    other_warp |= same_block && reader.thread / kLanes != now.thread / kLanes;
  }
  if (!room) {
    // The only one of another block stays: no barrier will ever order it.
    const uint32_t rank = has_cluster ? current_block->rank() : 0;
    uint32_t victim = (now.thread + rank) % Word::kReaders;
    const auto others = std::ranges::count_if(
        word.readers, [&](const Stamp& reader) { return reader.block != now.block; });
    if (others == 1 && word.readers[victim].block != now.block) {
      victim = (victim + 1) % Word::kReaders;
    }
    room = &word.readers[victim];
  }
  *room = now;
  if (now.bytes == kAllBytes && (other_warp || alive == Word::kReaders - 1)) {
    word.enough_epoch = now.epoch;
    word.enough_block = now.block;
  }
}

void remember_writer(Word& word, const Stamp& now) {
  // What was read before is ordered before this write, so a later access that would have conflicted
  // with the read conflicts with the write.
  for (Stamp& reader : word.readers) reader.bytes &= static_cast<uint8_t>(~now.bytes);
  word.enough_epoch = 0;
  Stamp* room = nullptr;
  for (Stamp& writer : word.writers) {
    writer.bytes &= static_cast<uint8_t>(~now.bytes);
    if (writer.bytes == 0) room = &writer;
  }
  *(room ? room : &word.writers[0]) = now;
}

}  // namespace

uint32_t current_thread() { return current_block->current_thread(); }
uint32_t current_block_number() { return state->block; }
Moment current_moment() { return {state->epoch, state->threads[current_thread()].tick}; }

Stamp current_stamp(const Access& access) {
  const uint32_t me = current_thread();
  const Thread& thread = state->threads[me];
  return {.block = state->block,
          .epoch = access.sends ? Stamp::kInFlight : state->epoch,
          .tick = access.sends ? thread.sends : thread.tick,
          .thread = static_cast<uint16_t>(access.sends ? kMaxThreads + me : me),
          .bytes = 1};
}

bool knows_of_begin(uint32_t rank) {
  const Thread& me = state->threads[current_thread()];
  return state->phase_of(current_thread()) != 0 || me.acquired.knows(states[rank]->block) ||
         state->block_acquired.knows(states[rank]->block);
}

bool is_known_to_block(uint32_t rank, const Stamp& stamp) {
  for (uint32_t t = 0; t < states[rank]->count; ++t) {
    if (is_known(*states[rank], t, stamp)) return true;
  }
  return false;
}

void cluster_begins_for_races() {
  cluster_clock.begin();
  acquired_before = {};
  cluster_phase = {++last_source, 0, {}};
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
  for (uint32_t t = 0; t < threads; ++t) {
    Thread& thread = state->threads[t];
    thread.tick = 1;
    thread.fence_tick = thread.sends = 0;
    thread.phase = 0;
    if (!thread.acquired.empty()) thread.acquired = {};
    if (!thread.waiting.empty()) thread.waiting = {};
  }
  for (uint32_t w = 0; w * kLanes < threads; ++w) state->clock[w] = {};
}

void block_runs_for_races(uint32_t rank) { state = states[rank].get(); }

void launch_begins_for_races() { released.clear(); }

void barrier_passed() {
  // In a cluster another block may still write what was read too early.
  if (cluster_size() == 1) settle();
  ++state->epoch;
  if (state->any_fence) state->fenced_epoch = state->epoch;
  if (state->any_acquired || state->any_waited) {
    for (Thread& thread : state->threads) {
      state->phase = std::max(state->phase, thread.phase);
      if (thread.acquired.empty()) continue;
      state->block_acquired.learn(thread.acquired);
      thread.acquired = {};
    }
  }
  state->any_fence = state->any_acquired = state->any_waited = false;
}

void cluster_arrived() {
  const uint32_t me = current_thread(), rank = current_block->rank();
  Thread& thread = state->threads[me];
  // And what lanes did that it has synchronised with: they may return instead of arriving.
  const auto& clock = state->clock[me / kLanes][me % kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (clock[lane] == 0) continue;
    cluster_clock.tell(rank, me / kLanes * kLanes + lane, {state->epoch, clock[lane]});
  }
  cluster_clock.tell(rank, me, {state->epoch, thread.tick++});
  Knowledge& known = acquired_before[cluster_clock.phase() % acquired_before.size()];
  if (!thread.acquired.empty()) known.learn(thread.acquired);
  if (!state->block_acquired.empty()) known.learn(state->block_acquired);
}

void cluster_completed() {
  if (current_block) settle();
  cluster_clock.complete();
  acquired_before[cluster_clock.phase() % acquired_before.size()] = {};
}

void cluster_waited(uint32_t phase) {
  Thread& thread = state->threads[current_thread()];
  thread.phase = phase;
  state->any_waited = true;
  const Knowledge& known = acquired_before[phase % acquired_before.size()];
  if (known.empty()) return;
  thread.acquired.learn(known);
  state->any_acquired = true;
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

void fence() {
  if (!current_block) return;
  Thread& thread = state->threads[current_thread()];
  if (!thread.waiting.empty()) {
    thread.acquired.learn(thread.waiting);
    thread.waiting = {};
    state->any_acquired = true;
  }
  state->any_fence = true;
  thread.fence_tick = thread.tick++;
}

namespace {

// What the thread knows of other warps and blocks.
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
    // A thread may be a phase behind. What it knows does not contain what was shared before, and so
    // comes from another source.
    if (phase < cluster_phase.phase) cluster_phase.source = ++last_source;
    cluster_phase.phase = phase;
    cluster_phase.known = std::move(all).share(cluster_phase.source);
  }
  told.learn(cluster_phase.known);
}

// What it has done itself up to the tick, and lanes of its warp that it had synchronised with.
void hand_on_own(Knowledge& told, uint32_t me, uint32_t tick) {
  const auto& clock = state->clock[me / kLanes][me % kLanes];
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (clock[lane] == 0) continue;
    told.learn(state->block, me / kLanes * kLanes + lane, {state->epoch, clock[lane]});
  }
  told.learn(state->block, me, {state->epoch, tick});
}

}  // namespace

void synchronise_through(uintptr_t location) {
  const uint32_t me = current_thread();
  Thread& thread = state->threads[me];
  const bool releases = thread.fence_tick != 0 || state->fenced_epoch != 0;
  const auto found = released.find(location);
  if (found != released.end()) {
    // A fence before the atomic makes it acquire as well, one after it does so by itself.
    if (releases) {
      thread.acquired.learn(found->second);
      state->any_acquired = true;
    } else {
      thread.waiting.learn(found->second);
    }
  }
  if (!releases) return;
  Knowledge& told = found != released.end() ? found->second : released[location];
  hand_on_acquired(told, me);
  if (state->fenced_epoch != 0) told.learn(state->block, me, {state->fenced_epoch, 0});
  if (thread.fence_tick != 0) hand_on_own(told, me, thread.fence_tick);
}

void mbarrier_initialised(uintptr_t barrier) { handed[barrier] = {++last_source, {}, {}}; }

void mbarrier_signalled(uintptr_t barrier, bool sends) {
  const uint32_t me = current_thread();
  Thread& thread = state->threads[me];
  Knowledge& told = handed[barrier].gathered;
  hand_on_acquired(told, me);
  hand_on_own(told, me, thread.tick++);
  if (sends) told.learn(state->block, kMaxThreads + me, {Stamp::kInFlight, thread.sends++});
}

// Who waits for a later phase only knows of this one too: all signals are updates of one location.
void mbarrier_completed(uintptr_t barrier, uint32_t parity) {
  Handed& here = handed[barrier];
  here.completed[parity] = std::move(here.gathered).share(here.source);
  here.gathered = {};
  here.gathered.learn(here.completed[parity]);
}

void mbarrier_waited(uintptr_t barrier, uint32_t parity) {
  state->threads[current_thread()].acquired.learn(handed[barrier].completed[parity]);
  state->any_acquired = true;
}

const Stamp* conflict(Word& word, uint32_t tag, uint8_t bytes, const Access& access, bool again,
                      bool* earlier_was_write) {
  if (word.tag != tag) {
    word = {};
    word.tag = tag;
  }
  const uint32_t me = current_thread();
  static Stamp earlier;  // outlives the word's change
  for (const Stamp& writer : word.writers) {
    if (!conflicts(writer, bytes, access.atomic, me)) continue;
    *earlier_was_write = true;
    earlier = writer;
    return &earlier;
  }
  const bool writes = access.kind != Kind::read;
  if (!writes && word.enough_epoch == state->epoch && word.enough_block == state->block) {
    return nullptr;
  }
  if (writes) {
    for (const Stamp& reader : word.readers) {
      if (!conflicts(reader, bytes, access.atomic, me)) continue;
      *earlier_was_write = false;
      earlier = reader;
      return &earlier;
    }
  }
  Stamp now = current_stamp(access);
  now.bytes = bytes;
  now.atomic = access.atomic;
  now.copied = access.copies;
  now.again = again;
  now.place = to_place(access);
  if (writes) {
    remember_writer(word, now);
  } else {
    remember_reader(word, now);
  }
  return nullptr;
}

}  // namespace cpu_device::check
