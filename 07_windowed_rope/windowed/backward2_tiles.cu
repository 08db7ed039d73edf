// Backward, step 2: tiles of one kind at a time.
// Idea: chapter 05's second step, twice. A tile of near keys uses Q1 and K1 and adds to dK1 or dQ1,
//       a tile of far keys uses Q2 and K2. A mixed tile is taken twice, and each time only keys of
//       one kind have a weight. dV is a sum over both.
// Change: two kernels, one before them for delta, and no memory for scores; tiles in which no query
//         sees a key are skipped.
// Limit: arithmetic in fp32, and seven products where five suffice.
#include "tile/float_rows.cuh"
#include "windowed/distance_weight.cuh"
#include "windowed/kinds.hpp"

namespace windowed_rope {
namespace {

using tile::kLaneDims, tile::add_rows, tile::dot, tile::load_rows, tile::store_row;
constexpr int kWarps = 8, kThreads = kWarps * tile::kWarp;
constexpr int kKept = kWarps;  // rows that a block keeps: one for each warp
constexpr int kPassing = 32;   // rows of a tile of the loop: one for each lane

std::size_t shared_bytes(std::int64_t dim) {  // kept rows of three tensors, rows of the loop of two
  return static_cast<std::size_t>((3 * kKept + 2 * kPassing) * (dim + 1)) * sizeof(float);
}

/// dK1, dK2 and dV of a tile of keys, over all queries of all heads that share it.
template <class T>
__global__ void windowed_backward_tiles_dkv(Heads<const T> q1,      // [batch][queries][heads][dim]
                                            Heads<const T> k1,      // [batch][keys][kv_heads][dim]
                                            Heads<const T> q2,      // as q1
                                            Heads<const T> k2,      // as k1
                                            Heads<const T> v,       // as k1
                                            Heads<const T> dout,    // as q1
                                            const RowStats* stats,  // [batch][heads][rows of stats]
                                            Heads<T> dk1,           // as k1
                                            Heads<T> dk2,           // as k1
                                            Heads<T> dv,            // as k1
                                            BatchMasks masks, Window window,
                                            DistanceWeight by_distance, int heads, int group,
                                            int dim, float scale) {
  extern __shared__ float smem[];                    // {K1, K2, V, Q1 or Q2, dO}
  float* k_smem = smem;                              // [2][kKept][dim + 1]
  float* v_smem = k_smem + 2 * kKept * (dim + 1);    // [kKept][dim + 1]
  float* q_smem = v_smem + kKept * (dim + 1);        // [kPassing][dim + 1]
  float* dout_smem = q_smem + kPassing * (dim + 1);  // as q_smem
  const auto work = work_of_block(heads / group, (masks.keys + kKept - 1) / kKept);
  const Mask mask = masks.of(work.batch), transposed = mask.transposed();
  const int block_key = work.tile * kKept, keys_left = mask.keys - block_key;
  const int warp = threadIdx.x / tile::kWarp, lane = threadIdx.x % tile::kWarp;
  load_rows<kKept>(k_smem, k1.rows(work.batch, work.head, block_key), keys_left, dim);
  load_rows<kKept>(k_smem + kKept * (dim + 1), k2.rows(work.batch, work.head, block_key), keys_left,
                   dim);
  load_rows<kKept>(v_smem, v.rows(work.batch, work.head, block_key), keys_left, dim);

  float dk1_sums[kLaneDims] = {}, dk2_sums[kLaneDims] = {}, dv_sums[kLaneDims] = {};
  for (int head = work.head * group; head < (work.head + 1) * group; ++head) {
    const RowStats* of_head = stats_of_head(stats, {work.batch, head, 0}, heads, masks.queries);
    for (int first = 0; first < mask.queries; first += kPassing) {
      const auto kinds = kinds_of(window, transposed, block_key, kKept, first, kPassing);
      for (const bool near : {true, false}) {
        if (!(near ? kinds.near : kinds.far)) continue;
        const int left = mask.queries - first;
        __syncthreads();  // all warps have read the previous queries
        load_rows<kPassing>(q_smem, (near ? q1 : q2).rows(work.batch, head, first), left, dim);
        load_rows<kPassing>(dout_smem, dout.rows(work.batch, head, first), left, dim);
        __syncthreads();  // these are there
        // A lane has a query: its weight for the warp's key, and the weight's gradient.
        const RowStats of_query = of_head[first + lane];
        const int query = first + lane, key = block_key + warp;
        const float factor = by_distance.of(mask, query, key);
        float weight = 0;
        if (mask.sees(query, key) && window.is_near(mask, query, key) == near) {
          const float* k_row = k_smem + ((near ? 0 : kKept) + warp) * (dim + 1);
          const float score = factor * scale * kLog2E * dot(q_smem + lane * (dim + 1), k_row, dim);
          weight = tile::ptx::exp2_approx(score - of_query.lse2);
        }
        const float dweight = dot(dout_smem + lane * (dim + 1), v_smem + warp * (dim + 1), dim);
        const float dscore = factor * weight * (dweight - of_query.delta);
        add_rows(dv_sums, weight, dout_smem, dim);  // dV += P^T dO
        if (near) {                                 // dK += dS^T Q
          add_rows(dk1_sums, dscore, q_smem, dim);
        } else {
          add_rows(dk2_sums, dscore, q_smem, dim);
        }
      }
    }
  }
  if (block_key + warp >= masks.keys) return;
  store_row(dk1.rows(work.batch, work.head)[block_key + warp], dk1_sums, scale, dim);
  store_row(dk2.rows(work.batch, work.head)[block_key + warp], dk2_sums, scale, dim);
  store_row(dv.rows(work.batch, work.head)[block_key + warp], dv_sums, 1, dim);
}

/// dQ1 and dQ2 of a tile of queries.
template <class T>
__global__ void windowed_backward_tiles_dq(Heads<const T> q1,      // [batch][queries][heads][dim]
                                           Heads<const T> k1,      // [batch][keys][kv_heads][dim]
                                           Heads<const T> q2,      // as q1
                                           Heads<const T> k2,      // as k1
                                           Heads<const T> v,       // as k1
                                           Heads<const T> dout,    // as q1
                                           const RowStats* stats,  // [batch][heads][rows of stats]
                                           Heads<T> dq1,           // as q1
                                           Heads<T> dq2,           // as q1
                                           BatchMasks masks, Window window,
                                           DistanceWeight by_distance, int heads, int group,
                                           int dim, float scale) {
  extern __shared__ float smem[];                     // {Q1, Q2, dO, K1 or K2, V}
  float* q_smem = smem;                               // [2][kKept][dim + 1]
  float* dout_smem = q_smem + 2 * kKept * (dim + 1);  // [kKept][dim + 1]
  float* k_smem = dout_smem + kKept * (dim + 1);      // [kPassing][dim + 1]
  float* v_smem = k_smem + kPassing * (dim + 1);      // as k_smem
  const auto work = work_of_block(heads, (masks.queries + kKept - 1) / kKept);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kKept, kv_head = work.head / group;
  const int warp = threadIdx.x / tile::kWarp, lane = threadIdx.x % tile::kWarp;
  const int queries_left = mask.queries - block_query;
  load_rows<kKept>(q_smem, q1.rows(work.batch, work.head, block_query), queries_left, dim);
  load_rows<kKept>(q_smem + kKept * (dim + 1), q2.rows(work.batch, work.head, block_query),
                   queries_left, dim);
  load_rows<kKept>(dout_smem, dout.rows(work.batch, work.head, block_query), queries_left, dim);

  const RowStats of_query = stats_of_head(stats, work, heads, masks.queries)[block_query + warp];
  float dq1_sums[kLaneDims] = {}, dq2_sums[kLaneDims] = {};
  for (int first = 0; first < mask.keys; first += kPassing) {
    const auto kinds = kinds_of(window, mask, block_query, kKept, first, kPassing);
    for (const bool near : {true, false}) {
      if (!(near ? kinds.near : kinds.far)) continue;
      const int left = mask.keys - first;
      __syncthreads();  // all warps have read the previous keys
      load_rows<kPassing>(k_smem, (near ? k1 : k2).rows(work.batch, kv_head, first), left, dim);
      load_rows<kPassing>(v_smem, v.rows(work.batch, kv_head, first), left, dim);
      __syncthreads();  // these are there
      const int query = block_query + warp, key = first + lane;
      const float factor = by_distance.of(mask, query, key);
      float weight = 0;
      if (mask.sees(query, key) && window.is_near(mask, query, key) == near) {
        const float* q_row = q_smem + ((near ? 0 : kKept) + warp) * (dim + 1);
        const float score = factor * scale * kLog2E * dot(q_row, k_smem + lane * (dim + 1), dim);
        weight = tile::ptx::exp2_approx(score - of_query.lse2);
      }
      const float dweight = dot(dout_smem + warp * (dim + 1), v_smem + lane * (dim + 1), dim);
      const float dscore = factor * weight * (dweight - of_query.delta);
      if (near) {  // dQ += dS K
        add_rows(dq1_sums, dscore, k_smem, dim);
      } else {
        add_rows(dq2_sums, dscore, k_smem, dim);
      }
    }
  }
  if (block_query + warp >= masks.queries) return;
  store_row(dq1.rows(work.batch, work.head)[block_query + warp], dq1_sums, scale, dim);
  store_row(dq2.rows(work.batch, work.head)[block_query + warp], dq2_sums, scale, dim);
}

}  // namespace

tile::Status takes_tiles(const AttentionBackward& p, const tile::Device& device) {
  if (p.head_dim > tile::kMaxFloatDim) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is more than 256");
  }
  const auto bytes = static_cast<std::int64_t>(shared_bytes(p.head_dim));
  TILE_TRY(check_shared_bytes(p, bytes, device));
  return tile::check_workspace(stats_bytes(p), p.workspace_bytes);
}

