// Backward, step 5: copies in the background.
// Idea: as in the forward pass, the next tile is copied while this one is multiplied, and only
//       visible tiles are visited. Still one warp adds up each element of a gradient, always in the
//       same order: this is the last step that gives the same bits in each run.
// Change: two stages of queries, with their stats, or of keys; Mask::tiles(), separate code for
//         whole tiles, and no work for a part of a tile that the warp does not see; blocks with the
//         most work begin first.
// Limit: S and dP are computed twice, once for dK and dV and once for dQ.
#include "key_plan.cuh"
#include "launch.hpp"
#include "query_plan.cuh"
#include "tile/stored_scores.cuh"
#include "two_sides.hpp"

namespace flash_attention {
namespace {

using tile::SharedTile, tile::Accumulator;

/// dK and dV of a tile of keys, over all queries of all heads that share it.
template <class T, int kDim>
__global__ void __launch_bounds__(KeyPlan<kDim>::kThreads, KeyPlan<kDim>::kBlocks)
    attention_backward_pipeline_dkv(Heads<const T> q,       // [batch][queries][heads][kDim]
                                    Heads<const T> k,       // [batch][keys][heads / group][kDim]
                                    Heads<const T> v,       // as k
                                    Heads<const T> dout,    // as q
                                    const RowStats* stats,  // [batch][heads][rows of stats]
                                    Heads<T> dk,            // as k
                                    Heads<T> dv,            // as k
                                    BatchMasks masks, int batch, int heads, int group,
                                    float scale) {
  using Plan = KeyPlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kKeys = Plan::kKept, kQueries = Plan::kPassing;
  constexpr int kPart = Plan::kPart, kSharing = Plan::kSharing;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  using Stage = tile::QueryStage<T, kQueries, kDim>;
  using ScoreTile = SharedTile<T, kKeys, kQueries>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {keys, values, [2]{stage}}
  unsigned char* const stages = smem + 2 * KeyTile::kBytes;
  const ScoreTile p_tile(smem + 2 * (KeyTile::kBytes + Stage::kBytes));
  const ScoreTile ds_tile = p_tile.after(ScoreTile::kBytes);  // both with sharing only
  const auto work = keys_longest_first(batch, heads / group, (masks.keys + kKeys - 1) / kKeys);
  const Mask transposed = masks.of(work.batch).transposed();
  const int block_key = work.tile * kKeys, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_key = warp / kSharing * Plan::kRows, col0 = warp % kSharing * Plan::kCols;
  // Tiles of queries that see these keys; the loop takes the heads that share the keys in turn.
  const Mask::Tiles visited = transposed.tiles(block_key, kKeys, kQueries);
  int head = work.head * group, parity = 0;  // parity of the iteration, which selects the stage
  const int end_head = visited.first < visited.last ? head + group : head;

  const auto copy = [&](int of_head, int tile) {
    const int query = tile * kQueries;
    Stage(stages + parity * Stage::kBytes)
        .template copy_async<kThreads>(
            q.rows(work.batch, of_head, query), dout.rows(work.batch, of_head, query),
            stats_of_head(stats, {work.batch, of_head, 0}, heads, masks.queries) + query,
            transposed.keys - query);
  };
  KeyTile(smem).template copy_async_in_steps<kThreads>(k.rows(work.batch, work.head, block_key),
                                                       transposed.queries - block_key);
  KeyTile(smem + KeyTile::kBytes)
      .template copy_async_in_steps<kThreads>(v.rows(work.batch, work.head, block_key),
                                              transposed.queries - block_key);
  if (head < end_head) copy(head, visited.first);

  Accumulator<Plan::kRows, Plan::kCols> dk_sums, dv_sums;
  const auto iterate = [&](int tile, auto is_border) {
    const int query = tile * kQueries;
    // snippet-begin turn
    // Built inside the loop on purpose: hoisted, their addresses would cause spills.
    const KeyTile k_tile(smem), v_tile(smem + KeyTile::kBytes);
    const auto [q_tile, dout_tile, of_tile] = Stage(stages + parity * Stage::kBytes);
    const auto is_seen = [&](int part) {  // whether any of its queries sees a key of this warp
      return !decltype(is_border)::value ||
             transposed.any_sees(block_key + warp_key, Plan::kRows, query + part, kPart);
    };
    tile::ptx::cp_async_wait_all();
    // These queries have landed, and no warp still reads the weights or the queries before them.
    __syncthreads();
    const bool is_last = tile + 1 == visited.last;  // of this head
    parity ^= 1;
    if (head + is_last < end_head) copy(head + is_last, is_last ? visited.first : tile + 1);
#pragma unroll 1  // or ptxas interleaves the parts and runs out of registers
    for (int i = 0; i < Plan::kParts; ++i) {
      const int part = (warp % kSharing + i) * kPart;  // its first query in the tile
      if (!is_seen(part)) continue;
      // snippet-end turn
      // P^T = exp2(K Q^T - lse)
      Accumulator<Plan::kRows, kPart> weights, dscores;
      mma_ABt<T>(weights, k_tile, warp_key, q_tile, part);
      if constexpr (decltype(is_border)::value)
        hide(weights, transposed, block_key + warp_key, query + part);
      weigh(weights, dscores, of_tile + part, scale * kLog2E);
      // dV += P^T dO, and dS^T = P^T (V dO^T - delta)
      mma_ABt<T>(dscores, v_tile, warp_key, dout_tile, part);
      mma_AB<T>(dv_sums, as_fragment<T>(weights), dout_tile, part, col0);
      multiply(dscores, weights);
      // dK += dS^T Q
      mma_AB<T>(dk_sums, as_fragment<T>(dscores), q_tile, part, col0);
      if constexpr (kSharing > 1) {
        store_in_tile<T>(weights, p_tile, warp_key, part);
        store_in_tile<T>(dscores, ds_tile, warp_key, part);
      }
    }
    if constexpr (kSharing > 1) {
      __syncthreads();  // the other warps' weights are there
#pragma unroll
      for (int i = 1; i < kSharing; ++i) {
        const int part = (warp + i) % kSharing * kPart;
        if (!is_seen(part)) continue;
        add_stored_part<T, kPart>(dv_sums, dk_sums, p_tile, ds_tile, warp_key, dout_tile, q_tile,
                                  part, col0);
      }
    }
  };
  for (; head < end_head; ++head) {
    int tile = visited.first;
    for (; tile < visited.whole_first; ++tile) iterate(tile, std::true_type{});
    for (; tile < visited.whole_last; ++tile) iterate(tile, std::false_type{});
    for (; tile < visited.last; ++tile) iterate(tile, std::true_type{});
  }
  tile::ptx::cp_async_wait_all();  // if the loop is empty, the keys are still under way
  dk_sums.scale(scale);
  store(dk_sums, dk.rows(work.batch, work.head), block_key + warp_key, masks.keys, col0);
  store(dv_sums, dv.rows(work.batch, work.head), block_key + warp_key, masks.keys, col0);
}

/// dQ of a tile of queries.
template <class T, int kDim>
__global__ void __launch_bounds__(QueryPlan<kDim>::kThreads, QueryPlan<kDim>::kBlocks)
    attention_backward_pipeline_dq(Heads<const T> q,       // [batch][queries][heads][kDim]
                                   Heads<const T> k,       // [batch][keys][heads / group][kDim]
                                   Heads<const T> v,       // as k
                                   Heads<const T> dout,    // as q
                                   const RowStats* stats,  // [batch][heads][rows of stats]
                                   Heads<T> dq,            // as q
                                   BatchMasks masks, int batch, int heads, int group, float scale) {
  using Plan = QueryPlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kQueries = Plan::kKept, kKeys = Plan::kPassing;
  constexpr int kPart = Plan::kPart;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, their dO, [2]{keys, values}}
  const tile::ptx::SharedAddress base(smem);
  const QueryTile q_tile(base), dout_tile(base + QueryTile::kBytes);
  const auto work = work_longest_first(batch, heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_query = static_cast<int>(threadIdx.x) / 32 * Plan::kRows;  // in the tile

  const auto k_tile = [&](int tile) {
    return KeyTile(base + 2 * QueryTile::kBytes + tile % 2 * 2 * KeyTile::kBytes);
  };
  const auto v_tile = [&](int tile) { return k_tile(tile).after(KeyTile::kBytes); };
  const auto copy = [&](int tile) {
    const int key = tile * kKeys;
    k_tile(tile).template copy_async_in_steps<kThreads>(k.rows(work.batch, kv_head, key),
                                                        mask.keys - key);
    v_tile(tile).template copy_async_in_steps<kThreads>(v.rows(work.batch, kv_head, key),
                                                        mask.keys - key);
  };
  const Mask::Tiles visited = mask.tiles(block_query, kQueries, kKeys);
  q_tile.template copy_async_in_steps<kThreads>(q.rows(work.batch, work.head, block_query),
                                                mask.queries - block_query);
  dout_tile.template copy_async_in_steps<kThreads>(dout.rows(work.batch, work.head, block_query),
                                                   mask.queries - block_query);
  if (visited.first < visited.last) copy(visited.first);
  tile::ptx::cp_async_wait_all();
  __syncthreads();  // the queries are there
  tile::Fragment<Plan::kRows, Plan::kKeep ? kDim : 16> queries, douts;
  if constexpr (Plan::kKeep) load(queries, q_tile, warp_query), load(douts, dout_tile, warp_query);

  Accumulator<Plan::kRows, kDim> dq_sums;
  const RowStats* of_warp =
      stats_of_head(stats, work, heads, masks.queries) + block_query + warp_query;

  const auto visit = [&](int tile, auto is_border) {
    const QueryTile q_here(smem), dout_here(smem + QueryTile::kBytes);
    tile::ptx::cp_async_wait_all();
    // This tile has landed, and no warp still reads the previous one, which is now overwritten.
    __syncthreads();
    if (tile + 1 < visited.last) copy(tile + 1);
#pragma unroll
    for (int part = 0; part < kKeys; part += kPart) {
      const int query = block_query + warp_query, key = tile * kKeys + part;
      if (decltype(is_border)::value && !mask.any_sees(query, Plan::kRows, key, kPart)) continue;
      // P = exp2(Q K^T - lse)
      Accumulator<Plan::kRows, kPart> weights, dscores;
      mma_ABt<T>(weights, queries, q_here, warp_query, k_tile(tile), part);
      if constexpr (decltype(is_border)::value) hide(weights, mask, query, key);
      weigh_rows(
          weights, dscores, [&](int r) { return of_warp[weights.row(r)]; }, scale * kLog2E);
      // dS = P (dO V^T - delta)
      mma_ABt<T>(dscores, douts, dout_here, warp_query, v_tile(tile), part);
      multiply(dscores, weights);
      // dQ += dS K
      mma_AB<T>(dq_sums, as_fragment<T>(dscores), k_tile(tile), part);
    }
  };
  int tile = visited.first;
  for (; tile < visited.whole_first; ++tile) visit(tile, std::true_type{});
  for (; tile < visited.whole_last; ++tile) visit(tile, std::false_type{});
  for (; tile < visited.last; ++tile) visit(tile, std::true_type{});
  dq_sums.scale(scale);
  store(dq_sums, dq.rows(work.batch, work.head), block_query + warp_query, masks.queries);
}

}  // namespace

tile::Status takes_pipeline(const AttentionBackward& p, const tile::Device& device) {
  TILE_TRY(check_chunks(p));
  TILE_TRY(tile::with_head_dim(p.head_dim, [&](auto head_dim) {
    constexpr int kDim = head_dim.value, kStages = 2 * KeyPlan<kDim>::kStageBytes;
    return check_shared_bytes(p, std::max(KeyPlan<kDim>::bytes(kStages), QueryPlan<kDim>::bytes(2)),
                              device);
  }));
  return tile::check_workspace(stats_bytes(p), p.workspace_bytes);
}

tile::Status pipeline(const AttentionBackward& p, void* stream) {
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value;
    TILE_TRY(compute_stats(p, stream));
    return launch_sides<T>(
        p, stream,
        Side(attention_backward_pipeline_dkv<T, kDim>, "attention_backward_pipeline_dkv",
             KeyPlan<kDim>::kKept, KeyPlan<kDim>::kThreads,
             KeyPlan<kDim>::bytes(2 * KeyPlan<kDim>::kStageBytes)),
        Side(attention_backward_pipeline_dq<T, kDim>, "attention_backward_pipeline_dq",
             QueryPlan<kDim>::kKept, QueryPlan<kDim>::kThreads, QueryPlan<kDim>::bytes(2)),
        p.batch, p.heads, group_of(p), p.scale);
  });
}

}  // namespace flash_attention
