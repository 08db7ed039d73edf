// The swizzles keep every chunk, and leave ldmatrix no bank conflict. Runs on the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>

#include "tile/ptx/swizzle.hpp"

namespace {

constexpr int kChunkBytes = 16, kBankBytes = 4, kBanks = 32, kTileRows = 8;

int no_swizzle(int, int chunk) { return chunk; }

// Wavefronts that 8 lanes take to read 16 bytes each from these bytes of shared memory: as many as
// words that one bank has to give.
int wavefronts(const std::array<int, kTileRows>& bytes) {
  std::array<std::set<int>, kBanks> words;
  for (const int byte : bytes) {
    for (int word = byte / kBankBytes; word < (byte + kChunkBytes) / kBankBytes; ++word) {
      words[static_cast<std::size_t>(word % kBanks)].insert(word);
    }
  }
  std::size_t most = 0;
  for (const std::set<int>& of_bank : words) most = std::max(most, of_bank.size());
  return static_cast<int>(most);
}

// Of a tile that ldmatrix reads: column `chunk` of 8 rows from `row` on.
template <class Swizzle>
int wavefronts_of_tile(int row_bytes, int row, int chunk, Swizzle swizzle) {
  std::array<int, kTileRows> bytes{};
  for (int i = 0; i < kTileRows; ++i) {
    bytes[static_cast<std::size_t>(i)] =
        (row + i) * row_bytes + swizzle(row + i, chunk) * kChunkBytes;
  }
  return wavefronts(bytes);
}

// The most over all tiles of 64 rows.
template <class Swizzle>
int worst(int row_bytes, Swizzle swizzle) {
  int most = 0;
  for (int row = 0; row < 64; row += kTileRows) {
    for (int chunk = 0; chunk < row_bytes / kChunkBytes; ++chunk) {
      most = std::max(most, wavefronts_of_tile(row_bytes, row, chunk, swizzle));
    }
  }
  return most;
}

// Whether each row's chunks get each place of the row once.
template <class Swizzle>
bool permutes(int row_bytes, Swizzle swizzle) {
  const int chunks = row_bytes / kChunkBytes;
  for (int row = 0; row < 64; ++row) {
    std::set<int> places;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int place = swizzle(row, chunk);
      if (place < 0 || place >= chunks) return false;
      if (swizzle(row, place) != chunk) return false;  // its own inverse
      places.insert(place);
    }
    if (static_cast<int>(places.size()) != chunks) return false;
  }
  return true;
}

}  // namespace

TEST_SUITE("swizzle") {
  TEST_CASE("a tile of a swizzled matrix is read without a bank conflict") {
    for (const int row_bytes : {128, 256, 384, 512}) {
      CAPTURE(row_bytes);
      CHECK(worst(row_bytes, tile::swizzle_128B) == 1);
    }
    CHECK(worst(64, tile::swizzle_64B) == 1);
    CHECK(worst(32, tile::swizzle_32B) == 1);
  }

  TEST_CASE("without a swizzle it takes a wavefront for each row that begins at one bank") {
    CHECK(worst(128, no_swizzle) == 8);
    CHECK(worst(256, no_swizzle) == 8);
    CHECK(worst(64, no_swizzle) == 4);
    CHECK(worst(32, no_swizzle) == 2);
    CHECK(worst(16, no_swizzle) == 1);
  }

  TEST_CASE("nor do rows padded by a chunk conflict") {
    for (const int row_bytes : {128, 256}) CHECK(worst(row_bytes + kChunkBytes, no_swizzle) == 1);
  }

  TEST_CASE("the swizzle of other rows does not do") {
    CHECK(worst(128, tile::swizzle_64B) > 1);
    CHECK(worst(64, tile::swizzle_32B) > 1);
  }

  TEST_CASE("within each row they permute the chunks, and are their own inverse") {
    for (const int row_bytes : {128, 256, 512}) CHECK(permutes(row_bytes, tile::swizzle_128B));
    CHECK(permutes(64, tile::swizzle_64B));
    CHECK(permutes(32, tile::swizzle_32B));
    CHECK(!permutes(64, tile::swizzle_128B));  // leaves the row
  }
}
