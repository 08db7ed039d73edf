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
// Shuffles and votes order nothing.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "../block.hpp"
#include "checker.hpp"

namespace cpu_device::check {
namespace {

constexpr uint32_t kWarps = kMaxThreads / kLanes;
constexpr uint8_t kAllBytes = 0xf;  // of a word

bool is_before(const Moment& a, const Moment& b) {
  return a.epoch < b.epoch || (a.epoch == b.epoch && a.tick < b.tick);
}

using Key = uint64_t;  // block and thread
Key key(uint32_t block, uint32_t thread) { return Key{block} * kMaxThreads + thread; }

/// What is known of threads of other warps and blocks: all that the thread did until the moment,
/// and all that its block did before the epoch.
class Knowledge {
 public:
  bool empty() const { return threads_.empty(); }
  void learn(uint32_t block, uint32_t thread, Moment moment) {
    Moment& known = threads_[key(block, thread)];
    if (is_before(known, moment)) known = moment;
    uint32_t& epoch = epochs_[block];
    epoch = std::max(epoch, moment.epoch);
  }
  void learn(const Knowledge& other) {
    for (const auto& [k, moment] : other.threads_) {
      learn(static_cast<uint32_t>(k / kMaxThreads), static_cast<uint32_t>(k % kMaxThreads), moment);
    }
  }
  bool covers(const Stamp& stamp) const {
    if (threads_.empty()) return false;
    const auto epoch = epochs_.find(stamp.block);
    if (epoch == epochs_.end()) return false;
    if (stamp.epoch < epoch->second) return true;
    const auto thread = threads_.find(key(stamp.block, stamp.thread));
    return thread != threads_.end() && !is_before(thread->second, {stamp.epoch, stamp.tick});
  }

