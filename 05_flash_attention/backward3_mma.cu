// Backward, step 3: tensor cores.
// Idea: with S^T = K Q^T instead of S, a lane holds weights of its own keys, as dV += P^T dO and dK
//       += dS^T Q need them in their left factors. With S = Q K^T it holds weights of its own
//       queries, as dQ needs them. So weights and their gradients never go through shared memory.
// Change: a warp keeps 16 keys, or 16 queries; tiles of 16-bit elements, swizzled.
// Limit: no warp multiplies while the block copies, every tile is masked element by element, and
//        each factor from shared memory is used for 16 rows only.
#include "launch.hpp"
#include "tile/query_stage.cuh"
#include "two_sides.hpp"

namespace flash_attention {
namespace {

using tile::SharedTile, tile::Accumulator;

/// 48 KiB of shared memory at most.
template <int kDim>
struct TilePlan {
  static constexpr int kWarps = 4, kThreads = kWarps * 32;
  static constexpr int kRows = 16;  // of a warp
  // At 128 columns the gradients of 16 rows fill the registers. Beyond that two warps share the
  // rows, and each has half of the columns.
  static constexpr int kCols = kDim <= 128 ? kDim : 128, kSharing = kDim / kCols;
  static constexpr int kKept = kWarps / kSharing * kRows;  // rows of a block
  static constexpr int kPassing = kDim <= 64 ? 64 : 16;    // rows of a tile of the loop
  static constexpr int kBytes = 2 * (kKept + kPassing) * kDim * 2;
};

// snippet-begin keys
/// dK and dV of a tile of keys, over all queries of all heads that share it.
template <class T, int kDim>
__global__ void attention_backward_mma_dkv(Heads<const T> q,  // [batch][queries][heads][kDim]
                                           Heads<const T> k,  // [batch][keys][heads / group][kDim]
                                           Heads<const T> v,  // as k
                                           Heads<const T> dout,    // as q
                                           const RowStats* stats,  // [batch][heads][rows of stats]
                                           Heads<T> dk,            // as k
                                           Heads<T> dv,            // as k
                                           BatchMasks masks, int heads, int group, float scale) {
  using Plan = TilePlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kKeys = Plan::kKept, kQueries = Plan::kPassing;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {keys, values, queries, their dO}
  const KeyTile k_tile(smem), v_tile(smem + KeyTile::kBytes);
  const QueryTile q_tile(smem + 2 * KeyTile::kBytes);
  const QueryTile dout_tile(smem + 2 * KeyTile::kBytes + QueryTile::kBytes);
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
      __syncthreads();  // all warps are done with the previous tile
      q_tile.template copy<kThreads>(q.rows(work.batch, head, query), transposed.keys - query);
      dout_tile.template copy<kThreads>(dout.rows(work.batch, head, query),
                                        transposed.keys - query);
      __syncthreads();  // these are there
      // P^T = exp2(K Q^T - lse)
      Accumulator<Plan::kRows, kQueries> weights, dscores;
      mma_ABt<T>(weights, k_tile, warp_key, q_tile, 0);
      hide(weights, transposed, block_key + warp_key, query);
      // dS^T = P^T (V dO^T - delta)
      mma_ABt<T>(dscores, v_tile, warp_key, dout_tile, 0);
      weigh<true>(weights, dscores, of_head + query, scale * kLog2E);
      // dV += P^T dO, dK += dS^T Q
      mma_AB<T>(dv_sums, as_fragment<T>(weights), dout_tile, 0, col0);
      mma_AB<T>(dk_sums, as_fragment<T>(dscores), q_tile, 0, col0);
    }
  }
  dk_sums.scale(scale);
  store(dk_sums, dk.rows(work.batch, work.head), block_key + warp_key, masks.keys, col0);
  store(dv_sums, dv.rows(work.batch, work.head), block_key + warp_key, masks.keys, col0);
}
// snippet-end keys

/// dQ of a tile of queries.
template <class T, int kDim>
__global__ void attention_backward_mma_dq(Heads<const T> q,  // [batch][queries][heads][kDim]
                                          Heads<const T> k,  // [batch][keys][heads / group][kDim]
                                          Heads<const T> v,  // as k
                                          Heads<const T> dout,    // as q
                                          const RowStats* stats,  // [batch][heads][rows of stats]
                                          Heads<T> dq,            // as q
                                          BatchMasks masks, int heads, int group, float scale) {
  using Plan = TilePlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kQueries = Plan::kKept, kKeys = Plan::kPassing;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, their dO, keys, values}
  const QueryTile q_tile(smem), dout_tile(smem + QueryTile::kBytes);
  const KeyTile k_tile(smem + 2 * QueryTile::kBytes);
  const KeyTile v_tile(smem + 2 * QueryTile::kBytes + KeyTile::kBytes);
  const auto work = work_of_block(heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_query = warp / Plan::kSharing * Plan::kRows;  // in the tile
  const int col0 = warp % Plan::kSharing * Plan::kCols;
  q_tile.template copy<kThreads>(q.rows(work.batch, work.head, block_query),
                                 mask.queries - block_query);
  dout_tile.template copy<kThreads>(dout.rows(work.batch, work.head, block_query),
                                    mask.queries - block_query);
  const RowStats* of_tile = stats_of_head(stats, work, heads, masks.queries) + block_query;

  Accumulator<Plan::kRows, Plan::kCols> dq_sums;
  for (int key = 0; key < mask.keys; key += kKeys) {
    __syncthreads();  // all warps have read the previous keys
    k_tile.template copy<kThreads>(k.rows(work.batch, kv_head, key), mask.keys - key);
    v_tile.template copy<kThreads>(v.rows(work.batch, kv_head, key), mask.keys - key);
    __syncthreads();  // these are there
    // P = exp2(Q K^T - lse)
    Accumulator<Plan::kRows, kKeys> weights, dscores;
    mma_ABt<T>(weights, q_tile, warp_query, k_tile, 0);
    hide(weights, mask, block_query + warp_query, key);
    // dS = P (dO V^T - delta)
    mma_ABt<T>(dscores, dout_tile, warp_query, v_tile, 0);
    weigh_rows<true>(
        weights, dscores, [&](int r) { return of_tile[warp_query + weights.row(r)]; },
        scale * kLog2E);
    // dQ += dS K
    mma_AB<T>(dq_sums, as_fragment<T>(dscores), k_tile, 0, col0);
  }
  dq_sums.scale(scale);
  store(dq_sums, dq.rows(work.batch, work.head), block_query + warp_query, masks.queries, col0);
}

}  // namespace

tile::Status takes_mma(const AttentionBackward& p, const tile::Device&) {
  TILE_TRY(check_chunks(p));
  return tile::check_workspace(stats_bytes(p), p.workspace_bytes);
}

tile::Status mma(const AttentionBackward& p, void* stream) {
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value;
    using Plan = TilePlan<kDim>;
    TILE_TRY(compute_stats(p, stream));
    return launch_sides<T>(p, stream,
                           Side(attention_backward_mma_dkv<T, kDim>, "attention_backward_mma_dkv",
                                Plan::kKept, Plan::kThreads, Plan::kBytes),
                           Side(attention_backward_mma_dq<T, kDim>, "attention_backward_mma_dq",
                                Plan::kKept, Plan::kThreads, Plan::kBytes),
                           p.heads, group_of(p), p.scale);
  });
}

}  // namespace flash_attention
