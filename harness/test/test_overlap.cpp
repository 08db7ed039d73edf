#include "tile/host/overlap.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace tile {
namespace {

/// How often a region has each byte of memory that begins at `memory`.
std::vector<int> counts(const Region& x, const unsigned char* memory, std::size_t bytes) {
  std::vector<int> count(bytes, 0);
  const auto& [a, b, c] = x.dimensions;
  for (std::int64_t i = 0; i < a.count; ++i) {
    for (std::int64_t j = 0; j < b.count; ++j) {
      for (std::int64_t k = 0; k < c.count; ++k) {
        const std::int64_t begin = static_cast<const unsigned char*>(x.data) - memory +
                                   i * a.stride + j * b.stride + k * c.stride;
        for (std::int64_t at = begin; at < begin + x.row_bytes; ++at) {
          ++count[static_cast<std::size_t>(at)];
        }
      }
    }
  }
  return count;
}

TEST_CASE("overlap: as counted byte by byte, for small strided tensors") {
  static unsigned char memory[512];
  std::mt19937 random(1);
  const auto up_to = [&random](int most) {
    return static_cast<std::int64_t>(random() % (most + 1));
  };
  const auto region = [&] {
    Region x{memory + up_to(100), 1 + up_to(8), {}};
    for (Region::Dimension& each : x.dimensions) {
      each = Region::dimension(1 + up_to(3), up_to(30), 1);
    }
    return x;
  };
  int apart = 0, together = 0, folded = 0, plain = 0;
  for (int i = 0; i < 4000; ++i) {
    const Region a = region(), b = region();
    const std::vector<int> of_a = counts(a, memory, sizeof memory);
    const std::vector<int> of_b = counts(b, memory, sizeof memory);
    bool meet = false, twice = false;
    for (std::size_t at = 0; at < sizeof memory; ++at) {
      meet = meet || (of_a[at] > 0 && of_b[at] > 0);
      twice = twice || of_a[at] > 1;
    }
    CAPTURE(i);
    CHECK(overlap(a, b) == meet);
    CHECK(overlap(b, a) == meet);
    CHECK(overlaps_itself(a) == twice);
    ++(meet ? together : apart), ++(twice ? folded : plain);
  }
  for (const int cases : {apart, together, folded, plain}) CHECK(cases > 500);
}

TEST_CASE("overlap: gradients that share a tensor of 2^40 bytes, in each order of its dimensions") {
  // Of heads of 128 bytes: [row][batch][three][head], [batch][three][row], [batch][row][three].
  constexpr std::int64_t kBatch = 1 << 10, kRows = 1 << 14, kHeads = 1 << 8, kBytes = 128;
  const auto at = [](std::uintptr_t address) { return reinterpret_cast<const void*>(address); };
  struct Order {
    std::int64_t batch, row, three;
  };
  for (const Order& order :
       {Order{3, 3 * kBatch, 1}, Order{3 * kRows, 1, kRows}, Order{3 * kRows, 3, 1}}) {
    const std::int64_t heads = kHeads * kBytes;
    const auto gradient = [&](std::int64_t number, std::int64_t more) {
      return Region{
          at(static_cast<std::uintptr_t>((1 << 20) + number * order.three * heads + more)),
          kBytes,
          {Region::dimension(kBatch, order.batch * heads, 1), Region::dimension(kHeads, kBytes, 1),
           Region::dimension(kRows, order.row * heads, 1)}};
    };
    for (const std::int64_t number : {1, 2}) {
      CHECK_FALSE(overlap(gradient(0, 0), gradient(number, 0)));
      CHECK(overlap(gradient(number - 1, 0), gradient(number, -2)));
    }
    CHECK_FALSE(overlaps_itself(gradient(0, 0)));
  }
}

}  // namespace
}  // namespace tile
