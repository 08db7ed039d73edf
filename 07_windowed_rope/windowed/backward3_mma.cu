// Backward, step 3: tensor cores.
// Idea: chapter 05's third step, for one part of the mask after the other. Near and far keys need
//       gradients of their own, and the registers hold those of one pair: after the far parts dK2,
//       or dQ2, is stored and the sums begin at zero again. dV is a sum over all parts.
// Change: a warp keeps 16 keys, or 16 queries; tiles of 16-bit elements, swizzled. A mixed tile is
//         visited twice; tiles that no query sees are skipped.
// Limit: no warp multiplies while the block copies, every tile is masked element by element, and
//        each factor from shared memory is used for 16 rows only.
#include "tile/query_stage.cuh"
#include "windowed/kinds.hpp"
#include "windowed/launch.hpp"

namespace windowed_rope {
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

/// dK1, dK2 and dV of a tile of keys, over all queries of all heads that share it.
template <class T, int kDim>
__global__ void windowed_backward_mma_dkv(Heads<const T> q1,  // [batch][queries][heads][kDim]
                                          Heads<const T> k1,  // [batch][keys][heads / group][kDim]
                                          Heads<const T> q2,  // as q1
                                          Heads<const T> k2,  // as k1
                                          Heads<const T> v,   // as k1
                                          Heads<const T> dout,    // as q1
                                          const RowStats* stats,  // [batch][heads][rows of stats]
                                          Heads<T> dk1,           // as k1
                                          Heads<T> dk2,           // as k1
                                          Heads<T> dv,            // as k1
                                          BatchMasks masks, Window window, int heads, int group,
                                          float scale) {
  using Plan = TilePlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kKeys = Plan::kKept, kQueries = Plan::kPassing;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {keys, values, queries, their dO}
  const KeyTile k_tile(smem), v_tile(smem + KeyTile::kBytes);
  const QueryTile q_tile(smem + 2 * KeyTile::kBytes);
  const QueryTile dout_tile(smem + 2 * KeyTile::kBytes + QueryTile::kBytes);
  const auto work = work_of_block(heads / group, (masks.keys + kKeys - 1) / kKeys);
  const Mask whole_mask = masks.of(work.batch).transposed();
  const int block_key = work.tile * kKeys, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_key = warp / Plan::kSharing * Plan::kRows;  // in the tile
  const int col0 = warp % Plan::kSharing * Plan::kCols;
  v_tile.template copy<kThreads>(v.rows(work.batch, work.head, block_key),
                                 whole_mask.queries - block_key);

  Accumulator<Plan::kRows, Plan::kCols> dk_sums, dv_sums;
  for (int part = 0; part < Window::kParts; ++part) {
    const bool near = Window::is_near(part);
    const Mask transposed = window.part(whole_mask, part);
    const Heads<const T> q = near ? q1 : q2, k = near ? k1 : k2;
    __syncthreads();  // all warps have read the previous keys
    k_tile.template copy<kThreads>(k.rows(work.batch, work.head, block_key),
                                   transposed.queries - block_key);
    for (int head = work.head * group; head < (work.head + 1) * group; ++head) {
      const RowStats* of_head = stats_of_head(stats, {work.batch, head, 0}, heads, masks.queries);
      for (int query = 0; query < transposed.keys; query += kQueries) {
        if (!any_sees(transposed, block_key, kKeys, query, kQueries)) continue;
        __syncthreads();  // all warps have read the previous queries
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
    if (part == 0) continue;  // dK2 is a sum over two parts
    dk_sums.scale(scale);
    store(dk_sums, (near ? dk1 : dk2).rows(work.batch, work.head), block_key + warp_key, masks.keys,
          col0);
    dk_sums = {};
  }
  store(dv_sums, dv.rows(work.batch, work.head), block_key + warp_key, masks.keys, col0);
}

/// dQ1 and dQ2 of a tile of queries.
template <class T, int kDim>
__global__ void windowed_backward_mma_dq(Heads<const T> q1,    // [batch][queries][heads][kDim]
                                         Heads<const T> k1,    // [batch][keys][heads / group][kDim]
                                         Heads<const T> q2,    // as q1
                                         Heads<const T> k2,    // as k1
                                         Heads<const T> v,     // as k1
                                         Heads<const T> dout,  // as q1
                                         const RowStats* stats,  // [batch][heads][rows of stats]
                                         Heads<T> dq1,           // as q1
                                         Heads<T> dq2,           // as q1
                                         BatchMasks masks, Window window, int heads, int group,
                                         float scale) {
  using Plan = TilePlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kQueries = Plan::kKept, kKeys = Plan::kPassing;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, their dO, keys, values}
  const QueryTile q_tile(smem), dout_tile(smem + QueryTile::kBytes);
  const KeyTile k_tile(smem + 2 * QueryTile::kBytes);
  const KeyTile v_tile(smem + 2 * QueryTile::kBytes + KeyTile::kBytes);
  const auto work = work_of_block(heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask whole_mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_query = warp / Plan::kSharing * Plan::kRows;  // in the tile
  const int col0 = warp % Plan::kSharing * Plan::kCols;
  dout_tile.template copy<kThreads>(dout.rows(work.batch, work.head, block_query),
                                    whole_mask.queries - block_query);
  const RowStats* of_tile = stats_of_head(stats, work, heads, masks.queries) + block_query;

  Accumulator<Plan::kRows, Plan::kCols> dq_sums;
  for (int part = 0; part < Window::kParts; ++part) {
    const bool near = Window::is_near(part);
    const Mask mask = window.part(whole_mask, part);
    const Heads<const T> q = near ? q1 : q2, k = near ? k1 : k2;
    __syncthreads();  // all warps have read the previous queries
    q_tile.template copy<kThreads>(q.rows(work.batch, work.head, block_query),
                                   mask.queries - block_query);
    for (int key = 0; key < mask.keys; key += kKeys) {
      if (!any_sees(mask, block_query, kQueries, key, kKeys)) continue;
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
    if (part == 0) continue;  // dQ2 is a sum over two parts
    dq_sums.scale(scale);
    store(dq_sums, (near ? dq1 : dq2).rows(work.batch, work.head), block_query + warp_query,
          masks.queries, col0);
    dq_sums = {};
  }
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
    unsigned keys = 0, queries = 0;  // blocks
    TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, Plan::kKept, &keys));
    TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, Plan::kKept, &queries));
    TILE_TRY(compute_stats(p, stream));
    const auto q1 = heads_of<const T>(p.q), k1 = heads_of<const T>(p.k);
    const auto q2 = heads_of<const T>(p.q_far), k2 = heads_of<const T>(p.k_far);
    const auto v = heads_of<const T>(p.v), dout = heads_of<const T>(p.dout);
    const auto* stats = static_cast<const RowStats*>(p.workspace);
    const BatchMasks masks = masks_of(p);
    const Window window = window_of(p);
    const int heads = static_cast<int>(p.heads);
    TILE_TRY(tile::launch(windowed_backward_mma_dkv<T, kDim>, "windowed_backward_mma_dkv", keys,
                          Plan::kThreads, Plan::kBytes, stream, q1, k1, q2, k2, v, dout, stats,
                          heads_of<T>(p.dk), heads_of<T>(p.dk_far), heads_of<T>(p.dv), masks,
                          window, heads, group_of(p), p.scale));
    return tile::launch(windowed_backward_mma_dq<T, kDim>, "windowed_backward_mma_dq", queries,
                        Plan::kThreads, Plan::kBytes, stream, q1, k1, q2, k2, v, dout, stats,
                        heads_of<T>(p.dq), heads_of<T>(p.dq_far), masks, window, heads, group_of(p),
                        p.scale);
  });
}

}  // namespace windowed_rope
