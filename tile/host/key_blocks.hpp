// Attention backward by wgmma: launches a kernel whose blocks keep keys (tile/key_blocks.cuh).
#pragma once

#include "tile/host/dq_sums.hpp"
#include "tile/key_blocks.cuh"

namespace tile {

/// Where the stats and the sums of dQ lie in the workspace, one after the other.
inline ColumnStats* column_stats_of(const AttentionBackward& p) {
  return static_cast<ColumnStats*>(p.workspace);
}
inline float4* sums_of(const AttentionBackward& p) {
  return reinterpret_cast<float4*>(column_stats_of(p) + rows_of_dq_sums(p) / ColumnStats::kQueries);
}

/// The kernel takes what is passed on here, and then `more`.
template <class T, int kDim, class Kernel, class... More>
Status launch_key_blocks(const AttentionBackward& p, Kernel* kernel, LaunchName name, void* stream,
                         const More&... more) {
  using Block = KeyBlock<T, kDim>;
  using QueryBoxes = typename Block::QueryBoxes;
  using KeyBoxes = typename Block::KeyBoxes;
  TensorMap q, k, v, dout;
  TILE_TRY(QueryBoxes::make_map("q", p.type, p.q, p.batch, p.heads, p.queries, &q));
  TILE_TRY(KeyBoxes::make_map("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k));
  TILE_TRY(KeyBoxes::make_map("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v));
  TILE_TRY(QueryBoxes::make_map("dout", p.type, p.dout, p.batch, p.heads, p.queries, &dout));
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, Block::kKeys, &blocks));
  return launch(kernel, name, blocks, Block::kThreads, Block::kBytes, stream, q, k, v, dout,
                column_stats_of(p), reinterpret_cast<float*>(sums_of(p)), heads_of<T>(p.dk),
                heads_of<T>(p.dv), masks_of(p), p.batch, p.heads, group_of(p), p.scale, more...);
}

}  // namespace tile
