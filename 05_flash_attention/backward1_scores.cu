// Backward, step 1: the formulas.
// Idea: with the softmax's P and its gradient in memory, each gradient is a product:
//       dV = P^T dO, dQ = scale dS K, dK = scale dS^T Q with dS = P (dO V^T - delta).
// Limit: the products are computed element by element. With faster products it would be memory: two
//        matrices of 4 bytes for each query and key, written once and read three times.
#include "launch.hpp"
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
/// One of the products with a matrix M = dS or P. Of queries: dQ = scale M K. Of keys: dK = scale
/// M^T Q, or dV = M^T dO with 1 as the scale, over all heads that share a key.
template <bool kOfKeys, class T>
__global__ void attention_backward_scores_product(
    const float* matrix,    // [batch][heads][queries][keys]
    Heads<const T> factor,  // k; of keys q or dout
    Heads<T> gradient,      // dq; of keys dk or dv
    BatchMasks masks, int heads, int group, int dim, float scale) {
  const auto work = kOfKeys ? work_of_block(heads / group, masks.keys)  // a tile is one key,
                            : work_of_block(heads, masks.queries);      // or one query
  const Mask mask = kOfKeys ? masks.of(work.batch).transposed() : masks.of(work.batch);
  const int head0 = kOfKeys ? work.head * group : work.head;
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    float sum = 0;
    for (int head = head0; head < head0 + (kOfKeys ? group : 1); ++head) {
      const auto rows = factor.rows(work.batch, kOfKeys ? head : head / group);
      const std::int64_t first = (std::int64_t{work.batch} * heads + head) * masks.queries;
      for (int i = mask.first_key(work.tile); i < mask.end_key(work.tile); ++i) {
        const int query = kOfKeys ? i : work.tile, key = kOfKeys ? work.tile : i;
        sum += matrix[(first + query) * masks.keys + key] * static_cast<float>(rows[i][d]);
      }
    }
    gradient.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(scale * sum);
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
    const auto product = [&](auto of_keys, const float* matrix, Heads<const T> factor,
                             const tile::TensorView& gradient, float scale) -> tile::Status {
      return tile::launch(attention_backward_scores_product<of_keys, T>,
                          "attention_backward_scores_product", of_keys ? keys : queries, kThreads,
                          0, stream, matrix, factor, heads_of<T>(gradient), masks_of(p), p.heads,
                          group_of(p), p.head_dim, scale);
    };
    TILE_TRY(tile::launch(attention_backward_scores<T>, "attention_backward_scores", queries,
                          kThreads, 0, stream, q, k, v, heads_of<const T>(p.o), dout, p.lse,
                          weights, dscores, masks_of(p), p.heads, group_of(p), p.head_dim,
                          p.scale));
    TILE_TRY(product(std::false_type{}, dscores, k, p.dq, p.scale));
    TILE_TRY(product(std::true_type{}, dscores, q, p.dk, p.scale));
    return product(std::true_type{}, weights, dout, p.dv, 1);
  });
}

}  // namespace flash_attention
