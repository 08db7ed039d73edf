// Attention backward, step 2: rotation on load, and back before the store.
// Idea: tiles are rotated in shared memory as in the forward pass. The sums in a warp's registers
//       are gradients of rotated rows. A lane has both elements of a pair, so it rotates them back
//       before they are rounded and stored.
// Change: copy_units_async() and rotate_units() for q and k, rotate_back() for dq and dk; no copies
// of
//         q and k in memory.
// Limit: every block rotates the rows of its loop again: k in N / 64 blocks for each head of q, and
//        q in N / 64 blocks of keys.
#include "attention/attention.cuh"
#include "tile/query_stage.cuh"

namespace rope {
namespace {

using tile::SharedTile, tile::Accumulator;

/// A warp keeps 16 rows, whose gradients fill at most half of its registers, and loops over the
/// rows of the other side: a stage is copied while the previous one is multiplied.
template <int kDim>
struct TilePlan {
  static constexpr int kWarps = 4, kThreads = kWarps * 32, kKept = kWarps * 16;
  static constexpr int kPassing = kDim == 64 ? 64 : 32;
  static constexpr int kBytes = (2 * kKept + 2 * 2 * kPassing) * kDim * 2;
};

/// dQ of a tile of queries.
template <class T, int kDim, Layout kLayout>
__global__ void attention_backward_fused_dq(Heads<const T> q,     // [batch][length][heads][kDim]
                                            Heads<const T> k,     // [batch][length][heads / group]
                                            Heads<const T> v,     // as k
                                            Heads<const T> dout,  // as q
                                            const tile::RowStats* stats,  // [batch][heads][rows]
                                            Heads<T> dq,                  // as q
                                            const float* cos,             // [length][kDim / 2]
                                            const float* sin,             // as cos
                                            tile::Mask mask, int batch, int heads, int group,
                                            float scale) {
  using Plan = TilePlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kQueries = Plan::kKept, kKeys = Plan::kPassing;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, their dO, [2]{keys, values}}
  const QueryTile q_tile(smem), dout_tile(smem + QueryTile::kBytes);
  const auto work =
      tile::work_longest_first(batch, heads, (mask.queries + kQueries - 1) / kQueries);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;  // in the tile
  const int warp_query = block_query + warp_row;

  const auto k_tile = [&](int tile) {
    return KeyTile(smem + 2 * QueryTile::kBytes + tile % 2 * 2 * KeyTile::kBytes);
  };
  const auto v_tile = [&](int tile) { return k_tile(tile).after(KeyTile::kBytes); };
  const auto copy = [&](int tile) {
    const int key = tile * kKeys;
    copy_units_async<kLayout, kThreads>(k_tile(tile), k.rows(work.batch, kv_head, key),
                                        mask.keys - key);
    v_tile(tile).template copy_async<kThreads>(v.rows(work.batch, kv_head, key), mask.keys - key);
  };
  const auto rotate = [&](const auto& tile, int first) {  // R q, or R k
    const std::int64_t entry = std::int64_t{first} * (kDim / 2);
    rotate_units<kLayout, kThreads>(tile, cos + entry, sin + entry, mask.keys - first);
  };
  const tile::Mask::Tiles visited = mask.tiles(block_query, kQueries, kKeys);
  copy_units_async<kLayout, kThreads>(q_tile, q.rows(work.batch, work.head, block_query),
                                      mask.queries - block_query);
  dout_tile.template copy_async<kThreads>(dout.rows(work.batch, work.head, block_query),
                                          mask.queries - block_query);
  copy(visited.first);
  const tile::RowStats* of_warp = stats_of_head(stats, work, heads, mask.queries) + warp_query;
  const tile::RowStats of_lane[2] = {of_warp[Accumulator<16, kDim>::row(0)],
                                     of_warp[Accumulator<16, kDim>::row(1)]};