tile::Status tiles(const AttentionBackward& p, void* stream) {
  unsigned key_blocks = 0, query_blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, kKept, &key_blocks));
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, kKept, &query_blocks));
  TILE_TRY(compute_stats(p, stream));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    const auto q1 = heads_of<const T>(p.q), k1 = heads_of<const T>(p.k);
    const auto q2 = heads_of<const T>(p.q_far), k2 = heads_of<const T>(p.k_far);
    const auto v = heads_of<const T>(p.v), dout = heads_of<const T>(p.dout);
    const auto* stats = static_cast<const RowStats*>(p.workspace);
    const BatchMasks masks = masks_of(p);
    const Window window = window_of(p);
    const int heads = static_cast<int>(p.heads), dim = static_cast<int>(p.head_dim);
    const std::size_t bytes = shared_bytes(p.head_dim);
    if (key_blocks > 0) {
      tile::Status launched =
          tile::launch(windowed_backward_tiles_dkv<T>, "windowed_backward_tiles_dkv", key_blocks,
                       kThreads, bytes, stream, q1, k1, q2, k2, v, dout, stats, heads_of<T>(p.dk),
                       heads_of<T>(p.dk_far), heads_of<T>(p.dv), masks, window,
                       distance_weight_of(p), heads, group_of(p), dim, p.scale);
      if (!launched.ok() || query_blocks == 0) return launched;
    }
    return tile::launch(windowed_backward_tiles_dq<T>, "windowed_backward_tiles_dq", query_blocks,
                        kThreads, bytes, stream, q1, k1, q2, k2, v, dout, stats, heads_of<T>(p.dq),
                        heads_of<T>(p.dq_far), masks, window, distance_weight_of(p), heads,
                        group_of(p), dim, p.scale);
  });
}

}  // namespace windowed_rope
