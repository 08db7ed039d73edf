// Backward, step 1: the formulas.
// Idea: P and dS do not depend on which pair a score came from; the gradients do: dS of a near key
//       makes dQ1 = scale dS K1 and dK1 = scale dS^T Q1, dS of a far one dQ2 and dK2.
// Limit: as in chapter 05, products element by element, and two matrices in memory.
#include "tile/float_rows.cuh"
#include "tile/ptx/exp2.cuh"
#include "windowed/kinds.hpp"
#include "windowed/launch.hpp"

namespace windowed_rope {
namespace {

constexpr int kThreads = 128;

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
  const float delta = tile::dot(dout_row, o.rows(work.batch, work.head)[work.tile], dim);
  for (int key = threadIdx.x; key < masks.keys; key += kThreads) {
    float weight = 0, dscore = 0;
    if (mask.sees(work.tile, key)) {
      const bool near = window.is_near(mask, work.tile, key);
      const T* query_row = (near ? q1 : q2).rows(work.batch, work.head)[work.tile];
      const T* key_row = (near ? k1 : k2).rows(work.batch, work.head / group)[key];
      const T* value_row = v.rows(work.batch, work.head / group)[key];
      const float score = scale * tile::dot(query_row, key_row, dim);
      weight = tile::ptx::exp2_approx(kLog2E * (score - lse[blockIdx.x]));
      dscore = weight * (tile::dot(dout_row, value_row, dim) - delta);
    }
    weights[std::int64_t{blockIdx.x} * masks.keys + key] = weight;
    dscores[std::int64_t{blockIdx.x} * masks.keys + key] = dscore;
  }
}

/// One of the products with a matrix M = dS or P, as chapter 05 has it, but over the given kinds of
/// keys only: dQ1 and dK1 are sums over near ones, dQ2 and dK2 over far ones, and dV over both.
template <bool kOfKeys, class T>
__global__ void windowed_backward_scores_product(
    const float* matrix,    // [batch][heads][queries][keys]
    Heads<const T> factor,  // k1 or k2; of keys q1, q2 or dout
    Heads<T> gradient,      // dq1 or dq2; of keys dk1, dk2 or dv
    BatchMasks masks, Window window, Kinds kinds, int heads, int group, int dim, float scale) {
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
        if (!(window.is_near(mask, work.tile, i) ? kinds.near : kinds.far)) continue;
        const int query = kOfKeys ? i : work.tile, key = kOfKeys ? work.tile : i;
        sum += matrix[(first + query) * masks.keys + key] * static_cast<float>(rows[i][d]);
      }
    }
    gradient.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(scale * sum);
  }
}

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
    const auto v = heads_of<const T>(p.v), dout = heads_of<const T>(p.dout);
    auto* weights = static_cast<float*>(p.workspace);
    float* dscores = weights + p.batch * p.heads * p.queries * p.keys;
    const Kinds near{true, false}, far{false, true}, both{true, true};
    const auto product = [&](auto of_keys, Kinds kinds, const float* matrix, Heads<const T> factor,
                             const tile::TensorView& gradient, float scale) -> tile::Status {
      return tile::launch(windowed_backward_scores_product<of_keys, T>,
                          "windowed_backward_scores_product", of_keys ? keys : queries, kThreads, 0,
                          stream, matrix, factor, heads_of<T>(gradient), masks_of(p), window_of(p),
                          kinds, p.heads, group_of(p), p.head_dim, scale);
    };
    TILE_TRY(tile::launch(windowed_backward_scores<T>, "windowed_backward_scores", queries,
                          kThreads, 0, stream, q1, k1, q2, k2, v, heads_of<const T>(p.o), dout,
                          p.lse, weights, dscores, masks_of(p), window_of(p), p.heads, group_of(p),
                          p.head_dim, p.scale));
    TILE_TRY(product(std::false_type{}, near, dscores, k1, p.dq, p.scale));
    TILE_TRY(product(std::false_type{}, far, dscores, k2, p.dq_far, p.scale));
    TILE_TRY(product(std::true_type{}, near, dscores, q1, p.dk, p.scale));
    TILE_TRY(product(std::true_type{}, far, dscores, q2, p.dk_far, p.scale));
    return product(std::true_type{}, both, weights, dout, p.dv, 1);
  });
}

}  // namespace windowed_rope
