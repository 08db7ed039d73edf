// Backward, step 2: the weights are recomputed.
// Idea: lse is enough to compute a weight from its score: p = exp(s - lse), without a maximum or a
//       sum. A block keeps a tile of keys and their gradients and loops over all queries; another
//       kernel keeps a tile of queries and loops over the keys. No two blocks write the same
//       element.
// Change: two kernels, one before them for delta, and no memory for scores.
// Limit: arithmetic in fp32, and seven products where five suffice.
#include "flash_attention.cuh"
#include "tile/float_rows.cuh"
#include "tile/ptx/exp2.cuh"
#include "two_sides.hpp"

namespace flash_attention {
namespace {

using tile::kLaneDims, tile::add_rows, tile::dot, tile::load_rows, tile::store_row;
constexpr int kWarps = 8, kThreads = kWarps * tile::kWarp;
constexpr int kKept = kWarps;  // rows that a block keeps: one for each warp
constexpr int kPassing = 32;   // rows of a tile of the loop: one for each lane

std::size_t shared_bytes(std::int64_t dim) {  // kept rows and rows of the loop, of two tensors each
  return static_cast<std::size_t>(2 * (kKept + kPassing) * (dim + 1)) * sizeof(float);
}

// snippet-begin keys
/// dK and dV of a tile of keys, over all queries of all heads that share it.
template <class T>
__global__ void attention_backward_tiles_dkv(
    Heads<const T> q,       // [batch][queries][heads][dim]
    Heads<const T> k,       // [batch][keys][kv_heads][dim]
    Heads<const T> v,       // as k
    Heads<const T> dout,    // as q
    const RowStats* stats,  // [batch][heads][rows of stats]
    Heads<T> dk,            // as k
    Heads<T> dv,            // as k
    BatchMasks masks, int heads, int group, int dim, float scale) {
  extern __shared__ float smem[];                    // {keys, values, queries, their dO}
  float* k_smem = smem;                              // [kKept][dim + 1]
  float* v_smem = k_smem + kKept * (dim + 1);        // as k_smem
  float* q_smem = v_smem + kKept * (dim + 1);        // [kPassing][dim + 1]
  float* dout_smem = q_smem + kPassing * (dim + 1);  // as q_smem
  const auto work = work_of_block(heads / group, (masks.keys + kKept - 1) / kKept);
  const Mask mask = masks.of(work.batch);
  const int block_key = work.tile * kKept;
  const int warp = threadIdx.x / tile::kWarp, lane = threadIdx.x % tile::kWarp;
  load_rows<kKept>(k_smem, k.rows(work.batch, work.head, block_key), mask.keys - block_key, dim);
  load_rows<kKept>(v_smem, v.rows(work.batch, work.head, block_key), mask.keys - block_key, dim);

  float dk_sums[kLaneDims] = {}, dv_sums[kLaneDims] = {};
  for (int head = work.head * group; head < (work.head + 1) * group; ++head) {
    const RowStats* of_head = stats_of_head(stats, {work.batch, head, 0}, heads, masks.queries);
    for (int first = 0; first < mask.queries; first += kPassing) {
      const int left = mask.queries - first;
      __syncthreads();  // all warps have read the previous queries
      load_rows<kPassing>(q_smem, q.rows(work.batch, head, first), left, dim);
      load_rows<kPassing>(dout_smem, dout.rows(work.batch, head, first), left, dim);
      __syncthreads();  // these are there
      // A lane has a query: its weight for the warp's key, and the weight's gradient.
      const RowStats of_query = of_head[first + lane];
      const float* key = k_smem + warp * (dim + 1);
      const float* value = v_smem + warp * (dim + 1);
      float weight = 0;
      if (mask.sees(first + lane, block_key + warp)) {
        const float score = scale * kLog2E * dot(q_smem + lane * (dim + 1), key, dim);
        weight = tile::ptx::exp2_approx(score - of_query.lse2);
      }
      const float dweight = dot(dout_smem + lane * (dim + 1), value, dim);
      const float dscore = weight * (dweight - of_query.delta);
      add_rows(dv_sums, weight, dout_smem, dim);  // dV += P^T dO
      add_rows(dk_sums, dscore, q_smem, dim);     // dK += dS^T Q
    }
  }
  if (block_key + warp >= masks.keys) return;
  store_row(dk.rows(work.batch, work.head)[block_key + warp], dk_sums, scale, dim);
  store_row(dv.rows(work.batch, work.head)[block_key + warp], dv_sums, 1, dim);
}
// snippet-end keys

/// dQ of a tile of queries.
template <class T>
__global__ void attention_backward_tiles_dq(Heads<const T> q,       // [batch][queries][heads][dim]
                                            Heads<const T> k,       // [batch][keys][kv_heads][dim]
                                            Heads<const T> v,       // as k
                                            Heads<const T> dout,    // as q
                                            const RowStats* stats,  // [batch][heads][rows of stats]
                                            Heads<T> dq,            // as q
                                            BatchMasks masks, int heads, int group, int dim,
                                            float scale) {
  extern __shared__ float smem[];                 // {queries, their dO, keys, values}
  float* q_smem = smem;                           // [kKept][dim + 1]
  float* dout_smem = q_smem + kKept * (dim + 1);  // as q_smem
  float* k_smem = dout_smem + kKept * (dim + 1);  // [kPassing][dim + 1]
  float* v_smem = k_smem + kPassing * (dim + 1);  // as k_smem
  const auto work = work_of_block(heads, (masks.queries + kKept - 1) / kKept);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kKept, kv_head = work.head / group;
  const int warp = threadIdx.x / tile::kWarp, lane = threadIdx.x % tile::kWarp;
  const int queries_left = mask.queries - block_query;
  load_rows<kKept>(q_smem, q.rows(work.batch, work.head, block_query), queries_left, dim);
  load_rows<kKept>(dout_smem, dout.rows(work.batch, work.head, block_query), queries_left, dim);

  const RowStats of_query = stats_of_head(stats, work, heads, masks.queries)[block_query + warp];
  float dq_sums[kLaneDims] = {};
  for (int first = 0; first < mask.keys; first += kPassing) {
    __syncthreads();  // all warps have read the previous keys
    load_rows<kPassing>(k_smem, k.rows(work.batch, kv_head, first), mask.keys - first, dim);
    load_rows<kPassing>(v_smem, v.rows(work.batch, kv_head, first), mask.keys - first, dim);
    __syncthreads();  // these are there
    float weight = 0;
    if (mask.sees(block_query + warp, first + lane)) {
      const float score =
          scale * kLog2E * dot(q_smem + warp * (dim + 1), k_smem + lane * (dim + 1), dim);
      weight = tile::ptx::exp2_approx(score - of_query.lse2);
    }
    const float dweight = dot(dout_smem + warp * (dim + 1), v_smem + lane * (dim + 1), dim);
    add_rows(dq_sums, weight * (dweight - of_query.delta), k_smem, dim);  // dQ += dS K
  }
  if (block_query + warp >= masks.queries) return;
  store_row(dq.rows(work.batch, work.head)[block_query + warp], dq_sums, scale, dim);
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
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    const std::size_t bytes = shared_bytes(p.head_dim);
    TILE_TRY(compute_stats(p, stream));
    return launch_sides<T>(
        p, stream,
        Side(attention_backward_tiles_dkv<T>, "attention_backward_tiles_dkv", kKept, kThreads,
             bytes),
        Side(attention_backward_tiles_dq<T>, "attention_backward_tiles_dq", kKept, kThreads, bytes),
        p.heads, group_of(p), p.head_dim, p.scale);
  });
}

}  // namespace flash_attention
