// Checks exercise 02.5. Not part of the task.
// Shipped: 2 slots: the product is right, but .*yours +0  0  0.*possible +1  1  1
#include <cstring>

#include "test/exercises/checks.hpp"

using matmul::Logged;
using matmul::RingStep;
using matmul::Task;

namespace {

constexpr std::int64_t kTileK = 32;

// Does again what the first thread did, and holds it against the rules of cp.async. The others do
// the same, at times of their own: only a barrier says that they have come so far.
class Replay {
 public:
  Replay(int slots, int tiles) : tiles_(tiles), slots_(static_cast<std::size_t>(slots)) {}

  /// What is wrong about a step, or nothing. Slots and tiles are counted from 0, groups from 1.
  std::string next(const Logged& logged) {
    const bool has_slot = logged.step == RingStep::copy || logged.step == RingStep::multiply;
    if (has_slot && (logged.number < 0 || logged.number >= static_cast<int>(slots_.size()))) {
      return name(logged.step) + "(" + std::to_string(logged.number) +
             "): there are only the slots 0 to " + std::to_string(slots_.size() - 1);
    }
    switch (logged.step) {
      case RingStep::copy: return copy(logged.number);
      case RingStep::commit: ++groups_; return {};
      case RingStep::wait: wait(logged.number); return {};
      case RingStep::barrier: barrier(); return {};
      case RingStep::multiply: return multiply(logged.number);
      case RingStep::none: break;
    }
    return "an entry of the log that Ring does not make";
  }
  std::string end() const {
    if (static_cast<int>(under_way_.size()) == tiles_) return {};
    return std::to_string(under_way_.size()) + " of " + std::to_string(tiles_) +
           " tiles are multiplied";
  }

  /// For each tile: how many others were under way when it was multiplied.
  const std::vector<int>& under_way() const { return under_way_; }

 private:
  enum class State { empty, under_way, landed, visible, multiplied, free };
  struct Slot {
    State state = State::empty;
    int tile = 0, group = 0;  // what lies in it, and which group brought it
  };

  static std::string name(RingStep step) { return step == RingStep::copy ? "copy" : "multiply"; }
  static std::string tile(int number) { return "tile " + std::to_string(number); }

  std::string copy(int number) {
    if (copied_ == tiles_) return {};
    Slot& slot = slots_[static_cast<std::size_t>(number)];
    const std::string what =
        tile(copied_) + " is copied to slot " + std::to_string(number) + ", where ";
    if (slot.state == State::multiplied) {
      return what + tile(slot.tile) +
             " was multiplied, and there was no barrier since: others may still be reading it";
    }
    if (slot.state != State::empty && slot.state != State::free) {
      return what + tile(slot.tile) + " lies, which has not been multiplied yet";
    }
    slot = {State::under_way, copied_++, groups_ + 1};
    return {};
  }

  void wait(int pending) {
    pending_ = pending;
    groups_at_wait_ = groups_;
    for (Slot& slot : slots_) {
      if (slot.state == State::under_way && slot.group <= groups_ - pending) {
        slot.state = State::landed;
      }
    }
  }
  void barrier() {
    for (Slot& slot : slots_) {
      if (slot.state == State::landed) slot.state = State::visible;
      if (slot.state == State::multiplied) slot.state = State::free;
    }
  }

  std::string multiply(int number) {
    Slot& slot = slots_[static_cast<std::size_t>(number)];
    const auto wanted = static_cast<int>(under_way_.size());
    const std::string what =
        tile(wanted) + " is to be multiplied next, from slot " + std::to_string(number) + ", ";
    if (slot.state == State::empty) return what + "to which nothing has been copied";
    if (slot.tile != wanted) return what + "where " + tile(slot.tile) + " lies";
    if (slot.state == State::under_way) return what + "but it may be under way: " + reason(slot);
    if (slot.state == State::landed) {
      return what +
             "and this thread's copies have landed, but there was no barrier since: those of "
             "others may be under way";
    }
    under_way_.push_back(static_cast<int>(
        std::ranges::count(slots_, State::under_way, [](const Slot& x) { return x.state; })));
    slot.state = State::multiplied;
    return {};
  }
  // Why a tile is under way.
  std::string reason(const Slot& slot) const {
    if (slot.group > groups_) return "no commit() since its copy, so that no wait() knows of it";
    if (groups_at_wait_ == 0) return "there was no wait() yet";
    const std::string group = "it belongs to group " + std::to_string(slot.group);
    if (slot.group > groups_at_wait_)
      return group + ", which was committed after the latest wait()";
    const int sure = std::max(0, groups_at_wait_ - pending_);
    return group + " of " + std::to_string(groups_at_wait_) + ", and wait<" +
           std::to_string(pending_) + ">() is sure " +
           (sure == 0 ? "of none" : "only of those up to " + std::to_string(sure));
  }

