// Forward, step 1: all scores in memory.
// Idea: the formulas as they are written: S = scale Q K^T, P = softmax(S), O = P V, with a kernel
//       for each and the matrix of scores in memory between them.
// Limit: products element by element. With faster ones it would be memory: for 131,072 queries and
//        keys the scores of a head take 64 GiB, and each is written twice and read four times.
#include "launch.hpp"
#include "tile/ptx/exp2.cuh"
#include "tile/reduce.cuh"

namespace flash_attention {
namespace {

constexpr int kThreads = 128;

// snippet-begin scores
/// S = scale Q K^T. A score that its query does not see is -infinity.
template <class T>
__global__ void attention_scores(Heads<const T> q,  // [batch][queries][heads][dim]
                                 Heads<const T> k,  // [batch][keys][heads / group][dim]
                                 float* scores,     // [batch][heads][queries][keys]
                                 BatchMasks masks, int heads, int group, int dim, float scale) {
  const auto work = work_of_block(heads, masks.queries);  // a tile is one query
  const Mask mask = masks.of(work.batch);
  const T* query = q.rows(work.batch, work.head)[work.tile];
  const auto key_rows = k.rows(work.batch, work.head / group);
  for (int key = threadIdx.x; key < masks.keys; key += kThreads) {
    float sum = 0;
    const bool seen = mask.sees(work.tile, key);
    for (int d = 0; seen && d < dim; ++d) {
      sum += static_cast<float>(query[d]) * static_cast<float>(key_rows[key][d]);
    }
    scores[std::int64_t{blockIdx.x} * masks.keys + key] = seen ? scale * sum : -INFINITY;
  }
}
// snippet-end scores

// snippet-begin softmax
/// P = softmax(S), in place.
__global__ void attention_scores_softmax(float* scores,  // [rows][keys]
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
// snippet-end softmax

// snippet-begin output
/// O = P V.
template <class T>
__global__ void attention_scores_output(const float* weights,  // [batch][heads][queries][keys]
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
// snippet-end output

}  // namespace

tile::Status takes_scores(const AttentionForward& p, const tile::Device&) {
  return tile::check_workspace(scores_bytes(p), p.workspace_bytes);
}

tile::Status scores(const AttentionForward& p, void* stream) {
  unsigned rows = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, 1, &rows));
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    auto* all = static_cast<float*>(p.workspace);
    TILE_TRY(tile::launch(attention_scores<T>, "attention_scores", rows, kThreads, 0, stream,
                          heads_of<const T>(p.q), heads_of<const T>(p.k), all, masks_of(p), p.heads,
                          group_of(p), p.head_dim, p.scale));
    TILE_TRY(tile::launch(attention_scores_softmax, "attention_scores_softmax", rows, kThreads, 0,
                          stream, all, p.lse, p.keys));
    return tile::launch(attention_scores_output<T>, "attention_scores_output", rows, kThreads, 0,
                        stream, all, heads_of<const T>(p.v), heads_of<T>(p.o), masks_of(p), p.heads,
                        group_of(p), p.head_dim);
  });
}

}  // namespace flash_attention
