// Checks exercise 05.4. Not part of the task.
// Shipped: every block takes itself for the first one
#include <array>
#include <functional>

#include "test/exercises/checks.hpp"

using flash_attention::Mask;
using flash_attention::Values;
using tile::Expected;

namespace {

constexpr int kQueries = 16, kKeys = 32;  // of a tile

struct Tiles {
  const Mask& mask;
  int queries() const { return (mask.queries + kQueries - 1) / kQueries; }
  int keys() const { return (mask.keys + kKeys - 1) / kKeys; }
  /// Asks every query of the tile about every key.
  bool adds(int query_tile, int key_tile) const {
    for (int i = 0; i < kQueries * kKeys; ++i) {
      if (mask.sees(query_tile * kQueries + i / kKeys, key_tile * kKeys + i % kKeys)) return true;
    }
    return false;
  }
  int last_query(int query_tile) const {
    return std::min((query_tile + 1) * kQueries, mask.queries) - 1;
  }
};

/// The turn of a block that adds, or what it would be by mistake.
using TurnOf = std::function<int(const Tiles&, int query_tile, int key_tile)>;

Values turns(const Mask& mask, const TurnOf& turn_of) {
  const Tiles tiles{mask};
  Values all;
  for (int i = 0; i < tiles.queries(); ++i) {
    for (int j = 0; j < tiles.keys(); ++j)
      all.push_back(tiles.adds(i, j) ? turn_of(tiles, i, j) : -1);
  }
  return all;
}

int later(const Tiles& tiles, int query_tile, int key_tile) {
  int count = 0;
  for (int j = key_tile + 1; j < tiles.keys(); ++j) count += tiles.adds(query_tile, j);
  return count;
}

struct Guess {
  const char* explanation;
  TurnOf turn_of;
};
const Guess kGuesses[] = {
    {"every block takes itself for the first one", [](const Tiles&, int, int) { return 0; }},
    {"counted from the first keys: blocks begin with the last ones",
     [](const Tiles& t, int i, int j) { return j - t.mask.first_key(i * kQueries) / kKeys; }},
    {"counted from the last tile of all keys. Its block does not add to queries that do not see "
     "it, "
     "and their counter would never come so far",
     [](const Tiles& t, int, int j) { return t.keys() - 1 - j; }},
    {"counted from the last key that the first query of the tile sees: the others see further",
     [](const Tiles& t, int i, int j) { return (t.mask.end_key(i * kQueries) - 1) / kKeys - j; }},
    {"in the last tile not every query exists. end_key() of one that does not is 0",
     [](const Tiles& t, int i, int j) {
       return (t.mask.end_key(i * kQueries + kQueries - 1) - 1) / kKeys - j;
     }},
    {"where the last key that is seen is the last of its tile, the next tile is counted, too: "
     "end_key() is one past it",
     [](const Tiles& t, int i, int j) { return t.mask.end_key(t.last_query(i)) / kKeys - j; }},
    {"the first block has turn 1: it would wait for one that there is not",
     [](const Tiles& t, int i, int j) { return later(t, i, j) + 1; }},
    {"query i is taken to stand beside key i. It stands beside key i + keys - queries",
     [](const Tiles& t, int i, int j) {
       return std::min(t.mask.keys - 1, t.last_query(i) + t.mask.right) / kKeys - j;
     }},
};

void check(const Mask& mask) {
  const std::string text = "queries = " + std::to_string(mask.queries) +
                           ", keys = " + std::to_string(mask.keys) + ", each query sees " +
                           std::to_string(mask.left) + " keys to the left of its own and " +
                           std::to_string(mask.right) + " to the right";
  INFO(text);
  const Tiles tiles{mask};
  const Values right = turns(mask, later);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const tile::DeviceBuffer buffer = flash_attention::output("turns", right.size(), poison);
    tile::run_answer(
        [&] { return flash_attention::whose_turn(mask, flash_attention::floats(buffer)); },
        std::array{&buffer}, "");
    const Values got = buffer.download();
    tile::require_right("turns", got,
                        Expected{{tiles.queries(), tiles.keys()}, right, Values(right.size(), 0)},
                        [&]() -> std::string {
                          for (const Guess& guess : kGuesses) {
                            if (got == turns(mask, guess.turn_of))
                              return std::string("\nHint: ") + guess.explanation;
                          }
                          return {};
                        });
  }
}

}  // namespace

TEST_CASE("05.4 whose turn it is") {
  constexpr int kAll = 1000;  // a window wider than everything here
  for (const auto& [queries, keys] : {std::pair{16, 96}, {40, 70}, {1, 1}}) {
    check({queries, keys, kAll, kAll});
  }
  for (const int n : {128, 100, 33, 1}) check({n, n, kAll, 0});
  for (const int keys : {20, 64, 90, 150}) check({70, keys, kAll, 0});
  for (const int left : {0, 31, 50}) {
    for (const int right : {0, 3, 40}) check({130, 140, left, right});
  }
}