  int tiles_, copied_ = 0;
  int groups_ = 0;  // committed
  int groups_at_wait_ = 0, pending_ = 0;
  std::vector<Slot> slots_;
  std::vector<int> under_way_;
};

std::string row(const std::string& name, const std::vector<int>& numbers) {
  std::string text = "\n  " + name + std::string(10 - name.size(), ' ');
  for (const int number : numbers) {
    text += (number < 10 ? "  " : " ") + std::to_string(number);
  }
  return text;
}

void check_log(const std::vector<Logged>& log, int slots, int tiles,
               const tile::Comparison& result) {
  Replay replay(slots, tiles);
  std::string broken;
  std::size_t step = 0;
  while (broken.empty() && step < log.size() && log[step].step != RingStep::none) {
    broken = replay.next(log[step++]);
  }
  if (broken.empty()) broken = replay.end();
  REQUIRE_MESSAGE(broken.empty(), slots, " slots: ", broken);
  REQUIRE_MESSAGE(step < log.size(), slots, " slots: more than ", log.size() - 1, " steps");
  REQUIRE_MESSAGE(result.ok(), slots, " slots: ", result.message,
                  "\nHint: the ring is used as it should be. Was something else changed?");

  std::vector<int> numbers, possible;
  for (int tile = 0; tile < tiles; ++tile) {
    numbers.push_back(tile);
    possible.push_back(std::min(slots, tiles - tile) - 1);
  }
  REQUIRE_MESSAGE(replay.under_way() == possible, slots,
                  " slots: the product is right, but the ring is not as busy as it can be. Tiles "
                  "under way while one is multiplied:",
                  row("tile", numbers), row("yours", replay.under_way()),
                  row("possible", possible));
}

void check(const Task& task, int slots) {
  INFO(task.text());
  const auto count = static_cast<std::size_t>(matmul::kMostLogged);
  // 4 bytes each, like the numbers of the log.
  const tile::DeviceBuffer buffer = tile::DeviceBuffer::in_out(
      "log", tile::vector_layout(tile::DType::fp32, 2 * matmul::kMostLogged),
      std::vector<double>(2 * count, 0.0));
  const std::vector<double> c =
      run(task, [&](const matmul::Problem& p, const matmul::Buffers& buffers) {
        return matmul::stages(p, buffers, slots, static_cast<Logged*>(buffer.raw()));
      });
  const tile::Status intact = buffer.check();
  REQUIRE_MESSAGE(intact.ok(), intact.message);
  const std::vector<std::byte> bytes = buffer.download_bytes();
  std::vector<Logged> log(count);
  static_assert(sizeof(Logged) == 8);
  std::memcpy(log.data(), bytes.data(), bytes.size());
  const auto tiles = static_cast<int>((task.p.k + kTileK - 1) / kTileK);
  check_log(log, slots, tiles, tile::compare("c", c, task.right()));
}

}  // namespace

TEST_CASE("02.5 stages") {
  matmul::require_tensor_cores();
  for (int slots = 2; slots <= 4; ++slots) {
    for (const std::int64_t k : {256, 32, 64, 96, 128, 70, 0}) {
      check(Task::fp16(64, 64, k, true), slots);
    }
    check(Task::fp16(100, 130, 300, true), slots);
    check(Task::fp16(65, 3, 333, false), slots);
  }
}
