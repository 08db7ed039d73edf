// Backward, step 2: the weights are recomputed.
// Idea: lse is enough to compute a weight from its score: p = exp(s - lse), without a maximum or a
//       sum. A block keeps a tile of keys and their gradients and loops over all queries; another
//       one keeps a tile of queries and loops over the keys. No two blocks write the same element.
// Change: one kernel for the blocks of both sides, one before it for delta, and no memory for
//         scores.
// Limit: arithmetic in fp32, and seven products where five suffice.
#include "launch.hpp"
#include "tile/float_rows.cuh"
#include "tile/ptx/exp2.cuh"

namespace flash_attention {
namespace {

using tile::kLaneDims, tile::add_rows, tile::dot, tile::load_rows, tile::store_row;
constexpr int kWarps = 8, kThreads = kWarps * tile::kWarp;
constexpr int kKept = kWarps;  // rows that a block keeps: one for each warp
constexpr int kPassing = 32;   // rows of a tile of the loop: one for each lane
using Tiles = tile::FloatTiles<kKept, kPassing>;

// snippet-begin kernel
/// Of keys: dK and dV of a tile of keys, over all queries of all heads that share it. Otherwise dQ
/// of a tile of queries, over all keys.
template <bool kOfKeys, class T>
__global__ void attention_backward_tiles(Heads<const T> q,       // [batch][queries][heads][dim]
                                         Heads<const T> k,       // [batch][keys][kv_heads][dim]
                                         Heads<const T> v,       // as k
                                         Heads<const T> dout,    // as q
                                         const RowStats* stats,  // [batch][heads][rows of stats]
                                         Heads<T> gradient,      // dq, as q; of keys dk, as k
                                         Heads<T> dv,            // as k; only of keys
                                         BatchMasks masks, int heads, int group, int dim,
                                         float scale) {
  // S = Q K^T and dP = dO V^T: the left factors are rows of queries, the right ones of keys.
  const auto kept = kOfKeys ? k : q, kept_dp = kOfKeys ? v : dout;
  const auto passing = kOfKeys ? q : k, passing_dp = kOfKeys ? dout : v;
  extern __shared__ float rows_smem[];
  const Tiles smem(rows_smem, dim);
  const auto work = kOfKeys ? work_of_block(heads / group, (masks.keys + kKept - 1) / kKept)
                            : work_of_block(heads, (masks.queries + kKept - 1) / kKept);
  const Mask mask = kOfKeys ? masks.of(work.batch).transposed() : masks.of(work.batch);
  const int warp = threadIdx.x / tile::kWarp, lane = threadIdx.x % tile::kWarp;
  const int block_row = work.tile * kKept, row = block_row + warp;  // the warp's
  const int rows_left = mask.queries - block_row, ld = dim + 1;     // ld: in shared memory
  load_rows<kKept>(smem.kept, kept.rows(work.batch, work.head, block_row), rows_left, dim);
  load_rows<kKept>(smem.kept_dp, kept_dp.rows(work.batch, work.head, block_row), rows_left, dim);

  float sums[kLaneDims] = {}, dv_sums[kLaneDims] = {};
  const int head0 = kOfKeys ? work.head * group : work.head;
  for (int head = head0; head < head0 + (kOfKeys ? group : 1); ++head) {
    const RowStats* of_head = stats_of_head(stats, {work.batch, head, 0}, heads, masks.queries);
    const int passing_head = kOfKeys ? head : head / group;
    for (int first = 0; first < mask.keys; first += kPassing) {
      const int left = mask.keys - first, other = first + lane;  // other: the lane's row
      __syncthreads();  // all warps have read the previous rows
      load_rows<kPassing>(smem.passing, passing.rows(work.batch, passing_head, first), left, dim);
      load_rows<kPassing>(smem.passing_dp, passing_dp.rows(work.batch, passing_head, first), left,
                          dim);
      __syncthreads();  // these are there
      // The weight of the warp's row and the lane's, and the weight's gradient
      const RowStats of_query = of_head[kOfKeys ? other : row];
      float weight = 0;
      if (mask.sees(row, other)) {
        const float score =
            scale * kLog2E * dot(smem.passing + lane * ld, smem.kept + warp * ld, dim);
        weight = tile::ptx::exp2_approx(score - of_query.lse2);
      }
      const float dweight = dot(smem.passing_dp + lane * ld, smem.kept_dp + warp * ld, dim);
      const float dscore = weight * (dweight - of_query.delta);
      if (kOfKeys) add_rows(dv_sums, weight, smem.passing_dp, dim);  // dV += P^T dO
      add_rows(sums, dscore, smem.passing, dim);                     // dK += dS^T Q, or dQ += dS K
    }
  }
  if (row >= (kOfKeys ? masks.keys : masks.queries)) return;
  store_row(gradient.rows(work.batch, work.head)[row], sums, scale, dim);
  if (kOfKeys) store_row(dv.rows(work.batch, work.head)[row], dv_sums, 1, dim);
}
// snippet-end kernel

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
    const auto side = [&](auto of_keys, const tile::TensorView& gradient) -> tile::Status {
      return tile::launch(attention_backward_tiles<of_keys, T>, "attention_backward_tiles",
                          of_keys ? keys : queries, kThreads, Tiles::bytes(p.head_dim), stream,
                          heads_of<const T>(p.q), heads_of<const T>(p.k), heads_of<const T>(p.v),
                          heads_of<const T>(p.dout), static_cast<const RowStats*>(p.workspace),
                          heads_of<T>(gradient), heads_of<T>(p.dv), masks_of(p), p.heads,
                          group_of(p), p.head_dim, p.scale);
    };
    TILE_TRY(side(std::true_type{}, p.dk));
    return side(std::false_type{}, p.dq);
  });
}

}  // namespace flash_attention
