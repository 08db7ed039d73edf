// The queue of a launch of persistent blocks.
#pragma once

#include <algorithm>

#include "tile/host/head_boxes.hpp"

namespace tile {

/// The tiles of `rows` rows of the packs that tiles->log2_pack makes of heads, and the blocks for
/// them: one a multiprocessor at most, without those that are left free.
inline Status queue_of(const AttentionForward& p, int rows, QueryTiles* tiles, unsigned* blocks) {
  const int log2_pack = tiles->log2_pack;
  const std::int64_t packs = p.heads >> log2_pack, pack_rows = p.queries << log2_pack;
  unsigned all = 0;
  TILE_TRY(blocks_for_tiles(p, packs, pack_rows, rows, &all));
  *blocks = std::min(all, persistent_blocks(p));
  // Where the last queries see the most keys, tiles of as many heads are taken together as have
  // 32 MiB of keys and values in the L2 (of an H100: 50): the more tiles there are, the better do
  // short ones fill gaps. Otherwise all tiles are as long, and those of one head follow each other:
  // with several the L2 would hold less of each.
  const auto row_bytes = p.head_dim * static_cast<std::int64_t>(size_bytes(p.type));
  const std::int64_t head_bytes = p.keys * row_bytes * (p.k_far.data ? 3 : 2);
  const std::int64_t heads = p.right < p.keys ? (32 << 20) / head_bytes * group_of(p) : 1;
  const int of_pack = tiles_of(pack_rows, rows);
  const unsigned together = heads_together(p.batch * packs, heads >> log2_pack, of_pack);
  *tiles = {static_cast<int>(p.batch), static_cast<int>(packs), of_pack, all, together, log2_pack};
  return {};
}

}  // namespace tile
