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

std::int64_t turns_until_done(const Waves& w, std::int64_t shares) {
  const std::int64_t waves = (w.tiles * shares + w.multiprocessors - 1) / w.multiprocessors;
  const std::int64_t longest = (w.turns + shares - 1) / shares;
  return waves * longest + (shares > 1 ? kStart + waves : 0);
}

std::int64_t best_shares(const Waves& w) {
  std::int64_t best = 1;
  for (std::int64_t shares = 2; shares <= kMostShares; ++shares) {
    if (turns_until_done(w, shares) < turns_until_done(w, best)) best = shares;
  }
  return best;
}

}  // namespace matmul
