// Backward, step 4: copies in the background, and the same bits in each run.
// Idea: as in the forward pass, the next tile is copied while this one is multiplied, invisible
//       tiles are skipped, and a factor from shared memory is used for 32 rows. One warp adds up
//       each element of a gradient, always in the same order: all runs give the same bits.
// Change: two stages of queries, or of keys; Mask::tiles(), and separate code for whole tiles;
//         blocks with the most work begin first; 32 rows for a warp (16 queries at 256 columns).
//         From 128 columns on, several warps share the same keys: they divide columns and queries,
//         and exchange the weights and their gradients.
// Limit: S and dP are computed twice, once for dK and dV and once for dQ.
#include "flash_attention.cuh"
#include "tile/query_stage.cuh"

namespace flash_attention {
namespace {

using tile::Fragment, tile::QueryStage, tile::SharedTile, tile::Accumulator;

/// How blocks divide their tiles among warps.
template <int kDim>
struct TilePlan {
  static constexpr int kCols = kDim <= 64 ? kDim : 64;
  // Keys are kept, and the loop is over queries. The gradients of 32 keys and 64 columns fill half
  // of a warp's registers. So beyond 64 columns kSharing warps share 32 keys; each computes the
  // weights of its part of the queries and passes them to the others.
  struct Keys {
    // Two blocks of 4 warps, or one of 8, leave a lane 255 registers.
    static constexpr int kWarps = kDim <= 64 ? 4 : 8, kBlocks = kDim <= 64 ? 2 : 1;
    static constexpr int kThreads = kWarps * 32;
    static constexpr int kSharing = kDim / kCols;
    static constexpr int kKept = kWarps / kSharing * 32, kPassing = 64;
    // A warp computes the weights of kPart queries at once, kParts times.
    static constexpr int kPart = kDim <= 128 ? 32 : 16, kParts = kPassing / kPart / kSharing;
    static_assert(kSharing == 1 || kParts == 1);
    static constexpr int kStageBytes = QueryStage<__half, kPassing, kDim>::kBytes;
    static constexpr int kScoreBytes = kSharing > 1 ? 2 * kKept* kPassing : 0;
    static constexpr int kBytes = 2 * kKept * kDim * 2 + 2 * kStageBytes + 2 * kScoreBytes;
  };
  // Queries are kept, and the loop is over keys.
  struct Queries {
    static constexpr int kWarps = kDim <= 128 ? 4 : 8, kBlocks = kDim <= 128 ? 2 : 1;
    static constexpr int kThreads = kWarps * 32;
    static constexpr int kRows = kDim <= 128 ? 32 : 16;  // of a warp
    static constexpr int kKept = kWarps * kRows, kPassing = kDim <= 64 ? 64 : 32;
    static constexpr int kPart = 32;  // keys whose weights a warp computes at once
    static constexpr int kBytes = 2 * (kKept + 2 * kPassing) * kDim * 2;
  };
  static_assert(Keys::kBytes >= Queries::kBytes,
                "takes_pipeline() asks for those of the keys only");
};

// snippet-begin keys
/// dK and dV of a tile of keys, over all queries of all heads that share it.
template <class T, int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::Keys::kThreads, TilePlan<kDim>::Keys::kBlocks)
    attention_backward_pipeline_dkv(Heads<const T> q,       // [batch][queries][heads][kDim]
                                    Heads<const T> k,       // [batch][keys][heads / group][kDim]
                                    Heads<const T> v,       // as k
                                    Heads<const T> dout,    // as q
                                    const RowStats* stats,  // [batch][heads][rows of stats]
                                    Heads<T> dk,            // as k
                                    Heads<T> dv,            // as k
                                    BatchMasks masks, int batch, int heads, int group,
                                    float scale) {
  using Plan = typename TilePlan<kDim>::Keys;
  constexpr int kThreads = Plan::kThreads, kKeys = Plan::kKept, kQueries = Plan::kPassing;
  constexpr int kPart = Plan::kPart, kSharing = Plan::kSharing;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  using Stage = QueryStage<T, kQueries, kDim>;
  using ScoreTile = SharedTile<T, kKeys, kQueries>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {keys, values, [2]{stage}, P, dS}
  unsigned char* const stages = smem + 2 * KeyTile::kBytes;
  // Neither exists without sharing.
  const ScoreTile p_tile(smem + 2 * (KeyTile::kBytes + Stage::kBytes));
  const ScoreTile ds_tile = p_tile.after(ScoreTile::kBytes);
  const auto work = keys_longest_first(batch, heads / group, (masks.keys + kKeys - 1) / kKeys);
  const Mask transposed = masks.of(work.batch).transposed();
  const int block_key = work.tile * kKeys, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_key = warp / kSharing * 32, col0 = warp % kSharing * TilePlan<kDim>::kCols;
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

  Accumulator<32, TilePlan<kDim>::kCols> dk_sums, dv_sums;
  const auto iterate = [&](int tile, auto is_border) {
    const int query = tile * kQueries;
    // Built inside the loop on purpose: hoisted, their addresses would occupy registers and cause
    // spills.
    const KeyTile k_tile(smem), v_tile(smem + KeyTile::kBytes);
    const Stage stage(stages + parity * Stage::kBytes);
    // Whether any of a part's queries sees any of this warp's keys
    const auto is_seen = [&](int part) {
      return !decltype(is_border)::value ||
             transposed.any_sees(block_key + warp_key, 32, query + part, kPart);
    };
    // snippet-begin turn
    tile::ptx::cp_async_wait_all();
    // These queries have landed, and all warps are done with the weights and with the previous
    // queries, whose buffer the next copy overwrites.
    __syncthreads();
    const bool is_last = tile + 1 == visited.last;  // of this head
    parity ^= 1;
    if (head + is_last < end_head) copy(head + is_last, is_last ? visited.first : tile + 1);
#pragma unroll 1  // or ptxas interleaves the parts and runs out of registers
    for (int i = 0; i < Plan::kParts; ++i) {
      const int part = (warp % kSharing + i) * kPart;  // its first query in the tile
      if (!is_seen(part)) continue;
      // P^T = exp2(K Q^T - lse)
      Accumulator<32, kPart> weights, dscores;
      mma_ABt<T>(weights, k_tile, warp_key, stage.q, part);
      if constexpr (decltype(is_border)::value) {
        hide(weights, transposed, block_key + warp_key, query + part);
      }
      weigh(weights, dscores, stage.stats + part, scale * kLog2E);
      // dV += P^T dO, and dS^T = P^T (V dO^T - delta)
      mma_ABt<T>(dscores, v_tile, warp_key, stage.dout, part);
      mma_AB<T>(dv_sums, as_fragment<T>(weights), stage.dout, part, col0);
      multiply(dscores, weights);
      // dK += dS^T Q
      mma_AB<T>(dk_sums, as_fragment<T>(dscores), stage.q, part, col0);
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
#pragma unroll
        for (int depth = part; depth < part + kPart; depth += 16) {
          Fragment<32, 16> fragment;
          load(fragment, p_tile, warp_key, depth);
          mma_AB<T>(dv_sums, fragment, stage.dout, depth, col0);
          load(fragment, ds_tile, warp_key, depth);
          mma_AB<T>(dk_sums, fragment, stage.q, depth, col0);
        }
      }
    }
    // snippet-end turn
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
// snippet-end keys

// snippet-begin queries
/// dQ of a tile of queries.
template <class T, int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::Queries::kThreads,
                                  TilePlan<kDim>::Queries::kBlocks)
    attention_backward_pipeline_dq(Heads<const T> q,       // [batch][queries][heads][kDim]
                                   Heads<const T> k,       // [batch][keys][heads / group][kDim]
                                   Heads<const T> v,       // as k
                                   Heads<const T> dout,    // as q
                                   const RowStats* stats,  // [batch][heads][rows of stats]
                                   Heads<T> dq,            // as q
                                   BatchMasks masks, int batch, int heads, int group, float scale) {
  using Plan = typename TilePlan<kDim>::Queries;
  constexpr int kThreads = Plan::kThreads, kQueries = Plan::kKept, kKeys = Plan::kPassing;
  constexpr int kRows = Plan::kRows, kPart = Plan::kPart;
  constexpr bool kKeep = kDim <= 64;  // queries and their dO in registers
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, their dO, [2]{keys, values}}
  const tile::ptx::SharedAddress base(smem);
  const QueryTile q_tile(base), dout_tile(base + QueryTile::kBytes);
  const auto work = work_longest_first(batch, heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_query = static_cast<int>(threadIdx.x) / 32 * kRows;  // in the tile

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
  Fragment<kRows, kKeep ? kDim : 16> queries, douts;
  if constexpr (kKeep) load(queries, q_tile, warp_query), load(douts, dout_tile, warp_query);
  Accumulator<kRows, kDim> dq_sums;
  const RowStats* of_warp =
      stats_of_head(stats, work, heads, masks.queries) + block_query + warp_query;

  const auto visit = [&](int tile, auto is_border) {
    const QueryTile q_here(smem), dout_here(smem + QueryTile::kBytes);
    tile::ptx::cp_async_wait_all();
    // This tile has landed, and all warps are done with the previous one, whose buffer the next
    // copy overwrites.
    __syncthreads();
    if (tile + 1 < visited.last) copy(tile + 1);
#pragma unroll
    for (int part = 0; part < kKeys; part += kPart) {
      const int query = block_query + warp_query, key = tile * kKeys + part;
      if (decltype(is_border)::value && !mask.any_sees(query, kRows, key, kPart)) continue;
      // P = exp2(Q K^T - lse)
      Accumulator<kRows, kPart> weights, dscores;
      if constexpr (kKeep) {
        mma_ABt<T>(weights, queries, k_tile(tile), part);
      } else {
        mma_ABt<T>(weights, q_here, warp_query, k_tile(tile), part);
      }
      if constexpr (decltype(is_border)::value) hide(weights, mask, query, key);
#pragma unroll
      for (int r = 0; r < kRows / 8; ++r) {
        const RowStats of_query = of_warp[weights.row(r)];
#pragma unroll
        for (int c = 0; c < kPart / 4; ++c) {
          float& weight = weights.at(r, c);
          weight = tile::ptx::exp2_approx(fmaf(scale * kLog2E, weight, -of_query.lse2));
          dscores.at(r, c) = -of_query.delta;
        }
      }
      // dS = P (dO V^T - delta)
      if constexpr (kKeep) {
        mma_ABt<T>(dscores, douts, v_tile(tile), part);
      } else {
        mma_ABt<T>(dscores, dout_here, warp_query, v_tile(tile), part);
      }
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
// snippet-end queries

}  // namespace

tile::Status takes_pipeline(const AttentionBackward& p, const tile::Device& device) {
  TILE_TRY(check_chunks(p));
  const int bytes = p.head_dim <= 64    ? TilePlan<64>::Keys::kBytes
                    : p.head_dim == 128 ? TilePlan<128>::Keys::kBytes
                                        : TilePlan<256>::Keys::kBytes;
  if (bytes > device.shared_bytes_of_block) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " needs " +
                                             tile::counted(bytes, "byte") + " of shared memory");
  }
  return tile::check_workspace(stats_bytes(p), p.workspace_bytes);
}

tile::Status pipeline(const AttentionBackward& p, void* stream) {
  TILE_TRY(compute_stats(p, stream));
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value;
        using Keys = typename TilePlan<kDim>::Keys;
        using Queries = typename TilePlan<kDim>::Queries;
        unsigned keys = 0, queries = 0;  // blocks
        TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, Keys::kKept, &keys));
        TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, Queries::kKept, &queries));
        const auto q = heads_of<const T>(p.q), k = heads_of<const T>(p.k);
        const auto v = heads_of<const T>(p.v), dout = heads_of<const T>(p.dout);
        const auto* stats = static_cast<const RowStats*>(p.workspace);
        if (keys > 0) {
          TILE_TRY(tile::launch(
              attention_backward_pipeline_dkv<T, kDim>, "attention_backward_pipeline_dkv", keys,
              Keys::kThreads, Keys::kBytes, stream, q, k, v, dout, stats, heads_of<T>(p.dk),
              heads_of<T>(p.dv), masks_of(p), p.batch, p.heads, group_of(p), p.scale));
        }
        if (queries == 0) return {};
        return tile::launch(attention_backward_pipeline_dq<T, kDim>,
                            "attention_backward_pipeline_dq", queries, Queries::kThreads,
                            Queries::kBytes, stream, q, k, v, dout, stats, heads_of<T>(p.dq),
                            masks_of(p), p.batch, p.heads, group_of(p), p.scale);
      });
}

}  // namespace flash_attention
