// Checks exercise 02.1. Not part of the task.
// Shipped: column access, .*: 32 threads in bank 0: 32 wavefronts, 1 is possible
#include <array>
#include <map>
#include <set>

#include "test/exercises/checks.hpp"

using matmul::tile_slot;

namespace {

constexpr int kTile = 32;  // and the threads of a warp
constexpr int kBanks =
    32;  // of 4 bytes, on every card: CUDA C++ Programming Guide, "Shared Memory"

// What one access of a warp costs. Threads that want the same float are served together, those that
// want different ones of the same bank one after the other.
struct Access {
  int wavefronts = 0;  // different floats in the busiest bank
  int bank = 0;        // this one

  explicit Access(const std::array<int, kTile>& slots) {
    std::array<std::set<int>, kBanks> wanted;
    for (const int slot : slots) wanted[static_cast<std::size_t>(slot % kBanks)].insert(slot);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const int here = static_cast<int>(wanted[i].size());
      if (here <= wavefronts) continue;
      wavefronts = here;
      bank = static_cast<int>(i);
    }
  }
  std::string text() const {
    if (wavefronts == 1) return "32 threads in 32 banks: 1 wavefront";
    const std::string count = std::to_string(wavefronts);
    return count + " threads in bank " + std::to_string(bank) + ": " + count +
           " wavefronts, 1 is possible";
  }
};

// The most expensive row, or column, of the tile.
template <class Slot>
Access worst(Slot slot) {
  Access found{{}};
  for (int line = 0; line < kTile; ++line) {
    std::array<int, kTile> slots;
    for (int thread = 0; thread < kTile; ++thread) {
      slots[static_cast<std::size_t>(thread)] = slot(line, thread);
    }
    const Access access(slots);
    if (line == 0 || access.wavefronts > found.wavefronts) found = access;
  }
  return found;
}

std::string element(int row, int col) {
  return "(" + std::to_string(row) + ", " + std::to_string(col) + ")";
}

void check_slots() {
  const int slots = matmul::tile_slots();
  std::map<int, std::string> taken;
  for (int row = 0; row < kTile; ++row) {
    for (int col = 0; col < kTile; ++col) {
      const int slot = tile_slot(row, col);
      REQUIRE_MESSAGE((slot >= 0 && slot < slots), "the element ", element(row, col), " has slot ",
                      slot, ", but b_smem has the slots 0 to ", slots - 1, ": is kSlots right?");
      const auto entry = taken.emplace(slot, element(row, col));
      REQUIRE_MESSAGE(entry.second, "the elements ", entry.first->second, " and ",
                      element(row, col), " share slot ", slot, ": one overwrites the other");
    }
  }
}

void check_result() {
  const std::int64_t extents[][3] = {{32, 32, 32}, {1, 1, 1},    {33, 31, 65},
                                     {40, 70, 17}, {5, 113, 97}, {64, 64, 100}};
  for (const auto& extent : extents) {
    const matmul::Task task(extent[0], extent[1], extent[2], true);
    INFO(task.text());
    tile::require_right("c", run(task, matmul::times_transposed), task.right(),
                        [] { return "\nHint: does every access to b_smem go through slot()?"; });
  }
}

void check_banks() {
  const Access row = worst([](int line, int thread) { return tile_slot(line, thread); });
  const Access column = worst([](int line, int thread) { return tile_slot(thread, line); });
  REQUIRE_MESSAGE((row.wavefronts == 1 && column.wavefronts == 1),
                  "the result is right, but threads wait for each other. Computed from slot(), not "
                  "measured:\n  row access, when the tile is stored: ",
                  row.text(), "\n  column access, when it is read: ", column.text());
}

}  // namespace

TEST_CASE("02.1 a bank conflict") {
  check_slots();  // before the kernel uses them
  check_result();
  check_banks();
}
