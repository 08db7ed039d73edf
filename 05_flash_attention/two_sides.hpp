// Attention backward with two kernels: how both are launched.
#pragma once

#include "tile/host/attention_launch.hpp"

namespace flash_attention {

/// One of the two kernels of a step of the backward pass, and what its launch needs.
template <class... Parameters>
struct Side {
  Side(void (*of_side)(Parameters...), tile::LaunchName literal, int of_tile, int of_block,
       std::size_t of_memory)
      : kernel(of_side), name(literal), rows(of_tile), threads(of_block), bytes(of_memory) {}

  void (*kernel)(Parameters...);
  tile::LaunchName name;
  int rows, threads;  // a block has so many rows of keys, or of queries
  std::size_t bytes;  // of shared memory
};

/// Launches both kernels, whose stats are at the beginning of the workspace: that of the keys, for
/// dk and dv, and that of the queries, for dq. `sizes` are what they take after the masks.
template <class T, class Keys, class Queries, class... Sizes>
tile::Status launch_sides(const tile::AttentionBackward& p, void* stream, const Keys& of_keys,
                          const Queries& of_queries, const Sizes&... sizes) {
  unsigned keys = 0, queries = 0;  // blocks
  TILE_TRY(tile::blocks_for_tiles(p, p.kv_heads, p.keys, of_keys.rows, &keys));
  TILE_TRY(tile::blocks_for_tiles(p, p.heads, p.queries, of_queries.rows, &queries));
  const auto q = tile::heads_of<const T>(p.q), k = tile::heads_of<const T>(p.k);
  const auto v = tile::heads_of<const T>(p.v), dout = tile::heads_of<const T>(p.dout);
  const auto* stats = static_cast<const tile::RowStats*>(p.workspace);
  TILE_TRY(tile::launch(of_keys.kernel, of_keys.name, keys, of_keys.threads, of_keys.bytes, stream,
                        q, k, v, dout, stats, tile::heads_of<T>(p.dk), tile::heads_of<T>(p.dv),
                        tile::masks_of(p), sizes...));
  return tile::launch(of_queries.kernel, of_queries.name, queries, of_queries.threads,
                      of_queries.bytes, stream, q, k, v, dout, stats, tile::heads_of<T>(p.dq),
                      tile::masks_of(p), sizes...);
}

}  // namespace flash_attention
