// Backward, step 2: tiles of one kind at a time.
// Idea: chapter 05's second step, twice: for near keys with Q1 and K1, then for far ones with Q2
//       and K2. A mixed tile is taken both times, and each time only keys of one kind have a
//       weight. dV is a sum over both.
// Change: one kernel for the blocks of both sides, one before it for delta, and no memory for
//         scores; tiles in which no query sees a key are skipped.
// Limit: arithmetic in fp32, and seven products where five suffice.
#include "tile/float_rows.cuh"
#include "windowed/distance_weight.cuh"
#include "windowed/kinds.hpp"

namespace windowed_rope {
namespace {

using tile::kLaneDims, tile::Rows, tile::add_rows, tile::dot, tile::load_rows, tile::store_row;
constexpr int kWarps = 8, kThreads = kWarps * tile::kWarp;
constexpr int kKept = kWarps;  // rows that a block keeps: one for each warp
constexpr int kPassing = 32;   // rows of a tile of the loop: one for each lane
using Tiles = tile::FloatTiles<kKept, kPassing>;

/// Of keys: dK1, dK2 and dV of a tile of keys, over all queries of all heads that share it.
/// Otherwise dQ1 and dQ2 of a tile of queries, over all keys.
template <bool kOfKeys, class T>
__global__ void windowed_backward_tiles(Heads<const T> q1,      // [batch][queries][heads][dim]
                                        Heads<const T> k1,      // [batch][keys][kv_heads][dim]
                                        Heads<const T> q2,      // as q1
                                        Heads<const T> k2,      // as k1
                                        Heads<const T> v,       // as k1
                                        Heads<const T> dout,    // as q1
                                        const RowStats* stats,  // [batch][heads][rows of stats]
                                        Heads<T> gradient1,     // dq1, as q1; of keys dk1, as k1
                                        Heads<T> gradient2,     // dq2; of keys dk2
                                        Heads<T> dv,            // as k1; only of keys
                                        BatchMasks masks, Window window, DistanceWeight by_distance,
                                        int heads, int group, int dim, float scale) {
  extern __shared__ float rows_smem[];
  const Tiles smem(rows_smem, dim);
  const auto work = kOfKeys ? work_of_block(heads / group, (masks.keys + kKept - 1) / kKept)
                            : work_of_block(heads, (masks.queries + kKept - 1) / kKept);
  const Mask mask = kOfKeys ? masks.of(work.batch).transposed() : masks.of(work.batch);
  const int warp = threadIdx.x / tile::kWarp, lane = threadIdx.x % tile::kWarp;
  const int block_row = work.tile * kKept, row = block_row + warp;  // the warp's
  const int rows_left = mask.queries - block_row, ld = dim + 1;     // ld: in shared memory
  // S = Q K^T and dP = dO V^T: the left factors are rows of queries, the right ones of keys.
  const auto kept_dp = kOfKeys ? v : dout, passing_dp = kOfKeys ? dout : v;
  load_rows<kKept>(smem.kept_dp, kept_dp.rows(work.batch, work.head, block_row), rows_left, dim);

  float dv_sums[kLaneDims] = {};
  for (const bool near : {true, false}) {
    const auto q = near ? q1 : q2, k = near ? k1 : k2;
    const auto kept = kOfKeys ? k : q, passing = kOfKeys ? q : k;
    __syncthreads();  // all warps have read the kept rows of the other kind
    load_rows<kKept>(smem.kept, kept.rows(work.batch, work.head, block_row), rows_left, dim);
    float sums[kLaneDims] = {};
    const int head0 = kOfKeys ? work.head * group : work.head;
    for (int head = head0; head < head0 + (kOfKeys ? group : 1); ++head) {
      const RowStats* of_head = stats_of_head(stats, {work.batch, head, 0}, heads, masks.queries);
      const auto rows = passing.rows(work.batch, kOfKeys ? head : head / group);
      const auto rows_dp = passing_dp.rows(work.batch, kOfKeys ? head : head / group);
      for (int first = 0; first < mask.keys; first += kPassing) {
        const auto kinds = kinds_of(window, mask, block_row, kKept, first, kPassing);
        if (!(near ? kinds.near : kinds.far)) continue;
        const int left = mask.keys - first, other = first + lane;  // other: the lane's row
        __syncthreads();  // all warps have read the previous rows
        load_rows<kPassing>(smem.passing, Rows<const T>{rows[first], rows.ld}, left, dim);
        load_rows<kPassing>(smem.passing_dp, Rows<const T>{rows_dp[first], rows_dp.ld}, left, dim);
        __syncthreads();  // these are there
        // The weight of the warp's row and the lane's, and the weight's gradient
        const RowStats of_query = of_head[kOfKeys ? other : row];
        const float factor = by_distance.of(mask, row, other);
        float weight = 0;
        if (mask.sees(row, other) && window.is_near(mask, row, other) == near) {
          const float score =
              factor * scale * kLog2E * dot(smem.passing + lane * ld, smem.kept + warp * ld, dim);
          weight = tile::ptx::exp2_approx(score - of_query.lse2);
        }
        const float dweight = dot(smem.passing_dp + lane * ld, smem.kept_dp + warp * ld, dim);
        const float dscore = factor * weight * (dweight - of_query.delta);
        if (kOfKeys) add_rows(dv_sums, weight, smem.passing_dp, dim);  // dV += P^T dO
        add_rows(sums, dscore, smem.passing, dim);  // dK += dS^T Q, or dQ += dS K
      }
    }
    if (row >= (kOfKeys ? masks.keys : masks.queries)) continue;
    store_row((near ? gradient1 : gradient2).rows(work.batch, work.head)[row], sums, scale, dim);
  }
  if (kOfKeys && row < masks.keys) store_row(dv.rows(work.batch, work.head)[row], dv_sums, 1, dim);
}

}  // namespace

tile::Status takes_tiles(const AttentionBackward& p, const tile::Device& device) {
  TILE_TRY(tile::check_float_dim(p.head_dim));
  TILE_TRY(check_shared_bytes(p, Tiles::bytes(p.head_dim), device));
  return tile::check_workspace(stats_bytes(p), p.workspace_bytes);
}

tile::Status tiles(const AttentionBackward& p, void* stream) {
  unsigned queries = 0, keys = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, kKept, &queries));
  TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, kKept, &keys));
  TILE_TRY(compute_stats(p, stream));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    const auto side = [&](auto of_keys, const tile::TensorView& near,
                          const tile::TensorView& far) -> tile::Status {
      return tile::launch(windowed_backward_tiles<of_keys, T>, "windowed_backward_tiles",
                          of_keys ? keys : queries, kThreads, Tiles::bytes(p.head_dim), stream,
                          heads_of<const T>(p.q), heads_of<const T>(p.k),
                          heads_of<const T>(p.q_far), heads_of<const T>(p.k_far),
                          heads_of<const T>(p.v), heads_of<const T>(p.dout),
                          static_cast<const RowStats*>(p.workspace), heads_of<T>(near),
                          heads_of<T>(far), heads_of<T>(p.dv), masks_of(p), window_of(p),
                          distance_weight_of(p), p.heads, group_of(p), p.head_dim, p.scale);
    };
    TILE_TRY(side(std::true_type{}, p.dk, p.dk_far));
    return side(std::false_type{}, p.dq, p.dq_far);
  });
}

}  // namespace windowed_rope