 private:
  std::unordered_map<Key, Moment> threads_;
  std::unordered_map<uint32_t, uint32_t> epochs_;  // the latest known of each block
};

struct Thread {
  uint32_t tick = 1;  // 0 is before anything that it did
  uint32_t fence_tick = 0;
  Knowledge acquired;  // in force
  Knowledge waiting;   // in force from the next fence on
};

struct State {
  uint32_t block = 0, epoch = 0;
  std::array<Thread, kMaxThreads> threads;
  // clock[w][i][j]: of warp w, the tick of lane j up to which lane i comes after it.
  std::array<std::array<std::array<uint32_t, kLanes>, kLanes>, kWarps> clock;
  Knowledge block_acquired;   // by threads that have passed a barrier since
  uint32_t fenced_epoch = 0;  // what the block did before it was followed by a fence and a barrier
  bool any_fence = false, any_acquired = false;       // in this epoch
  std::unordered_map<uintptr_t, Knowledge> released;  // by location, for the launch
};
State state;

bool is_ordered(const Stamp& earlier, uint32_t me) {
  if (earlier.block == state.block) {
    if (earlier.thread == me || earlier.epoch < state.epoch) return true;
    if (earlier.thread / kLanes == me / kLanes &&
        earlier.tick <= state.clock[me / kLanes][me % kLanes][earlier.thread % kLanes]) {
      return true;
    }
  }
  return state.threads[me].acquired.covers(earlier) || state.block_acquired.covers(earlier);
}

bool conflicts(const Stamp& earlier, uint8_t bytes, bool atomic, uint32_t me) {
  return (earlier.bytes & bytes) != 0 && !(earlier.atomic && atomic) && !is_ordered(earlier, me);
}

// Two readers of different warps are enough: whoever writes later is in another warp than one of
// them, and is ordered after both by a barrier or not at all. So are four of one warp, unless a
// __syncwarp of some lanes only has ordered just these four.
void remember_reader(Word& word, const Stamp& now) {
  Stamp* room = nullptr;
  int alive = 0;
  bool other_warp = false;
  for (Stamp& reader : word.readers) {
    const bool same_block = reader.block == now.block;
    if (reader.bytes == 0 || (same_block && reader.epoch < now.epoch)) {
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
    uint32_t victim = now.thread % Word::kReaders;
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
uint32_t current_block_number() { return state.block; }
Moment current_moment() { return {state.epoch, state.threads[current_thread()].tick}; }

void block_begins_for_races(uint64_t number, uint32_t threads) {
  state.block = static_cast<uint32_t>(number);
  state.epoch = 1;
  state.fenced_epoch = 0;
  state.any_fence = state.any_acquired = false;
  state.block_acquired = {};
  for (uint32_t t = 0; t < threads; ++t) {
    Thread& thread = state.threads[t];
    thread.tick = 1;
    thread.fence_tick = 0;
    if (!thread.acquired.empty()) thread.acquired = {};
    if (!thread.waiting.empty()) thread.waiting = {};
  }
  for (uint32_t w = 0; w * kLanes < threads; ++w) state.clock[w] = {};
}

void launch_begins_for_races() { state.released.clear(); }

void barrier_passed() {
  settle();
  ++state.epoch;
  if (state.any_fence) state.fenced_epoch = state.epoch;
  if (state.any_acquired) {
    for (Thread& thread : state.threads) {
      if (thread.acquired.empty()) continue;
      state.block_acquired.learn(thread.acquired);
      thread.acquired = {};
    }
  }
  state.any_fence = state.any_acquired = false;
}

void warp_synchronised(uint32_t warp, uint32_t lanes) {
  auto& clock = state.clock[warp];
  std::array<uint32_t, kLanes> latest{};
  Knowledge acquired;
  for (uint32_t i = 0; i < kLanes; ++i) {
    if ((lanes >> i & 1) == 0) continue;
    Thread& thread = state.threads[warp * kLanes + i];
    clock[i][i] = thread.tick++;
    for (uint32_t j = 0; j < kLanes; ++j) latest[j] = std::max(latest[j], clock[i][j]);
    if (!thread.acquired.empty()) acquired.learn(thread.acquired);
  }
  for (uint32_t i = 0; i < kLanes; ++i) {
    if ((lanes >> i & 1) == 0) continue;
    clock[i] = latest;
    if (!acquired.empty()) state.threads[warp * kLanes + i].acquired.learn(acquired);
  }
}

void fence() {
  if (!current_block) return;
  Thread& thread = state.threads[current_thread()];
  if (!thread.waiting.empty()) {
    thread.acquired.learn(thread.waiting);
    thread.waiting = {};
    state.any_acquired = true;
  }
  state.any_fence = true;
  thread.fence_tick = thread.tick++;
}

void synchronise_through(uintptr_t location) {
  const uint32_t me = current_thread();
  Thread& thread = state.threads[me];
  const bool releases = thread.fence_tick != 0 || state.fenced_epoch != 0;
  const auto found = state.released.find(location);
  if (found != state.released.end()) {
    // A fence before the atomic makes it acquire as well, one after it does so by itself.
    if (releases) {
      thread.acquired.learn(found->second);
      state.any_acquired = true;
    } else {
      thread.waiting.learn(found->second);
    }
  }
  if (!releases) return;
  Knowledge& released = found != state.released.end() ? found->second : state.released[location];
  released.learn(state.block_acquired);
  released.learn(thread.acquired);
  if (state.fenced_epoch != 0) released.learn(state.block, me, {state.fenced_epoch, 0});
  if (thread.fence_tick != 0) {
    // The thread's own, and those of its warp that it had synchronised with.
    const auto& clock = state.clock[me / kLanes][me % kLanes];
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      if (clock[lane] == 0) continue;
      released.learn(state.block, me / kLanes * kLanes + lane, {state.epoch, clock[lane]});
    }
    released.learn(state.block, me, {state.epoch, thread.fence_tick});
  }
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
  if (!writes && word.enough_epoch == state.epoch && word.enough_block == state.block) {
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
  const Stamp now{state.block,     state.epoch,   state.threads[me].tick, static_cast<uint16_t>(me),
                  bytes,           access.atomic, access.copies,          again,
                  to_place(access)};
  if (writes) {
    remember_writer(word, now);
  } else {
    remember_reader(word, now);
  }
  return nullptr;
}

}  // namespace cpu_device::check
