// The queue of a launch of persistent blocks.
#pragma once

#include <algorithm>

#include "tile/host/head_boxes.hpp"

namespace tile {

/// The tiles of `rows` queries, and the blocks for them: one a multiprocessor at most, without
/// those that are left free.
inline Status queue_of(const AttentionForward& p, int rows, QueryTiles* tiles, unsigned* blocks) {
  unsigned all = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, rows, &all));
  *blocks = std::min(all, persistent_blocks(p));
  // Where the last queries see the most keys, tiles of as many heads are taken together as have
  // 32 MiB of keys and values in the L2 (of an H100: 50): the more tiles there are, the better do
  // short ones fill gaps. Otherwise all tiles are as long, and those of one head follow each other:
  // with several the L2 would hold less of each.
  const auto row_bytes = p.head_dim * static_cast<std::int64_t>(size_bytes(p.type));
  const std::int64_t head_bytes = p.keys * row_bytes * (p.k_far.data ? 3 : 2);
  const std::int64_t heads = p.right < p.keys ? (32 << 20) / head_bytes * group_of(p) : 1;
  const int of_head = tiles_of(p.queries, rows);
  *tiles = {static_cast<int>(p.batch), static_cast<int>(p.heads), of_head, all,
            heads_together(p.batch * p.heads, heads, of_head)};
  return {};
}

}  // namespace tile
