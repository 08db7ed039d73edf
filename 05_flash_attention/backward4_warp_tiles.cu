// Backward, step 4: 32 rows for each warp.
// Idea: as in the forward pass, a warp multiplies each factor that it loads from shared memory with
//       32 keys, or 32 queries (16 at 256 columns), and keeps queries and their dO in registers
//       where they fit. From 128 columns on no warp has registers for the gradients of 32 keys: so
//       several warps share the keys, divide their columns and the queries, and exchange the
//       weights and their gradients.
// Change: KeyPlan and QueryPlan; parts of a tile; P and dS in shared memory, and one barrier more,
//         from 128 columns on; delta is subtracted before the product.
// Limit: no warp multiplies while the block copies, and every tile is masked element by element,
//        also where no score of it is seen.
#include "key_plan.cuh"
#include "launch.hpp"
#include "query_plan.cuh"
#include "tile/query_stage.cuh"
#include "tile/stored_scores.cuh"
#include "two_sides.hpp"

namespace flash_attention {
namespace {

using tile::SharedTile, tile::Accumulator;

/// dK and dV of a tile of keys, over all queries of all heads that share it.
template <class T, int kDim>
__global__ void __launch_bounds__(KeyPlan<kDim>::kThreads, KeyPlan<kDim>::kBlocks)
    attention_backward_warp_tiles_dkv(Heads<const T> q,       // [batch][queries][heads][kDim]
                                      Heads<const T> k,       // [batch][keys][heads / group][kDim]
                                      Heads<const T> v,       // as k
                                      Heads<const T> dout,    // as q
                                      const RowStats* stats,  // [batch][heads][rows of stats]
                                      Heads<T> dk,            // as k
                                      Heads<T> dv,            // as k
                                      BatchMasks masks, int heads, int group, float scale) {
  using Plan = KeyPlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kKeys = Plan::kKept, kQueries = Plan::kPassing;
  constexpr int kPart = Plan::kPart, kSharing = Plan::kSharing;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using ScoreTile = SharedTile<T, kKeys, kQueries>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {keys, values, queries, their dO}
  const KeyTile k_tile(smem), v_tile(smem + KeyTile::kBytes);
  const QueryTile q_tile(smem + 2 * KeyTile::kBytes);
  const QueryTile dout_tile(smem + 2 * KeyTile::kBytes + QueryTile::kBytes);
  const ScoreTile p_tile(smem + 2 * (KeyTile::kBytes + QueryTile::kBytes));
  const ScoreTile ds_tile = p_tile.after(ScoreTile::kBytes);  // both with sharing only
  const auto work = work_of_block(heads / group, (masks.keys + kKeys - 1) / kKeys);
  const Mask transposed = masks.of(work.batch).transposed();
  const int block_key = work.tile * kKeys, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_key = warp / Plan::kSharing * Plan::kRows;  // in the tile
  const int col0 = warp % Plan::kSharing * Plan::kCols;
  k_tile.template copy<kThreads>(k.rows(work.batch, work.head, block_key),
                                 transposed.queries - block_key);
  v_tile.template copy<kThreads>(v.rows(work.batch, work.head, block_key),
                                 transposed.queries - block_key);

  Accumulator<Plan::kRows, Plan::kCols> dk_sums, dv_sums;
  for (int head = work.head * group; head < (work.head + 1) * group; ++head) {
    const RowStats* of_head = stats_of_head(stats, {work.batch, head, 0}, heads, masks.queries);
    for (int query = 0; query < transposed.keys; query += kQueries) {
      // snippet-begin turn
      __syncthreads();  // all warps are done with the previous tile
      q_tile.template copy<kThreads>(q.rows(work.batch, head, query), transposed.keys - query);
      dout_tile.template copy<kThreads>(dout.rows(work.batch, head, query),
                                        transposed.keys - query);
      __syncthreads();  // these are there
#pragma unroll 1        // or ptxas interleaves the parts and runs out of registers
      for (int i = 0; i < Plan::kParts; ++i) {
        const int part = (warp % kSharing + i) * kPart;  // its first query in the tile
        // P^T = exp2(K Q^T - lse)
        Accumulator<Plan::kRows, kPart> weights, dscores;
        mma_ABt<T>(weights, k_tile, warp_key, q_tile, part);
        hide(weights, transposed, block_key + warp_key, query + part);
        weigh(weights, dscores, of_head + query + part, scale * kLog2E);
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
          add_stored_part<T, kPart>(dv_sums, dk_sums, p_tile, ds_tile, warp_key, dout_tile, q_tile,
                                    part, col0);
        }
      }
      // snippet-end turn
    }
  }
  dk_sums.scale(scale);
  store(dk_sums, dk.rows(work.batch, work.head), block_key + warp_key, masks.keys, col0);
  store(dv_sums, dv.rows(work.batch, work.head), block_key + warp_key, masks.keys, col0);
}

/// dQ of a tile of queries.
template <class T, int kDim>
__global__ void __launch_bounds__(QueryPlan<kDim>::kThreads, QueryPlan<kDim>::kBlocks)
    attention_backward_warp_tiles_dq(Heads<const T> q,       // [batch][queries][heads][kDim]
                                     Heads<const T> k,       // [batch][keys][heads / group][kDim]
                                     Heads<const T> v,       // as k
                                     Heads<const T> dout,    // as q
                                     const RowStats* stats,  // [batch][heads][rows of stats]
                                     Heads<T> dq,            // as q
                                     BatchMasks masks, int heads, int group, float scale) {
  using Plan = QueryPlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kQueries = Plan::kKept, kKeys = Plan::kPassing;
  constexpr int kPart = Plan::kPart;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, their dO, keys, values}
  const QueryTile q_tile(smem), dout_tile(smem + QueryTile::kBytes);
  const KeyTile k_tile(smem + 2 * QueryTile::kBytes);
  const KeyTile v_tile(smem + 2 * QueryTile::kBytes + KeyTile::kBytes);
  const auto work = work_of_block(heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_query = static_cast<int>(threadIdx.x) / 32 * Plan::kRows;  // in the tile
  q_tile.template copy<kThreads>(q.rows(work.batch, work.head, block_query),
                                 mask.queries - block_query);
  dout_tile.template copy<kThreads>(dout.rows(work.batch, work.head, block_query),
                                    mask.queries - block_query);
  __syncthreads();  // the queries are there
  tile::Fragment<Plan::kRows, Plan::kKeep ? kDim : 16> queries, douts;
  if constexpr (Plan::kKeep) load(queries, q_tile, warp_query), load(douts, dout_tile, warp_query);

  Accumulator<Plan::kRows, kDim> dq_sums;
  const RowStats* of_warp =
      stats_of_head(stats, work, heads, masks.queries) + block_query + warp_query;

  for (int key = 0; key < mask.keys; key += kKeys) {
    __syncthreads();  // all warps have read the previous keys
    k_tile.template copy<kThreads>(k.rows(work.batch, kv_head, key), mask.keys - key);
    v_tile.template copy<kThreads>(v.rows(work.batch, kv_head, key), mask.keys - key);
    __syncthreads();  // these are there
#pragma unroll 1      // as above
    for (int part = 0; part < kKeys; part += kPart) {
      // P = exp2(Q K^T - lse)
      Accumulator<Plan::kRows, kPart> weights, dscores;
      mma_ABt<T>(weights, queries, q_tile, warp_query, k_tile, part);
      hide(weights, mask, block_query + warp_query, key + part);
      weigh_rows(
          weights, dscores, [&](int r) { return of_warp[weights.row(r)]; }, scale * kLog2E);
      // dS = P (dO V^T - delta)
      mma_ABt<T>(dscores, douts, dout_tile, warp_query, v_tile, part);
      multiply(dscores, weights);
      // dQ += dS K
      mma_AB<T>(dq_sums, as_fragment<T>(dscores), k_tile, part);
    }
  }
  dq_sums.scale(scale);
  store(dq_sums, dq.rows(work.batch, work.head), block_query + warp_query, masks.queries);
}

}  // namespace

