// Checks exercise 02.4. Not part of the task.
// Shipped: A, ldmatrix.x4: 16 wavefronts.*rows 0, 2, 4 and 6 .*B, ldmatrix.x4: 32 wavefronts
#include <array>
#include <map>

#include "test/exercises/checks.hpp"

using matmul::Task;

namespace {

struct Tile {
  const char* name;
  int rows, row_chunks;

  int chunks() const { return rows * row_chunks; }
  int place(int row, int chunk) const { return matmul::chunk_place(row_chunks, row, chunk); }
};
constexpr Tile kTiles[] = {{"A", 128, 4}, {"B", 32, 16}};
constexpr int kLanes = 8;   // that are served together, at best
constexpr int kGroups = 8;  // of four banks, as many as a chunk takes

struct Chunk {
  int row, chunk;
};

std::string text(const Chunk& x) {
  return "(" + std::to_string(x.row) + ", " + std::to_string(x.chunk) + ")";
}

// What eight lanes cost that want a chunk each: one wavefront after the other for those in the same
// banks.
struct Phase {
  std::vector<Chunk> busiest;  // those in the group that most of them want
  int group = 0;

  Phase(const Tile& tile, const std::array<Chunk, kLanes>& lanes) {
    std::array<std::vector<Chunk>, kGroups> wanted;
    for (const Chunk& x : lanes) {
      wanted[static_cast<std::size_t>(tile.place(x.row, x.chunk) % kGroups)].push_back(x);
    }
    const auto most = std::ranges::max_element(wanted, {}, &std::vector<Chunk>::size);
    busiest = *most;
    group = static_cast<int>(most - wanted.begin());
  }
  int wavefronts() const { return static_cast<int>(busiest.size()); }
  std::string banks() const {
    return "the banks " + std::to_string(4 * group) + " to " + std::to_string(4 * group + 3);
  }
};

// What an instruction of a warp costs, in four phases.
struct Access {
  int wavefronts = 0;
  std::string reason;  // for more than four

  void add(const Phase& phase, const std::string& who) {
    wavefronts += phase.wavefronts();
    if (reason.empty() && phase.wavefronts() > 1) reason = who + " lie in " + phase.banks();
  }
  std::string text() const {
    const std::string count = std::to_string(wavefronts) + " wavefronts";
    return reason.empty() ? count : count + ", 4 are possible: " + reason;
  }
};

std::string rows_of(const std::vector<Chunk>& chunks) {
  std::string list;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    list += i == 0 ? "" : i + 1 == chunks.size() ? " and " : ", ";
    list += std::to_string(chunks[i].row);
  }
  return "rows " + list + " of chunk " + std::to_string(chunks.front().chunk);
}

// ldmatrix.x4 from (row, chunk) on: two times two of 8 rows of a chunk.
Access ldmatrix(const Tile& tile, const Chunk& first) {
  Access access;
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::array<Chunk, kLanes> lanes;
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[static_cast<std::size_t>(lane)] = {first.row + matrix % 2 * 8 + lane,
                                               first.chunk + matrix / 2};
    }
    const Phase phase(tile, lanes);
    access.add(phase, rows_of(phase.busiest));
  }
  return access;
}

// A warp stores the chunks number `first` to `first` + 31 of the tile.
Access store(const Tile& tile, int first) {
  Access access;
  for (int i = first; i < first + 32; i += kLanes) {
    std::array<Chunk, kLanes> lanes;
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[static_cast<std::size_t>(lane)] = {(i + lane) / tile.row_chunks,
                                               (i + lane) % tile.row_chunks};
    }
    const Phase phase(tile, lanes);
    access.add(phase, std::to_string(phase.wavefronts()) + " neighbours, from " +
                          text(phase.busiest.front()) + " on,");
  }
  return access;
}

void keep_worse(Access& worst, const Access& access) {
  if (access.wavefronts > worst.wavefronts) worst = access;
}
Access worst_ldmatrix(const Tile& tile) {
  Access worst;
  for (int row = 0; row < tile.rows; row += 16) {
    for (int chunk = 0; chunk < tile.row_chunks; chunk += 2) {
      keep_worse(worst, ldmatrix(tile, {row, chunk}));
    }
  }
  return worst;
}
Access worst_store(const Tile& tile) {
  Access worst;
  for (int i = 0; i < tile.chunks(); i += 32) keep_worse(worst, store(tile, i));
  return worst;
}

void check_places(const Tile& tile) {
  INFO("the tile of ", std::string(tile.name), ", ", tile.rows, " rows of ", tile.row_chunks,
       " chunks");
  std::map<int, Chunk> taken;
  for (int row = 0; row < tile.rows; ++row) {
    for (int chunk = 0; chunk < tile.row_chunks; ++chunk) {
      const Chunk here{row, chunk};
      const int place = tile.place(row, chunk);
      REQUIRE_MESSAGE((place >= 0 && place < tile.chunks()), "the chunk ", text(here),
                      " has place ", place, ", but there are only the places 0 to ",
                      tile.chunks() - 1, ": no memory is to be added");
      const auto entry = taken.emplace(place, here);
      REQUIRE_MESSAGE(entry.second, "the chunks ", text(entry.first->second), " and ", text(here),
                      " share place ", place, ": one overwrites the other");
    }
  }
  for (int row = 8; row < tile.rows; ++row) {
    for (int chunk = 0; chunk < tile.row_chunks; ++chunk) {
      const Chunk here{row, chunk};
      const int place = tile.place(row, chunk);
      const int wanted = tile.place(row - 8, chunk) + 8 * tile.row_chunks;
      REQUIRE_MESSAGE(place == wanted, "the chunk ", text(here), " has place ", place,
                      ", and eight rows below ", text({row - 8, chunk}), " would be ", wanted,
                      ": the order must be the same again after eight rows, or the kernel's "
                      "addresses are wrong");
    }
  }
}

void check_result() {
  const std::int64_t extents[][3] = {{128, 128, 32}, {1, 1, 1}, {130, 100, 70}, {40, 257, 33}};
  for (const auto& extent : extents) {
    const Task task = Task::fp16(extent[0], extent[1], extent[2], extent[0] == 128);
    INFO(task.text());
    tile::require_right("c", run(task, matmul::swizzled_tiles), task.right(), [] {
      return "\nHint: the places are good, so the kernel must have been changed. Nothing but "
             "place() needs to be";
    });
  }
}

void check_banks() {
  std::string found =
      "the product is right, but lanes wait for each other. Computed from place(), "
      "not measured:";
  bool ok = true;
  for (const Tile& tile : kTiles) {
    const Access loaded = worst_ldmatrix(tile), stored = worst_store(tile);
    ok = ok && loaded.wavefronts == 4 && stored.wavefronts == 4;
    found += std::string("\n  ") + tile.name + ", ldmatrix.x4: " + loaded.text();
    found += std::string("\n  ") + tile.name + ", a warp stores 32 chunks: " + stored.text();
  }
  REQUIRE_MESSAGE(ok, found);
}

}  // namespace

TEST_CASE("02.4 a swizzle") {
  matmul::require_tensor_cores();
  for (const Tile& tile : kTiles) check_places(tile);  // before the kernel uses them
  check_result();
  check_banks();
}
