// Forward, step 2: near tiles, far tiles, and mixed ones.
// Idea: chapter 05's second step. For a tile of queries most tiles of keys are all near or all far:
//       then one pair of Q and K is enough. A mixed tile is loaded twice, as K1 and as K2, and each
//       lane computes the score that its key needs.
// Change: one kernel instead of three, no memory for scores; tiles that no query sees are skipped.
// Limit: arithmetic. Two multiply-adds of fp32 for each score and element of the head dimension,
//        and each reads shared memory.
#include "tile/float_rows.cuh"
#include "windowed/distance_weight.cuh"
#include "windowed/kinds.hpp"

namespace windowed_rope {
namespace {

using tile::kLaneDims, tile::add_rows, tile::load_rows, tile::store_row;
constexpr int kQueries = 16, kKeys = 32;  // a warp has two queries, and a lane one of the keys
constexpr int kWarps = 8, kThreads = kWarps * tile::kWarp;
constexpr int kWarpQueries = kQueries / kWarps;

template <class T>
__global__ void windowed_tiles(Heads<const T> q1,  // [batch][queries][heads][dim]
                               Heads<const T> k1,  // [batch][keys][heads / group][dim]
                               Heads<const T> q2,  // as q1
                               Heads<const T> k2,  // as k1
                               Heads<const T> v,   // as k1
                               Heads<T> o,         // [batch][queries][heads][dim]
                               float* lse,         // [batch][heads][queries], or null
                               BatchMasks masks, Window window, DistanceWeight by_distance,
                               int heads, int group, int dim, float scale_log2) {
  extern __shared__ float smem[];                   // {Q1, Q2, K1, K2 or V}
  float* q1_smem = smem;                            // [kQueries][dim + 1]
  float* q2_smem = q1_smem + kQueries * (dim + 1);  // as q1_smem
  float* kv_smem = q2_smem + kQueries * (dim + 1);  // [kKeys][dim + 1]
  const auto work = work_of_block(heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_query = static_cast<int>(threadIdx.x) / tile::kWarp * kWarpQueries;  // in the tile
  const int lane = threadIdx.x % tile::kWarp;
  load_rows<kQueries>(q1_smem, q1.rows(work.batch, work.head, block_query),
                      mask.queries - block_query, dim);
  load_rows<kQueries>(q2_smem, q2.rows(work.batch, work.head, block_query),
                      mask.queries - block_query, dim);

  tile::LaneSoftmax softmax[kWarpQueries];
  float out[kWarpQueries][kLaneDims] = {};  // of the elements lane, lane + 32, …
  for (int first_key = 0; first_key < mask.keys; first_key += kKeys) {
    const int keys_left = mask.keys - first_key;
    // snippet-begin kinds
    const auto kinds = kinds_of(window, mask, block_query, kQueries, first_key, kKeys);
    if (!kinds.near && !kinds.far) continue;
    float score[kWarpQueries], weight[kWarpQueries];
    for (float& each : score) each = -INFINITY;
    // S = Q1 K1^T, then Q2 K2^T, a key for each lane
    for (const bool near : {true, false}) {
      if (!(near ? kinds.near : kinds.far)) continue;
      const auto keys = (near ? k1 : k2).rows(work.batch, kv_head, first_key);
      load_rows<kKeys>(kv_smem, keys, keys_left, dim);
      __syncthreads();  // queries and keys are there
#pragma unroll
      for (int i = 0; i < kWarpQueries; ++i) {
        const int query = block_query + warp_query + i, key = first_key + lane;
        if (!mask.sees(query, key) || window.is_near(mask, query, key) != near) continue;
        const float* q_row = (near ? q1_smem : q2_smem) + (warp_query + i) * (dim + 1);
        const float* k_row = kv_smem + lane * (dim + 1);
        float dot = 0;
        for (int d = 0; d < dim; ++d) dot += q_row[d] * k_row[d];
        score[i] = scale_log2 * by_distance.of(mask, query, key) * dot;
      }
      __syncthreads();  // all warps have read the keys
    }
    // snippet-end kinds
#pragma unroll
    for (int i = 0; i < kWarpQueries; ++i) weight[i] = softmax[i].weigh(score[i], out[i]);
    load_rows<kKeys>(kv_smem, v.rows(work.batch, kv_head, first_key), keys_left, dim);
    __syncthreads();                      // the values are there
    add_rows(out, weight, kv_smem, dim);  // O += P V
    __syncthreads();                      // all warps have read the values
  }

  for (int i = 0; i < kWarpQueries; ++i) {
    const int query = block_query + warp_query + i;
    if (query >= masks.queries) continue;
    const float total = tile::reduce_lanes(softmax[i].sum, tile::Add{});
    const float inverse = total == 0 ? 0 : 1 / total;  // 0 for a query that sees no key
    store_row(o.rows(work.batch, work.head)[query], out[i], inverse, dim);
    if (lse && lane == 0) {
      lse[(std::int64_t{work.batch} * heads + work.head) * masks.queries + query] =
          total == 0 ? -INFINITY : softmax[i].reference * kLn2 + logf(total);
    }
  }
}

std::size_t shared_bytes(std::int64_t dim) {
  return static_cast<std::size_t>((2 * kQueries + kKeys) * (dim + 1)) * sizeof(float);
}

}  // namespace

tile::Status takes_tiles(const AttentionForward& p, const tile::Device& device) {
  TILE_TRY(tile::check_float_dim(p.head_dim));
  return check_shared_bytes(p, static_cast<std::int64_t>(shared_bytes(p.head_dim)), device);
}

tile::Status tiles(const AttentionForward& p, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, kQueries, &blocks));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    return tile::launch(
        windowed_tiles<T>, "windowed_tiles", blocks, kThreads, shared_bytes(p.head_dim), stream,
        heads_of<const T>(p.q), heads_of<const T>(p.k), heads_of<const T>(p.q_far),
        heads_of<const T>(p.k_far), heads_of<const T>(p.v), heads_of<T>(p.o), p.lse, masks_of(p),
        window_of(p), distance_weight_of(p), p.heads, group_of(p), p.head_dim, p.scale * kLog2E);
  });
}

}  // namespace windowed_rope