  Accumulator<16, kDim> dq_sums;
  for (int tile = visited.first; tile < visited.last; ++tile) {
    tile::ptx::cp_async_wait_all();
    if (tile == visited.first) rotate(q_tile, block_query);
    rotate(k_tile(tile), tile * kKeys);
    // This tile has landed and its keys are rotated, and all warps are done with the previous one,
    // whose buffer the next copy overwrites.
    __syncthreads();
    if (tile + 1 < visited.last) copy(tile + 1);
    const bool whole = tile >= visited.whole_first && tile < visited.whole_last;
    if (!whole && !mask.any_sees(warp_query, 16, tile * kKeys, kKeys)) continue;
    // P = exp2(Q K^T - lse)
    Accumulator<16, kKeys> weights, dscores;
    mma_ABt<T>(weights, q_tile, warp_row, k_tile(tile), 0);
    if (!whole) hide(weights, mask, warp_query, tile * kKeys);
    // dS = P (dO V^T - delta)
    mma_ABt<T>(dscores, dout_tile, warp_row, v_tile(tile), 0);
    weigh_rows<true>(
        weights, dscores, [&](int r) { return of_lane[r]; }, scale * tile::kLog2E);
    // dQ += dS K
    mma_AB<T>(dq_sums, as_fragment<T>(dscores), k_tile(tile), 0);
  }
  dq_sums.scale(scale);
  // dq = R^T dQ
  const std::int64_t entry = std::int64_t{warp_query} * (kDim / 2);
  rotate_back<kLayout>(dq_sums, cos + entry, sin + entry, mask.queries - warp_query);
  store(dq_sums, dq.rows(work.batch, work.head), warp_query, mask.queries);
}

/// dK and dV of a tile of keys, over all queries of all heads that share it.
template <class T, int kDim, Layout kLayout>
__global__ void attention_backward_fused_dkv(Heads<const T> q,     // [batch][length][heads][kDim]
                                             Heads<const T> k,     // [batch][length][heads / group]
                                             Heads<const T> v,     // as k
                                             Heads<const T> dout,  // as q
                                             const tile::RowStats* stats,  // [batch][heads][rows]
                                             Heads<T> dk,                  // as k
                                             Heads<T> dv,                  // as k
                                             const float* cos,             // [length][kDim / 2]
                                             const float* sin,             // as cos
                                             tile::Mask mask, int batch, int heads, int group,
                                             float scale) {
  using Plan = TilePlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kKeys = Plan::kKept, kQueries = Plan::kPassing;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {keys, values, [2]{queries, their dO}}
  const KeyTile k_tile(smem), v_tile(smem + KeyTile::kBytes);
  const auto work = tile::keys_longest_first(batch, heads / group, (mask.keys + kKeys - 1) / kKeys);
  const tile::Mask transposed = mask.transposed();
  const int block_key = work.tile * kKeys;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;  // in the tile
  const int warp_key = block_key + warp_row;
  // An iteration is a tile of queries that see these keys; the loop takes the heads that share the
  // keys in turn.
  const tile::Mask::Tiles visited = transposed.tiles(block_key, kKeys, kQueries);
  const int tiles = visited.last - visited.first;
  const auto head_of = [&](int turn) { return work.head * group + turn / tiles; };
  const auto tile_of = [&](int turn) { return visited.first + turn % tiles; };

  const auto q_tile = [&](int turn) {
    return QueryTile(smem + 2 * KeyTile::kBytes + turn % 2 * 2 * QueryTile::kBytes);
  };
  const auto dout_tile = [&](int turn) { return q_tile(turn).after(QueryTile::kBytes); };
  const auto copy = [&](int turn) {
    const int query = tile_of(turn) * kQueries;
    copy_units_async<kLayout, kThreads>(q_tile(turn), q.rows(work.batch, head_of(turn), query),
                                        mask.queries - query);
    dout_tile(turn).template copy_async<kThreads>(dout.rows(work.batch, head_of(turn), query),
                                                  mask.queries - query);
  };
  const auto rotate = [&](const auto& tile, int first) {  // R q, or R k
    const std::int64_t entry = std::int64_t{first} * (kDim / 2);
    rotate_units<kLayout, kThreads>(tile, cos + entry, sin + entry, mask.keys - first);
  };
  copy_units_async<kLayout, kThreads>(k_tile, k.rows(work.batch, work.head, block_key),
                                      mask.keys - block_key);
  v_tile.template copy_async<kThreads>(v.rows(work.batch, work.head, block_key),
                                       mask.keys - block_key);
  copy(0);

  Accumulator<16, kDim> dk_sums, dv_sums;
  for (int turn = 0; turn < tiles * group; ++turn) {
    tile::ptx::cp_async_wait_all();
    if (turn == 0) rotate(k_tile, block_key);
    rotate(q_tile(turn), tile_of(turn) * kQueries);
    // These queries have landed and are rotated, and all warps are done with the previous ones,
    // whose buffer the next copy overwrites.
    __syncthreads();
    if (turn + 1 < tiles * group) copy(turn + 1);
    const int tile = tile_of(turn), query = tile * kQueries;
    const bool whole = tile >= visited.whole_first && tile < visited.whole_last;
    if (!whole && !transposed.any_sees(warp_key, 16, query, kQueries)) continue;
    // P^T = exp2(K Q^T - lse)
    Accumulator<16, kQueries> weights, dscores;
    mma_ABt<T>(weights, k_tile, warp_row, q_tile(turn), 0);
    if (!whole) hide(weights, transposed, warp_key, query);
    // dS^T = P^T (V dO^T - delta)
    mma_ABt<T>(dscores, v_tile, warp_row, dout_tile(turn), 0);
    const tile::RowStats* of_tile =
        stats_of_head(stats, {work.batch, head_of(turn), 0}, heads, mask.queries) + query;
    weigh<true>(weights, dscores, of_tile, scale * tile::kLog2E);
    // dV += P^T dO, dK += dS^T Q
    mma_AB<T>(dv_sums, as_fragment<T>(weights), dout_tile(turn), 0);
    mma_AB<T>(dk_sums, as_fragment<T>(dscores), q_tile(turn), 0);
  }
  dk_sums.scale(scale);
  // dk = R^T dK
  const std::int64_t entry = std::int64_t{warp_key} * (kDim / 2);
  rotate_back<kLayout>(dk_sums, cos + entry, sin + entry, mask.keys - warp_key);
  store(dk_sums, dk.rows(work.batch, work.head), warp_key, mask.keys);
  store(dv_sums, dv.rows(work.batch, work.head), warp_key, mask.keys);
}

}  // namespace

