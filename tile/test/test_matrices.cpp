// ldmatrix and stmatrix: what each register of each lane gets from, and brings to, which bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "harness/test_main.hpp"
#include "memory.hpp"
#include "ptx_kernels.hpp"
#include "tile/host/device.hpp"
#include "tile/ptx/fragments.hpp"

using namespace ptx_test;
using tile::ptx::Element;

namespace {

constexpr Move kMoves[] = {{1, false}, {2, false}, {4, false}, {1, true}, {2, true}, {4, true}};
constexpr int kRowBytes = 16, kRows = 8;

using Words = std::vector<std::uint32_t>;

// Every 16 bits of shared memory are different.
Words different_halves() {
  Words words(kSharedBytes / 4);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<std::uint32_t>((2 * i + 1) << 16 | 2 * i) + 0x30003000u;
  }
  return words;
}

std::uint32_t half_at(const Words& memory, int byte) {
  return memory[static_cast<std::size_t>(byte / 4)] >> (byte % 4 * 8) & 0xffff;
}

Element element(Move move, int lane, int i) {
  return move.transposed ? tile::ptx::element_of_ldmatrix_trans(lane, i)
                         : tile::ptx::element_of_ldmatrix(lane, i);
}

// Where half `i` of register `tile` of the lane lies.
int byte_of(Move move, const std::vector<int>& rows, int lane, int tile, int i) {
  const Element e = element(move, lane, i);
  return rows[static_cast<std::size_t>(tile * kRows + e.row)] + 2 * e.col;
}

// Ways to lay out the rows: one after the other, the other way round, anywhere, padded, and all of
// them the same. Lanes whose address is not used pass another valid one.
std::vector<std::vector<int>> row_layouts(bool may_overlap) {
  std::vector<int> in_order(32), reversed, random, padded;
  for (int lane = 0; lane < 32; ++lane) {
    in_order[static_cast<std::size_t>(lane)] = lane * kRowBytes;
    padded.push_back(lane * (kRowBytes + 16) + 32);
  }
  reversed.assign(in_order.rbegin(), in_order.rend());
  std::vector<int> chunks(kSharedBytes / kRowBytes);
  std::iota(chunks.begin(), chunks.end(), 0);
  std::shuffle(chunks.begin(), chunks.end(), std::mt19937(5));
  for (int lane = 0; lane < 32; ++lane) {
    random.push_back(chunks[static_cast<std::size_t>(lane)] * kRowBytes);
  }
  std::vector<std::vector<int>> layouts{in_order, reversed, random, padded};
  if (may_overlap) layouts.push_back(std::vector<int>(32, kSharedBytes - kRowBytes));
  return layouts;
}

}  // namespace

TEST_SUITE("ldmatrix") {
  TEST_CASE("each register holds the bytes that the map says") {
    if (tile::device().capability < 75) return tile::skip("ldmatrix needs a newer card");
    const Words memory = different_halves();
    const DeviceWords device_memory("memory", memory);
    for (const Move move : kMoves) {
      for (const std::vector<int>& rows : row_layouts(true)) {
        const DeviceVector<int> device_rows("rows", rows);
        const DeviceWords registers("registers", Words(static_cast<std::size_t>(32 * move.tiles)));
        require(load(move, device_memory.data(), device_rows.data(), registers.data()));
        const Words got = registers.download();
        for (int lane = 0; lane < 32; ++lane) {
          for (int t = 0; t < move.tiles; ++t) {
            const std::uint32_t expected = half_at(memory, byte_of(move, rows, lane, t, 0)) |
                                           half_at(memory, byte_of(move, rows, lane, t, 1)) << 16;
            const bool right = got[static_cast<std::size_t>(lane * move.tiles + t)] == expected;
            CHECK_MESSAGE(right, "x", move.tiles, std::string(move.transposed ? " trans" : ""),
                          ", lane ", lane, ", register ", t);
          }
        }
      }
    }
  }
}

TEST_SUITE("stmatrix") {
  TEST_CASE("each register goes to the bytes that the map says, and nothing else changes") {
    if (tile::device().capability < 90) return tile::skip("stmatrix needs a newer card");
    const Words before = different_halves();
    for (const Move move : kMoves) {
      for (const std::vector<int>& rows : row_layouts(false)) {
        Words values(static_cast<std::size_t>(32 * move.tiles));
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<std::uint32_t>((2 * i + 1) << 16 | 2 * i) + 0x70007000u;
        }
        const DeviceVector<int> device_rows("rows", rows);
        const DeviceWords memory("memory", before), registers("registers", values);
        require(store(move, memory.data(), device_rows.data(), registers.data()));
        Words expected = before;
        for (int lane = 0; lane < 32; ++lane) {
          for (int t = 0; t < move.tiles; ++t) {
            const std::uint32_t word = values[static_cast<std::size_t>(lane * move.tiles + t)];
            for (int i = 0; i < 2; ++i) {
              const auto half = static_cast<std::uint16_t>(word >> 16 * i);
              std::memcpy(
                  reinterpret_cast<char*>(expected.data()) + byte_of(move, rows, lane, t, i), &half,
                  sizeof half);
            }
          }
        }
        CAPTURE(move.tiles);
        CAPTURE(move.transposed);
        CHECK(memory.download() == expected);
      }
    }
  }
}
