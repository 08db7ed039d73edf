// How teams of blocks share the rows of a matrix: a team keeps a row at a time in the shared memory
// of its blocks. All blocks are on the card at one time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tile/host/device.hpp"

namespace softmax {

inline constexpr int kMostTeamBlocks = 3;  // of a multiprocessor
/// A thread copies its chunks of a row in this many groups, and works on a group that has landed
/// while later ones are on their way.
inline constexpr int kCopyGroups = 4;

/// Which blocks share a row, and how much of it each of them has.
struct TeamPlan {
  int size, teams;  // blocks of a team; teams
  int chunks;       // of 16 bytes, of a row, that a block has
  int kept;         // how many of them it keeps, of each matrix; it reads the others twice
  int group;        // how many of the kept ones are copied together: as many for each thread
};

/// Chunks of a row that may begin anywhere in the first one.
inline std::int64_t chunks_of_row(std::int64_t cols, std::size_t element_bytes) {
  const auto width = static_cast<std::int64_t>(16 / element_bytes);
  return (cols + 2 * (width - 1)) / width;
}

/// Dynamic shared memory of each block, if a multiprocessor has `blocks` of them.
inline std::int64_t team_bytes(const tile::Device& device, int blocks) {
  constexpr std::int64_t kOther = 2048;  // 1 KiB that CUDA takes, and more than the kernels declare
  return (device.shared_bytes_of_multiprocessor / blocks - kOther) / 16 * 16;
}

/// Whether even a single row of so many chunks is too long for the card's shared memory.
inline bool is_too_long_for_card(std::int64_t chunks, const tile::Device& device) {
  const std::int64_t bytes = team_bytes(device, kMostTeamBlocks) * kMostTeamBlocks;
  return chunks > device.multiprocessors * (bytes / 16);
}

// snippet-begin plan
/// The teams that take the least time, of at most `blocks` blocks with `threads` threads and room
/// for `room` chunks each. Time is counted in chunks that a block moves. It reads and writes each
/// chunk, reads those without room twice, and waits as long as kWait chunks take in each row.
inline TeamPlan team_plan(std::int64_t rows, std::int64_t chunks, int blocks, int threads,
                          std::int64_t room) {
  constexpr std::int64_t kWait = 256;  // measured on an H200
  TeamPlan best{};
  std::int64_t least = INT64_MAX;
  for (int size = 1; size <= blocks; ++size) {
    const std::int64_t teams = std::min<std::int64_t>(blocks / size, rows);
    const std::int64_t rounds = (rows + teams - 1) / teams;
    const std::int64_t share = (chunks + size - 1) / size, kept = std::min(share, room);
    const std::int64_t time = rounds * (2 * (share + kWait) + (share - kept));
    if (time >= least) continue;
    least = time;
    best = {size, static_cast<int>(teams), static_cast<int>(share), static_cast<int>(kept), 0};
  }
  const int groups = kCopyGroups * threads;
  best.group = (best.kept + groups - 1) / groups * threads;
  return best;
}
// snippet-end plan

inline constexpr std::int64_t kTeamCounterBytes = 128;  // so that no two share a cache line

/// Bytes through which blocks exchange values: a counter for each team, and two values of
/// `value_bytes` for each block.
inline std::int64_t team_workspace_bytes(std::size_t value_bytes) {
  const std::int64_t blocks = std::int64_t{tile::device().multiprocessors} * kMostTeamBlocks;
  return blocks * (kTeamCounterBytes + 2 * static_cast<std::int64_t>(value_bytes));
}

}  // namespace softmax