tile::Status takes_fused(const AttentionBackward& p, const tile::Device&) {
  TILE_TRY(check_rotates_on_load(p));
  return check_attention(p, stats_bytes(p));
}

tile::Status fused(const AttentionBackward& p, void* stream) {
  unsigned keys = 0, queries = 0;  // blocks
  constexpr int kKept = TilePlan<64>::kKept;
  static_assert(kKept == TilePlan<128>::kKept);
  TILE_TRY(tile::blocks_for_tiles(p, p.kv_heads, p.keys, kKept, &keys));
  TILE_TRY(tile::blocks_for_tiles(p, p.heads, p.queries, kKept, &queries));
  TILE_TRY(compute_stats(p, stream));
  return with_layout(p, [&](auto element, auto head_dim, auto layout) -> tile::Status {
    using T = decltype(element);
    constexpr int kDim = head_dim.value, kBytes = TilePlan<kDim>::kBytes;
    constexpr int kThreads = TilePlan<kDim>::kThreads;
    constexpr Layout kLayout = layout.value;
    const auto q = heads_of<const T>(p.q.data, p.q.stride);
    const auto k = heads_of<const T>(p.k.data, p.k.stride);
    const auto v = heads_of<const T>(p.v.data, p.v.stride);
    const auto dout = heads_of<const T>(p.dout.data, p.dout.stride);
    const float* cos = from_first_position(p.rotary, p.rotary.cos);
    const float* sin = from_first_position(p.rotary, p.rotary.sin);
    const auto* stats = static_cast<const tile::RowStats*>(p.workspace);
    TILE_TRY(tile::launch(attention_backward_fused_dq<T, kDim, kLayout>,
                          "attention_backward_fused_dq", queries, kThreads, kBytes, stream, q, k, v,
                          dout, stats, heads_of<T>(p.dq.data, p.dq.stride), cos, sin, mask_of(p),
                          p.batch, p.heads, tile::group_of(p), p.scale));
    return tile::launch(attention_backward_fused_dkv<T, kDim, kLayout>,
                        "attention_backward_fused_dkv", keys, kThreads, kBytes, stream, q, k, v,
                        dout, stats, heads_of<T>(p.dk.data, p.dk.stride),
                        heads_of<T>(p.dv.data, p.dv.stride), cos, sin, mask_of(p), p.batch, p.heads,
                        tile::group_of(p), p.scale);
  });
}

}  // namespace rope
