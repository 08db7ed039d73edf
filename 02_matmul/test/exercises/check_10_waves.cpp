// Checks exercise 02.10. Not part of the task.
// Shipped: with 2 shares .* 256 turns, and it takes 132
#include "test/exercises/checks.hpp"

using matmul::Waves;

namespace {

constexpr std::int64_t kStart = 3;

// Wave after wave, and not by a formula.
std::int64_t counted(const Waves& w, std::int64_t shares) {
  std::int64_t waves = 0, longest = 0;
  for (std::int64_t left = w.tiles * shares; left > 0; left -= w.multiprocessors) ++waves;
  for (std::int64_t left = w.turns; left > 0; left -= shares) ++longest;
  return waves * longest + (shares > 1 ? kStart + waves : 0);
}

std::string text(const Waves& w) {
  return std::to_string(w.tiles) + " tiles of " + std::to_string(w.turns) + " turns on " +
         std::to_string(w.multiprocessors) + " multiprocessors";
}

}  // namespace

TEST_CASE("02.10 waves") {
  const Waves all[] = {{4, 256, 132},  {1, 7, 132},    {64, 128, 132}, {100, 500, 132},
                       {133, 64, 132}, {67, 4096, 84}, {20, 40, 20},   {5, 40, 20},
                       {1, 1, 1},      {30, 100, 108}, {3, 11, 4}};
  for (const Waves& w : all) {
    for (std::int64_t shares : {2, 1, 3, 5, 33, 64}) {
      const std::int64_t got = turns_until_done(w, shares), right = counted(w, shares);
      REQUIRE_MESSAGE(got == right, text(w), ": with ", shares, " shares turns_until_done() says ",
                      got, " turns, and it takes ", right);
    }
  }
  for (const Waves& w : all) {
    std::int64_t best = 1;
    for (std::int64_t shares = 1; shares <= matmul::kMostShares; ++shares) {
      if (counted(w, shares) < counted(w, best)) best = shares;
    }
    const std::int64_t got = best_shares(w);
    REQUIRE_MESSAGE((got >= 1 && got <= matmul::kMostShares), text(w), ": ", got, " shares");
    REQUIRE_MESSAGE(counted(w, got) == counted(w, best), text(w), ": ", got, " shares take ",
                    counted(w, got), " turns, and ", best, " take ", counted(w, best));
    REQUIRE_MESSAGE(got == best, text(w), ": ", got, " shares take as long as ", best,
                    ", which write fewer sums");
  }
}
