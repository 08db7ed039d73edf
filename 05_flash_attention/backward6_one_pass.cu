// Backward, step 6: five products instead of seven.
// Idea: the block that has dS of a tile of keys and queries also computes that tile's part of
//       dQ = dS K, and adds it to a sum in memory, to which the blocks of all tiles of keys add. No
//       block waits for another. But a sum of floats depends on its order, so the last bits of dQ
//       differ from run to run.
// Change: dS goes through shared memory at every head dimension, for dQ; no part of a tile is
//         skipped; dQ is accumulated in fp32, in fragment order, and a second kernel scales and
//         rounds it. There is no kernel that keeps queries.
// Limit: neither the tensor cores nor shared memory are busy all the time: a block waits at two
//        barriers in each iteration.
#include "key_plan.cuh"
#include "launch.hpp"
#include "tile/host/dq_sums.hpp"
#include "tile/query_stage.cuh"
#include "tile/stored_scores.cuh"

namespace flash_attention {
namespace {

using tile::Fragment, tile::QueryStage, tile::SharedTile, tile::Accumulator;

/// As in step 5, with dQ added.
template <int kDim>
struct TilePlan : KeyPlan<kDim> {
  using Keys = KeyPlan<kDim>;
  // The part of dQ that a warp computes.
  static constexpr int kDqRows = kDim <= 32 ? 16 : 32;
  static constexpr int kDqCols = kDim <= 32 ? kDim : kDim <= 128 ? 32 : 64;
  static_assert(Keys::kPassing / kDqRows * (kDim / kDqCols) == Keys::kWarps);
  // dS goes through shared memory at every head dimension.
  static constexpr int kBytes =
      Keys::bytes(2 * Keys::kStageBytes) + (Keys::kSharing > 1 ? 0 : Keys::kScoreBytes);
};

// snippet-begin kernel
template <class T, int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, TilePlan<kDim>::kBlocks)
    attention_backward_one_pass(Heads<const T> q,       // [batch][queries][heads][kDim]
                                Heads<const T> k,       // [batch][keys][heads / group][kDim]
                                Heads<const T> v,       // as k
                                Heads<const T> dout,    // as q
                                const RowStats* stats,  // [batch][heads][rows of stats]
                                float4* dq_sums,        // [batch][heads][rows / 16][kDim / 8][lane]
                                Heads<T> dk,            // as k
                                Heads<T> dv,            // as k
                                BatchMasks masks, int batch, int heads, int group, float scale) {
  using Plan = TilePlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kKeys = Plan::kKept, kQueries = Plan::kPassing;
  constexpr int kPart = Plan::kPart, kSharing = Plan::kSharing;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  using Stage = QueryStage<T, kQueries, kDim>;
  using ScoreTile = SharedTile<T, kKeys, kQueries>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {keys, values, [2]{stage}, dS, P}
  unsigned char* const stages = smem + 2 * KeyTile::kBytes;
  const ScoreTile ds_tile(stages + 2 * Stage::kBytes);
  const ScoreTile p_tile(stages + 2 * Stage::kBytes + ScoreTile::kBytes);  // with sharing
  const auto work = keys_longest_first(batch, heads / group, (masks.keys + kKeys - 1) / kKeys);
  const Mask transposed = masks.of(work.batch).transposed();
  const int block_key = work.tile * kKeys, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_key = warp / kSharing * 32, col0 = warp % kSharing * Plan::kCols;
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

  Accumulator<32, Plan::kCols> dk_sums, dv_sums;
  const auto iterate = [&](int tile, auto is_border) {
    const int query = tile * kQueries;
    // Built inside the loop on purpose: hoisted, their addresses would occupy registers and cause
    // spills.
    const KeyTile k_tile(smem), v_tile(smem + KeyTile::kBytes);
    const Stage stage(stages + parity * Stage::kBytes);
    tile::ptx::cp_async_wait_all();
    // These queries have landed, and all warps are done with dS and with the previous queries,
    // whose buffer the next copy overwrites.
    __syncthreads();
    const bool is_last = tile + 1 == visited.last;  // of this head
    parity ^= 1;
    if (head + is_last < end_head) copy(head + is_last, is_last ? visited.first : tile + 1);
#pragma unroll
    for (int i = 0; i < Plan::kParts; ++i) {
      const int part = (warp % kSharing + i) * kPart;  // its first query in the tile
      // P^T = exp2(K Q^T - lse)
      Accumulator<32, kPart> weights, dscores;
      mma_ABt<T>(weights, k_tile, warp_key, stage.q, part);
      if constexpr (decltype(is_border)::value) {
        hide(weights, transposed, block_key + warp_key, query + part);
      }
      weigh(weights, dscores, stage.stats + part, scale * kLog2E);
      // dV += P^T dO, and dS^T = P^T (V dO^T - delta)
      mma_AB<T>(dv_sums, as_fragment<T>(weights), stage.dout, part, col0);
      mma_ABt<T>(dscores, v_tile, warp_key, stage.dout, part);
      multiply(dscores, weights);
      store_in_tile<T>(dscores, ds_tile, warp_key, part);
      if constexpr (kSharing > 1) store_in_tile<T>(weights, p_tile, warp_key, part);
      // dK += dS^T Q
      mma_AB<T>(dk_sums, as_fragment<T>(dscores), stage.q, part, col0);
    }
    __syncthreads();  // dS is there, and the other warps' weights
#pragma unroll
    for (int i = 1; i < kSharing; ++i) {
      const int part = (warp + i) % kSharing * kPart;
      add_stored_part<T, kPart>(dv_sums, dk_sums, p_tile, ds_tile, warp_key, stage.dout, stage.q,
                                part, col0);
    }
    // This warp's part of dQ = dS K
    const int dq_row = warp % (kQueries / Plan::kDqRows) * Plan::kDqRows;
    const int dq_col = warp / (kQueries / Plan::kDqRows) * Plan::kDqCols;
    const int term_rows = (masks.queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;
    tile::add_dq<T, Plan::kDqRows, Plan::kDqCols>(
        dq_sums, (std::int64_t{work.batch} * heads + head) * term_rows + query, ds_tile, k_tile,
        dq_row, dq_col);
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
// snippet-end kernel

}  // namespace

tile::Status takes_one_pass(const AttentionBackward& p, const tile::Device& device) {
  TILE_TRY(check_chunks(p));
  TILE_TRY(tile::with_head_dim(p.head_dim, [&](auto head_dim) {
    return check_shared_bytes(p, TilePlan<head_dim.value>::kBytes, device);
  }));
  return tile::check_workspace(stats_and_sums_bytes(p), p.workspace_bytes);
}

tile::Status one_pass(const AttentionBackward& p, void* stream) {
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value;
        using Plan = TilePlan<kDim>;
        unsigned blocks = 0;
        TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, Plan::kKept, &blocks));
        TILE_TRY(compute_stats(p, stream));
        auto* stats = static_cast<RowStats*>(p.workspace);
        auto* sums = reinterpret_cast<float4*>(stats + tile::rows_of_dq_sums(p));
        TILE_TRY(tile::clear_dq_sums(p, sums, stream));
        TILE_TRY(tile::launch(
            attention_backward_one_pass<T, kDim>, "attention_backward_one_pass", blocks,
            Plan::kThreads, Plan::kBytes, stream, heads_of<const T>(p.q), heads_of<const T>(p.k),
            heads_of<const T>(p.v), heads_of<const T>(p.dout), stats, sums, heads_of<T>(p.dk),
            heads_of<T>(p.dv), masks_of(p), p.batch, p.heads, group_of(p), p.scale));
        return round_dq(p, sums, p.dq, stream);
      });
}

}  // namespace flash_attention
