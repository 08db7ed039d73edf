// Draws of options: each two values of two options meet, in few draws.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "harness/pairs.hpp"

using tile::Draw;
using Counts = std::vector<std::size_t>;

TEST_CASE("pairs: each two values of two options meet, in few draws") {
  for (const Counts& counts : {Counts{5},
                               {2, 2},
                               {6, 5, 7, 5, 2, 2, 3},
                               Counts(10, 4),
                               {1, 3, 1},
                               {23, 4, 3, 3, 3, 2},
                               {}}) {
    for (const std::uint64_t seed : {0, 1, 2}) {
      const std::vector<Draw> draws = tile::draw_pairs(counts, seed);
      CHECK(draws == tile::draw_pairs(counts, seed));
      for (const Draw& draw : draws) {
        REQUIRE(draw.size() == counts.size());
        for (std::size_t a = 0; a < counts.size(); ++a) REQUIRE(draw[a] < counts[a]);
      }
      for (std::size_t a = 0; a < counts.size(); ++a) {
        for (std::size_t b = 0; b <= a; ++b) {
          for (std::size_t x = 0; x < counts[a]; ++x) {
            for (std::size_t y = 0; y < counts[b]; ++y) {
              if (a == b && x != y) continue;
              CHECK(std::ranges::any_of(
                  draws, [&](const Draw& draw) { return draw[a] == x && draw[b] == y; }));
            }
          }
        }
      }
      Counts most = counts;
      most.resize(std::max<std::size_t>(2, counts.size()), 1);
      std::ranges::sort(most, std::greater{});
      // Ten of four values each are the hardest of these.
      CHECK(draws.size() <= most[0] * most[1] * 2);
    }
  }
  CHECK(tile::draw_pairs(Counts{6, 5, 4}, 1) != tile::draw_pairs(Counts{6, 5, 4}, 2));
}

TEST_CASE("pairs: the cases of a test are made of draws") {
  struct Case {
    int number;
    char letter;
    bool operator==(const Case&) const = default;
  };
  const std::vector<int> numbers{7, 8, 9};
  const auto cases = tile::drawn_cases(1, [&](tile::Pick& pick) {
    const int number = pick(numbers);
    return Case{number, pick({'a', 'b'})};
  });
  CHECK(cases.size() == 6);
  for (const int number : numbers) {
    for (const char letter : {'a', 'b'})
      CHECK(std::ranges::count(cases, Case{number, letter}) == 1);
  }
  const auto throws = [](auto make) {
    CHECK_THROWS_AS(tile::drawn_cases(1, make), std::out_of_range);
  };
  throws([](tile::Pick& pick) { return pick({0, 1}) == 1 ? pick({0, 1}) : 0; });
  throws([](tile::Pick& pick) { return pick({0, 1}) == 1 ? pick({0, 1}) : pick({0, 1, 2}); });
}
