// What the kernels and their launchers share.
#pragma once

#include "flash_attention.hpp"
#include "tile/host/attention_launch.hpp"
#include "tile/host/head_dim.hpp"
#include "tile/host/tensor_argument.hpp"

namespace tile {
struct ColumnStats;
}

namespace flash_attention {

using tile::blocks_for_tiles, tile::group_of, tile::masks_of, tile::tiles_of;
using tile::BlockWork, tile::Heads, tile::BatchMasks, tile::RowStats;
using tile::check_shared_bytes, tile::with_16_bits_and_head_dim;
using tile::kLog2E, tile::kLn2, tile::kRowsOfTerms;
using tile::work_of_block, tile::work_longest_first, tile::keys_longest_first;

/// Fills in the stats, [batch][heads][rows of stats], at the beginning of the workspace.
tile::Status compute_stats(const AttentionBackward& p, void* stream);

/// The same in the order of wgmma's columns (tile/column_stats.cuh), and clears the sums of dQ
/// after them. The type has 16 bits.
tile::Status compute_column_stats(const AttentionBackward& p, tile::ColumnStats* stats,
                                  float4* sums, void* stream);

/// dq, as `p` describes q, becomes p.scale times the sums (tile/host/dq_sums.hpp). The type has 16
/// bits.
tile::Status round_dq(const AttentionBackward& p, const float4* sums, const tile::TensorView& dq,
                      void* stream);

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

/// Computes the stats and launches both kernels: that of the keys, for dk and dv, and that of the
/// queries, for dq. `sizes` are what they take after the masks.
template <class T, class Keys, class Queries, class... Sizes>
tile::Status launch_sides(const AttentionBackward& p, void* stream, const Keys& of_keys,
                          const Queries& of_queries, const Sizes&... sizes) {
  unsigned keys = 0, queries = 0;  // blocks
  TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, of_keys.rows, &keys));
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, of_queries.rows, &queries));
  TILE_TRY(compute_stats(p, stream));
  const auto q = heads_of<const T>(p.q), k = heads_of<const T>(p.k);
  const auto v = heads_of<const T>(p.v), dout = heads_of<const T>(p.dout);
  const auto* stats = static_cast<const RowStats*>(p.workspace);
  TILE_TRY(tile::launch(of_keys.kernel, of_keys.name, keys, of_keys.threads, of_keys.bytes, stream,
                        q, k, v, dout, stats, heads_of<T>(p.dk), heads_of<T>(p.dv), masks_of(p),
                        sizes...));
  return tile::launch(of_queries.kernel, of_queries.name, queries, of_queries.threads,
                      of_queries.bytes, stream, q, k, v, dout, stats, heads_of<T>(p.dq),
                      masks_of(p), sizes...);
}

}  // namespace flash_attention
