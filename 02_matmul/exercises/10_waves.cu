// Exercise 02.10: waves
//
// A product has few tiles of C and long sums. So k is split: `shares` blocks compute a tile, each
// with its share of the turns of the main loop, and a second kernel adds up their sums. How many
// shares are fastest?
// Count in turns of the main loop. A multiprocessor holds one block. Blocks start in waves, as many
// at a time as there are multiprocessors, and a wave ends when its longest share does. A share is a
// whole number of turns, and of a tile's shares the longest counts. With one share there is nothing
// to add up. With more, the second kernel costs kStart turns, and one more for each wave of blocks,
// whose sums it reads.
// Check it with: ./tour exercise 02.10
#include "exercises/exercises.hpp"

namespace matmul {
namespace {

constexpr std::int64_t kStart = 3;

}  // namespace

// TODO: how many waves are there, and how many turns does each take?
std::int64_t turns_until_done(const Waves& w, std::int64_t shares) {
  static_cast<void>(shares);
  static_cast<void>(kStart);
  return w.turns;
}

// TODO: of 1 to kMostShares, the number that is done first; of two that are equal, the smaller.
std::int64_t best_shares(const Waves& w) {
  static_cast<void>(w);
  return 1;
}

}  // namespace matmul
