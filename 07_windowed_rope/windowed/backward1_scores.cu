// Backward, step 1: the formulas.
// Idea: P and dS do not depend on which pair a score came from; the gradients do: dS of a near key
//       makes dQ1 = scale dS K1 and dK1 = scale dS^T Q1, dS of a far one dQ2 and dK2. dV is a sum
//       over both.
// Limit: the products are computed element by element, and two matrices have 4 bytes for each query
//        and key.
#include "tile/float_rows.cuh"
#include "tile/ptx/exp2.cuh"
#include "windowed/windowed_rope.cuh"

namespace windowed_rope {
namespace {

using tile::dot;

constexpr int kThreads = 128;

// snippet-begin weights
/// P = exp(S - lse) and dS = P (dP - delta) of a query. Both are 0 for keys that the query does not
/// see.
template <class T>
__global__ void windowed_backward_scores(Heads<const T> q1,    // [batch][queries][heads][dim]
                                         Heads<const T> k1,    // [batch][keys][heads / group][dim]
                                         Heads<const T> q2,    // as q1
                                         Heads<const T> k2,    // as k1
                                         Heads<const T> v,     // as k1
                                         Heads<const T> o,     // as q1
                                         Heads<const T> dout,  // as q1
                                         const float* lse,     // [batch][heads][queries]
                                         float* weights,       // [batch][heads][queries][keys]
                                         float* dscores,       // as weights
                                         BatchMasks masks, Window window, int heads, int group,
                                         int dim, float scale) {
  const auto work = work_of_block(heads, masks.queries);  // a tile is one query
  const Mask mask = masks.of(work.batch);
  const T* dout_row = dout.rows(work.batch, work.head)[work.tile];
  const float delta = dot(dout_row, o.rows(work.batch, work.head)[work.tile], dim);
  for (int key = threadIdx.x; key < masks.keys; key += kThreads) {
    float weight = 0, dscore = 0;
    if (mask.sees(work.tile, key)) {
      const bool near = window.is_near(mask, work.tile, key);
      const T* query_row = (near ? q1 : q2).rows(work.batch, work.head)[work.tile];
      const T* key_row = (near ? k1 : k2).rows(work.batch, work.head / group)[key];
      const T* value_row = v.rows(work.batch, work.head / group)[key];
      const float score = scale * dot(query_row, key_row, dim);
      weight = tile::ptx::exp2_approx(kLog2E * (score - lse[blockIdx.x]));
      dscore = weight * (dot(dout_row, value_row, dim) - delta);
    }
    weights[std::int64_t{blockIdx.x} * masks.keys + key] = weight;
    dscores[std::int64_t{blockIdx.x} * masks.keys + key] = dscore;
  }
}
// snippet-end weights

// snippet-begin products
/// dQ1 = scale dS K1 over near keys, and dQ2 = scale dS K2 over far ones.
template <class T>
__global__ void windowed_backward_scores_dq(const float* dscores,  // [batch][heads][queries][keys]
                                            Heads<const T> k1,     // [batch][keys][…][dim]
                                            Heads<const T> k2,     // as k1
                                            Heads<T> dq1,          // [batch][queries][heads][dim]
                                            Heads<T> dq2,          // as dq1
                                            BatchMasks masks, Window window, int heads, int group,
                                            int dim, float scale) {
  const auto work = work_of_block(heads, masks.queries);  // a tile is one query
  const Mask mask = masks.of(work.batch);
  const auto near_keys = k1.rows(work.batch, work.head / group);
  const auto far_keys = k2.rows(work.batch, work.head / group);
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    float near_sum = 0, far_sum = 0;
    for (int key = mask.first_key(work.tile); key < mask.end_key(work.tile); ++key) {
      const float dscore = dscores[std::int64_t{blockIdx.x} * masks.keys + key];
      if (window.is_near(mask, work.tile, key)) {
        near_sum += dscore * static_cast<float>(near_keys[key][d]);
      } else {
        far_sum += dscore * static_cast<float>(far_keys[key][d]);
      }
    }
    dq1.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(scale * near_sum);
    dq2.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(scale * far_sum);
  }
}

/// dK1 and dK2 in the same way, and dV = P^T dO, over all heads that share a key.
template <class T>
__global__ void windowed_backward_scores_dkv(const float* weights,  // [batch][heads][queries][keys]
                                             const float* dscores,  // as weights
                                             Heads<const T> q1,     // [batch][queries][heads][dim]
                                             Heads<const T> q2,     // as q1
                                             Heads<const T> dout,   // as q1
                                             Heads<T> dk1,  // [batch][keys][heads / group][dim]
                                             Heads<T> dk2,  // as dk1
                                             Heads<T> dv,   // as dk1
                                             BatchMasks masks, Window window, int heads, int group,
                                             int dim, float scale) {
  const auto work = work_of_block(heads / group, masks.keys);  // a tile is one key
  const Mask transposed = masks.of(work.batch).transposed();
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    float near_sum = 0, far_sum = 0, dv_sum = 0;
    for (int head = work.head * group; head < (work.head + 1) * group; ++head) {
      const auto near_queries = q1.rows(work.batch, head), far_queries = q2.rows(work.batch, head);
      const auto douts = dout.rows(work.batch, head);
      const std::int64_t first = (std::int64_t{work.batch} * heads + head) * masks.queries;
      for (int query = transposed.first_key(work.tile); query < transposed.end_key(work.tile);
           ++query) {
        const std::int64_t at = (first + query) * masks.keys + work.tile;
        if (window.is_near(transposed, work.tile, query)) {
          near_sum += dscores[at] * static_cast<float>(near_queries[query][d]);
        } else {
          far_sum += dscores[at] * static_cast<float>(far_queries[query][d]);
        }
        dv_sum += weights[at] * static_cast<float>(douts[query][d]);
      }
    }
    dk1.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(scale * near_sum);
    dk2.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(scale * far_sum);
    dv.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(dv_sum);
  }
}
// snippet-end products

}  // namespace

