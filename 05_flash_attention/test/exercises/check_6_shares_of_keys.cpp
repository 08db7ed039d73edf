// Checks exercise 05.6. Not part of the task.
// Shipped: two blocks visit tile 0
#include <algorithm>
#include <array>

#include "test/exercises/checks.hpp"

using flash_attention::Mask;
using flash_attention::Values;

namespace {

constexpr int kQueries = 16, kKeys = 32;  // of a tile

struct Share {
  int first, last;
};

void check_tile(const Mask::Tiles& visited, const std::vector<Share>& shares) {
  const int count = visited.last - visited.first, splits = static_cast<int>(shares.size());
  std::vector<int> visits(static_cast<std::size_t>(visited.last), 0);
  int longest = 0;
  for (const auto& [first, last] : shares) {
    longest = std::max(longest, last - first);
    for (int tile = first; tile < last; ++tile) {
      const bool is_visited = tile >= visited.first && tile < visited.last;
      REQUIRE_MESSAGE(is_visited, "a block visits tile ", tile,
                      ", which none of these queries sees");
      const int before = visits[static_cast<std::size_t>(tile)]++;
      REQUIRE_MESSAGE(before == 0, "two blocks visit tile ", tile);
    }
  }
  for (int tile = visited.first; tile < visited.last; ++tile) {
    const int seen = visits[static_cast<std::size_t>(tile)];
    REQUIRE_MESSAGE(seen == 1, "no block visits tile ", tile);
  }
  const int most = (count + splits - 1) / splits;
  REQUIRE_MESSAGE(longest <= most, "a block has ", longest, " tiles, where ", most,
                  " would do: all others wait for it");
  int next = visited.first;
  for (const auto& [first, last] : shares) {
    if (first >= last) continue;
    REQUIRE_MESSAGE(first == next, "tile ", first, " comes where tile ", next, " should");
    next = last;
  }
}

void check(const Mask& mask, int splits) {
  const int tiles = (mask.queries + kQueries - 1) / kQueries;
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const auto count = static_cast<std::size_t>(tiles * splits * 2);
    const tile::DeviceBuffer buffer = flash_attention::output("shares", count, poison);
    tile::run_answer(
        [&] {
          return flash_attention::shares_of_keys(mask, splits, flash_attention::floats(buffer));
        },
        std::array{&buffer}, "");
    const Values got = buffer.download();
    for (int i = 0; i < tiles; ++i) {
      std::vector<Share> shares;
      for (int split = 0; split < splits; ++split) {
        const auto at = static_cast<std::size_t>((i * splits + split) * 2);
        for (const double each : {got[at], got[at + 1]}) {
          REQUIRE_MESSAGE(each >= -1e6, "a share is not written");
          REQUIRE_MESSAGE(each <= 1e6, "a share is not written");
        }
        shares.push_back({static_cast<int>(got[at]), static_cast<int>(got[at + 1])});
      }
      const std::string text = "queries from " + std::to_string(i * kQueries) + " on of " +
                               std::to_string(mask.queries) + ", " + std::to_string(mask.keys) +
                               " keys, " + std::to_string(splits) + " blocks";
      INFO(text);
      check_tile(mask.tiles(i * kQueries, kQueries, kKeys), shares);
    }
  }
}

}  // namespace

TEST_CASE("05.6 shares of keys") {
  constexpr int kAll = 10'000;  // a window wider than everything here
  for (const int splits : {2, 1, 4, 5, 3, 7, 12}) check({16, 256, kAll, kAll}, splits);
  for (const int keys : {40, 300, 1000}) {
    for (const int splits : {2, 6, 9}) check({40, keys, kAll, 0}, splits);
  }
  for (const int left : {0, 70, 400}) check({40, 900, left, 3}, 4);
}
