// Checks exercise 02.8. Not part of the task.
// Shipped: the product is right, but all of A's tile comes to each block from global memory
#include "test/exercises/checks.hpp"

using matmul::Task;

namespace {

constexpr std::int64_t kTileM = 128, kTileN = 64, kTileK = 64;
constexpr std::int64_t kHalf = kTileM / 2;
constexpr std::int64_t kABytes = kTileM * kTileK * 2, kBBytes = kTileK * kTileN * 2;

std::int64_t tiles(std::int64_t extent, std::int64_t tile) { return (extent + tile - 1) / tile; }

// What has likely happened, as far as the result tells it.
std::string explain(const Task& t, const std::vector<double>& got) {
  // Every row of C has that row of A which `row_of` says.
  const auto with_rows = [&](auto row_of) {
    return t.if_terms_were([&t, row_of](auto row, auto col, auto l) {
      const std::int64_t from = row_of(row);
      return from < t.p.m ? t.a_at(from, l) * t.b_at(l, col) : 0;
    });
  };
  const tile::Mistake mistakes[] = {
      {"rows 64 to 127 of each tile have those of A 64 further up: both blocks load the same half "
       "of A",
       with_rows([](auto row) { return row / kTileM * kTileM + row % kHalf; })},
      {"rows 0 to 63 of each tile have those of A 64 further down: both blocks load the same half "
       "of A",
       with_rows([](auto row) { return row / kTileM * kTileM + kHalf + row % kHalf; })},
      {"the halves of A's tile are exchanged: where does this block's half belong?",
       with_rows(
           [](auto row) { return row / kTileM * kTileM + (row % kTileM + kHalf) % kTileM; })}};
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  return "\nHint: each block fills half of A's tile in both blocks: half the rows, and the same "
         "half of the tile's place in shared memory";
}

void check(const Task& task) {
  INFO(task.text());
  tile::bulk_loads();  // forget what went before
  const std::vector<double> c = run(
      task, matmul::multicast, tile::Poison::unwritten_nan,
      "\nHint: full[stage] of a block counts all bytes that come into it, whoever sends them: all "
      "of A's tile and its own B, and its producer announces as many. A stage is empty when the "
      "consumers of both blocks have read it. Both blocks must be there as long as one of them "
      "copies or arrives in the other. (An mbarrier has 8 bytes: byte 16 of full is full[2].)");
  const std::int64_t loaded = tile::bulk_loads().bytes;
  tile::require_right("c", c, task.exact(), [&] { return explain(task, c); });
  if (!tile::device_is_simulated()) return;  // a GPU does not tell
  const std::int64_t turns = tiles(task.p.m, kTileM) * tiles(task.p.n, 2 * kTileN) *
                             tiles(task.p.k, kTileK);  // of all clusters together
  const std::int64_t once = turns * (kABytes + 2 * kBBytes), twice = once + turns * kABytes;
  REQUIRE_MESSAGE(loaded != twice,
                  "the product is right, but all of A's tile comes to each block from global "
                  "memory: ",
                  twice / turns, " bytes for each turn of a cluster. With a multicast of A it is ",
                  once / turns, ": A's tile once, and two of B");
  REQUIRE_MESSAGE(loaded == once, "the product is right, but TMA has read ", loaded / turns,
                  " bytes from global memory for each turn of a cluster. It takes ", once / turns,
                  ": A's tile once, and two of B");
}

}  // namespace

TEST_CASE("02.8 multicast") {
  matmul::require_hopper();
  check(Task::integers(128, 128, 64));
  check(Task::integers(128, 128, 192));  // each stage once
  check(Task::integers(128, 128, 448));  // and again, and again
  check(Task::integers(130, 72, 200));
  check(Task::integers(70, 64, 264));  // one of the two blocks has nothing of C
  check(Task::integers(300, 328, 136));
}
