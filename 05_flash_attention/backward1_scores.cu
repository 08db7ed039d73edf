// Backward, step 1: the formulas.
// Idea: with the softmax's P and its gradient in memory, each gradient is a product:
//       dV = P^T dO, dQ = scale dS K, dK = scale dS^T Q with dS = P (dO V^T - delta).
// Limit: the products are computed element by element. With faster products it would be memory: two
//        matrices of 4 bytes for each query and key, written once and read three times.
#include "flash_attention.cuh"
#include "tile/float_rows.cuh"
#include "tile/ptx/exp2.cuh"

namespace flash_attention {
namespace {

using tile::dot;

constexpr int kThreads = 128;

// snippet-begin weights
/// P = exp(S - lse) and dS = P (dP - delta) of a query. Both are 0 for keys that the query does not
/// see.
template <class T>
__global__ void attention_backward_scores(Heads<const T> q,     // [batch][queries][heads][dim]
                                          Heads<const T> k,     // [batch][keys][heads / group][dim]
                                          Heads<const T> v,     // as k
                                          Heads<const T> o,     // as q
                                          Heads<const T> dout,  // as q
                                          const float* lse,     // [batch][heads][queries]
                                          float* weights,       // [batch][heads][queries][keys]
                                          float* dscores,       // as weights
                                          BatchMasks masks, int heads, int group, int dim,
                                          float scale) {
  const auto work = work_of_block(heads, masks.queries);  // a tile is one query
  const Mask mask = masks.of(work.batch);
  const T* query = q.rows(work.batch, work.head)[work.tile];
  const T* dout_row = dout.rows(work.batch, work.head)[work.tile];
  const float delta = dot(dout_row, o.rows(work.batch, work.head)[work.tile], dim);
  for (int key = threadIdx.x; key < masks.keys; key += kThreads) {
    float weight = 0, dscore = 0;
    if (mask.sees(work.tile, key)) {
      const T* key_row = k.rows(work.batch, work.head / group)[key];
      const T* value_row = v.rows(work.batch, work.head / group)[key];
      const float score = scale * dot(query, key_row, dim);
      weight = tile::ptx::exp2_approx(kLog2E * (score - lse[blockIdx.x]));
      dscore = weight * (dot(dout_row, value_row, dim) - delta);
    }
    weights[std::int64_t{blockIdx.x} * masks.keys + key] = weight;
    dscores[std::int64_t{blockIdx.x} * masks.keys + key] = dscore;
  }
}
// snippet-end weights

// snippet-begin products
/// dQ = scale dS K.
template <class T>
__global__ void attention_backward_scores_dq(const float* dscores,  // [batch][heads][queries][keys]
                                             Heads<const T> k,      // [batch][keys][…][dim]
                                             Heads<T> dq,           // [batch][queries][heads][dim]
                                             BatchMasks masks, int heads, int group, int dim,
                                             float scale) {
  const auto work = work_of_block(heads, masks.queries);  // a tile is one query
  const Mask mask = masks.of(work.batch);
  const auto keys = k.rows(work.batch, work.head / group);
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    float sum = 0;
    for (int key = mask.first_key(work.tile); key < mask.end_key(work.tile); ++key) {
      sum +=
          dscores[std::int64_t{blockIdx.x} * masks.keys + key] * static_cast<float>(keys[key][d]);
    }
    dq.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(scale * sum);
  }
}

/// dK = scale dS^T Q and dV = P^T dO, over all heads that share a key.
template <class T>
__global__ void attention_backward_scores_dkv(
    const float* weights,  // [batch][heads][queries][keys]
    const float* dscores,  // as weights
    Heads<const T> q,      // [batch][queries][heads][dim]
    Heads<const T> dout,   // as q
    Heads<T> dk,           // [batch][keys][heads / group][dim]
    Heads<T> dv,           // as dk
    BatchMasks masks, int heads, int group, int dim, float scale) {
  const auto work = work_of_block(heads / group, masks.keys);  // a tile is one key
  const Mask transposed = masks.of(work.batch).transposed();
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    float dk_sum = 0, dv_sum = 0;
    for (int head = work.head * group; head < (work.head + 1) * group; ++head) {
      const auto queries = q.rows(work.batch, head), douts = dout.rows(work.batch, head);
      const std::int64_t first = (std::int64_t{work.batch} * heads + head) * masks.queries;
      for (int query = transposed.first_key(work.tile); query < transposed.end_key(work.tile);
           ++query) {
        const std::int64_t at = (first + query) * masks.keys + work.tile;
        dk_sum += dscores[at] * static_cast<float>(queries[query][d]);
        dv_sum += weights[at] * static_cast<float>(douts[query][d]);
      }
    }
    dk.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(scale * dk_sum);
    dv.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(dv_sum);
  }
}
// snippet-end products

}  // namespace

tile::Status takes_scores(const AttentionBackward& p, const tile::Device&) {
  return tile::check_workspace(scores_bytes(p), p.workspace_bytes);
}

tile::Status scores(const AttentionBackward& p, void* stream) {
  unsigned queries = 0, keys = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, 1, &queries));
  TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, 1, &keys));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    const auto q = heads_of<const T>(p.q), k = heads_of<const T>(p.k);
    const auto v = heads_of<const T>(p.v), dout = heads_of<const T>(p.dout);
    auto* weights = static_cast<float*>(p.workspace);
    float* dscores = weights + p.batch * p.heads * p.queries * p.keys;
    if (queries > 0) {
      TILE_TRY(tile::launch(attention_backward_scores<T>, "attention_backward_scores", queries,
                            kThreads, 0, stream, q, k, v, heads_of<const T>(p.o), dout, p.lse,
                            weights, dscores, masks_of(p), p.heads, group_of(p), p.head_dim,
                            p.scale));
      TILE_TRY(tile::launch(attention_backward_scores_dq<T>, "attention_backward_scores_dq",
                            queries, kThreads, 0, stream, dscores, k, heads_of<T>(p.dq),
                            masks_of(p), p.heads, group_of(p), p.head_dim, p.scale));
    }
    if (keys == 0) return {};
    return tile::launch(attention_backward_scores_dkv<T>, "attention_backward_scores_dkv", keys,
                        kThreads, 0, stream, weights, dscores, q, dout, heads_of<T>(p.dk),
                        heads_of<T>(p.dv), masks_of(p), p.heads, group_of(p), p.head_dim, p.scale);
  });
}

}  // namespace flash_attention