tile::Status takes_warp_tiles(const AttentionBackward& p, const tile::Device& device) {
  TILE_TRY(check_chunks(p));
  TILE_TRY(tile::with_head_dim(p.head_dim, [&](auto head_dim) {
    constexpr int kDim = head_dim.value;
    return check_shared_bytes(p, std::max(KeyPlan<kDim>::bytes(), QueryPlan<kDim>::bytes(1)),
                              device);
  }));
  return tile::check_workspace(stats_bytes(p), p.workspace_bytes);
}

tile::Status warp_tiles(const AttentionBackward& p, void* stream) {
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value;
    TILE_TRY(compute_stats(p, stream));
    return launch_sides<T>(
        p, stream,
        Side(attention_backward_warp_tiles_dkv<T, kDim>, "attention_backward_warp_tiles_dkv",
             KeyPlan<kDim>::kKept, KeyPlan<kDim>::kThreads, KeyPlan<kDim>::bytes()),
        Side(attention_backward_warp_tiles_dq<T, kDim>, "attention_backward_warp_tiles_dq",
             QueryPlan<kDim>::kKept, QueryPlan<kDim>::kThreads, QueryPlan<kDim>::bytes(1)),
        p.heads, group_of(p), p.scale);
  });
}

}  // namespace flash_attention
