// How many heads of attention have their blocks begin together.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tile/host/device.hpp"

namespace tile {

/// How many of `all` heads have their blocks begin together, where long blocks come first: `most`,
/// but enough for two blocks on each multiprocessor; or fewer, down to half, so that the last of
/// these groups is as large as the others. In a small one long blocks would begin when all others
/// end.
inline unsigned heads_together(std::int64_t all, std::int64_t most, int blocks_of_head) {
  const int blocks = std::max(blocks_of_head, 1);
  most = std::max<std::int64_t>(most, (2 * device().multiprocessors + blocks - 1) / blocks);
  most = std::min(most, std::max<std::int64_t>(all, 1));
  const auto last = [&](std::int64_t together) { return (all - 1) % together + 1; };
  std::int64_t best = most;
  for (std::int64_t together = most; together >= (most + 1) / 2; --together) {
    if (last(together) * best > last(best) * together) best = together;
  }
  return static_cast<unsigned>(best);
}

}  // namespace tile
