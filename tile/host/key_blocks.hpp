// Attention backward by wgmma: launches a kernel whose blocks keep keys (tile/key_blocks.cuh).
#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <type_traits>

#include "tile/host/dq_sums.hpp"
#include "tile/host/head_boxes.hpp"
#include "tile/key_blocks.cuh"

namespace tile {

/// Whether TMA takes the rows of what is read, and lse / scale does not overflow.
inline Status check_tensor_maps(const AttentionBackward& p, bool has_far = false) {
  constexpr float kLeastScale = 1e-30f;
  if (p.scale < kLeastScale) return unsupported("scale", "is less than 1e-30");
  using Boxes = HeadBoxes<__half, 64, 64>;  // strides are asked for, whatever the extents
  for (const auto& [name, x, heads, rows] : {std::tuple{"q", &p.q, p.heads, p.queries},
                                             {"k", &p.k, p.kv_heads, p.keys},
                                             {"v", &p.v, p.kv_heads, p.keys},
                                             {"o", &p.o, p.heads, p.queries},
                                             {"dout", &p.dout, p.heads, p.queries},
                                             {"q_far", &p.q_far, p.heads, p.queries},
                                             {"k_far", &p.k_far, p.kv_heads, p.keys}}) {
    if (!has_far && (x == &p.q_far || x == &p.k_far)) continue;
    TILE_TRY(check_tensor_map(name, boxed_heads<Boxes>(p.type, *x, p.batch, heads, rows)));
  }
  return {};
}
/// And whether KeyBlock takes the head dimension.
inline Status check_key_blocks(const AttentionBackward& p, bool has_far = false) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  return check_tensor_maps(p, has_far);
}

/// Where the stats and the sums of dQ lie in the workspace, one after the other.
inline ColumnStats* column_stats_of(const AttentionBackward& p) {
  return static_cast<ColumnStats*>(p.workspace);
}
inline float4* sums_of(const AttentionBackward& p) {
  return reinterpret_cast<float4*>(column_stats_of(p) + rows_of_dq_sums(p));
}

/// How many heads of keys have their blocks begin together. Under a causal mask, where short blocks
/// are to fill gaps, those for which the queries, dO and sums of dQ of one head each fill 40 MB of
/// the L2 (of an H100: 50 MB); otherwise `if_full`: one, whose blocks add to the same sums.
inline unsigned key_heads_together(const AttentionBackward& p, int block_keys,
                                   int element_bytes = 8, unsigned if_full = 1) {
  if (p.right >= p.keys) return if_full;
  const std::int64_t head_bytes = std::max<std::int64_t>(p.queries * p.head_dim * element_bytes, 1);
  return heads_together(p.batch * p.kv_heads, 40'000'000 / head_bytes,
                        tiles_of(p.keys, block_keys));
}

/// What a kernel whose blocks have such tiles has to hide. If tiles end where queries and keys do,
/// and the mask ends where a tile does, a causal mask hides scores of a block's first tile only.
template <class Block>
Hides hides_of(const AttentionBackward& p) {
  if (p.query_lengths) return Hides::rows;
  const bool is_whole = p.queries % Block::kQueries == 0 && p.keys % Block::kKeys == 0;
  const bool sees_all = p.right >= p.queries;
  const bool ends_with_tile = (p.keys - p.queries + p.right) % Block::kQueries == 0;
  const bool has_one_first = Block::kQueries >= Block::kKeys && p.heads == p.kv_heads;
  const bool is_first = sees_all || (ends_with_tile && has_one_first);
  return !p.key_lengths && is_whole && p.left >= p.keys && is_first ? Hides::first : Hides::scores;
}
/// Calls launch(std::integral_constant of it). With 128 columns a kernel that hides less is not
/// faster.
template <class Block, class Launch>
Status with_hides(const AttentionBackward& p, Launch launch) {
  constexpr Hides kLeast = Block::kQueries == 128 ? Hides::first : Hides::scores;
  const Hides hides = hides_of<Block>(p);
  if (hides == Hides::rows) return launch(std::integral_constant<Hides, Hides::rows>{});
  if (hides == kLeast) return launch(std::integral_constant<Hides, kLeast>{});
  return launch(std::integral_constant<Hides, Hides::scores>{});
}

/// The kernel takes what is passed on here, and then `more`.
template <class T, class Block, unsigned kHeadsIfFull = 1, class Kernel, class... More>
Status launch_key_blocks(const AttentionBackward& p, Kernel* kernel, LaunchName name, void* stream,
                         const More&... more) {
  using QueryBoxes = typename Block::QueryBoxes;
  using KeyBoxes = typename Block::KeyBoxes;
  TensorMap q, k, v, dout;
  TILE_TRY(make_map<QueryBoxes>("q", p.type, p.q, p.batch, p.heads, p.queries, &q));
  TILE_TRY(make_map<KeyBoxes>("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k));
  TILE_TRY(make_map<KeyBoxes>("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v));
  TILE_TRY(make_map<QueryBoxes>("dout", p.type, p.dout, p.batch, p.heads, p.queries, &dout));
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, Block::kKeys, &blocks));
  return launch(kernel, name, blocks, Block::kThreads, Block::kBytes, stream, q, k, v, dout,
                column_stats_of(p), reinterpret_cast<float*>(sums_of(p)), heads_of<T>(p.dk),
                heads_of<T>(p.dv), masks_of(p), p.batch, p.heads, group_of(p),
                key_heads_together(p, Block::kKeys, 8, kHeadsIfFull), p.scale, more...);
}

}  // namespace tile
