// Forward, step 1: all scores in memory.
// Idea: chapter 05's first step with two scores to choose from: q1 k1 for a near key, q2 k2 for a
//       far one. The softmax and the second product are the same for both.
// Limit: the products are computed element by element, with a matrix of scores in memory.
#include "tile/ptx/exp2.cuh"
#include "tile/reduce.cuh"
#include "windowed/launch.hpp"

namespace windowed_rope {
namespace {

constexpr int kThreads = 128;

// snippet-begin scores
/// S = scale Q1 K1^T where a key is near, scale Q2 K2^T where it is far. A score that its query
/// does not see is -infinity.
template <class T>
__global__ void windowed_scores(Heads<const T> q1,  // [batch][queries][heads][dim]
                                Heads<const T> k1,  // [batch][keys][heads / group][dim]
                                Heads<const T> q2,  // as q1
                                Heads<const T> k2,  // as k1
                                float* scores,      // [batch][heads][queries][keys]
                                BatchMasks masks, Window window, int heads, int group, int dim,
                                float scale) {
  const auto work = work_of_block(heads, masks.queries);  // a tile is one query
  const Mask mask = masks.of(work.batch);
  const int kv_head = work.head / group;
  for (int key = threadIdx.x; key < masks.keys; key += kThreads) {
    const bool seen = mask.sees(work.tile, key), near = window.is_near(mask, work.tile, key);
    const T* q = (near ? q1 : q2).rows(work.batch, work.head)[work.tile];
    const T* k = (near ? k1 : k2).rows(work.batch, kv_head)[key];
    float sum = 0;
    for (int d = 0; seen && d < dim; ++d)
      sum += static_cast<float>(q[d]) * static_cast<float>(k[d]);
    scores[std::int64_t{blockIdx.x} * masks.keys + key] = seen ? scale * sum : -INFINITY;
  }
}
// snippet-end scores

/// P = softmax(S), in place.
__global__ void windowed_scores_softmax(float* scores,  // [rows][keys]
                                        float* lse,     // [rows], or null
                                        int keys) {
  __shared__ float partial_smem[kThreads / tile::kWarp];
  float* row = scores + std::int64_t{blockIdx.x} * keys;
  float max = -INFINITY, sum = 0;
  for (int key = threadIdx.x; key < keys; key += kThreads) max = fmaxf(max, row[key]);
  max = tile::reduce_block(max, tile::Max{}, partial_smem);
  const float reference = max == -INFINITY ? 0 : max;  // -infinity minus itself is NaN
  for (int key = threadIdx.x; key < keys; key += kThreads) {
    sum += tile::ptx::exp2_approx(kLog2E * (row[key] - reference));
  }
  __syncthreads();  // every warp has read the maxima
  sum = tile::reduce_block(sum, tile::Add{}, partial_smem);
  const float inverse = sum == 0 ? 0 : 1 / sum;  // 0 for a query that sees no key
  for (int key = threadIdx.x; key < keys; key += kThreads) {
    row[key] = tile::ptx::exp2_approx(kLog2E * (row[key] - reference)) * inverse;
  }
  if (lse && threadIdx.x == 0) lse[blockIdx.x] = sum == 0 ? -INFINITY : reference + logf(sum);
}

/// O = P V.
template <class T>
__global__ void windowed_scores_output(const float* weights,  // [batch][heads][queries][keys]
                                       Heads<const T> v,      // [batch][keys][heads / group][dim]
                                       Heads<T> o,            // [batch][queries][heads][dim]
                                       BatchMasks masks, int heads, int group, int dim) {
  const auto work = work_of_block(heads, masks.queries);  // a tile is one query
  const Mask mask = masks.of(work.batch);
  const float* weight = weights + std::int64_t{blockIdx.x} * masks.keys;
  const auto values = v.rows(work.batch, work.head / group);
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    float sum = 0;
    for (int key = mask.first_key(work.tile); key < mask.end_key(work.tile); ++key) {
      sum += weight[key] * static_cast<float>(values[key][d]);
    }
    o.rows(work.batch, work.head)[work.tile][d] = static_cast<T>(sum);
  }
}

}  // namespace

tile::Status takes_scores(const AttentionForward& p, const tile::Device&) {
  TILE_TRY(check_no_distance_factor(p));
  return tile::check_workspace(scores_bytes(p), p.workspace_bytes);
}

tile::Status scores(const AttentionForward& p, void* stream) {
  unsigned rows = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, 1, &rows));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    const auto v = heads_of<const T>(p.v);
    const BatchMasks masks = masks_of(p);
    const int heads = static_cast<int>(p.heads), dim = static_cast<int>(p.head_dim);
    auto* all = static_cast<float*>(p.workspace);
    TILE_TRY(tile::launch(windowed_scores<T>, "windowed_scores", rows, kThreads, 0, stream,
                          heads_of<const T>(p.q), heads_of<const T>(p.k),
                          heads_of<const T>(p.q_far), heads_of<const T>(p.k_far), all, masks,
                          window_of(p), heads, group_of(p), dim, p.scale));
    TILE_TRY(tile::launch(windowed_scores_softmax, "windowed_scores_softmax", rows, kThreads, 0,
                          stream, all, p.lse, masks.keys));
    return tile::launch(windowed_scores_output<T>, "windowed_scores_output", rows, kThreads, 0,
                        stream, all, v, heads_of<T>(p.o), masks, heads, group_of(p), dim);
  });
}

}  // namespace windowed_rope