tile::Status takes_scores(const AttentionBackward& p, const tile::Device&) {
  TILE_TRY(check_no_distance_factor(p));
  return tile::check_workspace(scores_bytes(p), p.workspace_bytes);
}

tile::Status scores(const AttentionBackward& p, void* stream) {
  unsigned queries = 0, keys = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, 1, &queries));
  TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, 1, &keys));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    const auto q1 = heads_of<const T>(p.q), k1 = heads_of<const T>(p.k);
    const auto q2 = heads_of<const T>(p.q_far), k2 = heads_of<const T>(p.k_far);
    const auto dout = heads_of<const T>(p.dout);
    const BatchMasks masks = masks_of(p);
    const Window window = window_of(p);
    const int heads = static_cast<int>(p.heads), dim = static_cast<int>(p.head_dim);
    auto* weights = static_cast<float*>(p.workspace);
    float* dscores = weights + p.batch * p.heads * p.queries * p.keys;
    if (queries > 0) {
      TILE_TRY(tile::launch(windowed_backward_scores<T>, "windowed_backward_scores", queries,
                            kThreads, 0, stream, q1, k1, q2, k2, heads_of<const T>(p.v),
                            heads_of<const T>(p.o), dout, p.lse, weights, dscores, masks, window,
                            heads, group_of(p), dim, p.scale));
      TILE_TRY(tile::launch(windowed_backward_scores_dq<T>, "windowed_backward_scores_dq", queries,
                            kThreads, 0, stream, dscores, k1, k2, heads_of<T>(p.dq),
                            heads_of<T>(p.dq_far), masks, window, heads, group_of(p), dim,
                            p.scale));
    }
    if (keys > 0) {
      return tile::launch(windowed_backward_scores_dkv<T>, "windowed_backward_scores_dkv", keys,
                          kThreads, 0, stream, weights, dscores, q1, q2, dout, heads_of<T>(p.dk),
                          heads_of<T>(p.dk_far), heads_of<T>(p.dv), masks, window, heads,
                          group_of(p), dim, p.scale);
    }
    return {};
  });
}

}  // namespace windowed_rope
