// Forward, step 2: a block keeps a tile of queries and loops over the keys.
// Idea: a block keeps kQueries queries and their outputs. It loads a tile of keys and of values,
//       computes their scores, and corrects its outputs so far as chapter 03's online softmax does:
//       no score ever leaves the block.
// Change: one kernel instead of three, and no memory for scores.
// Limit: arithmetic. Two multiply-adds of fp32 for each score and element of the head dimension,
//        and each reads shared memory.
#include "launch.hpp"
#include "tile/float_rows.cuh"

namespace flash_attention {
namespace {

using tile::kLaneDims, tile::add_rows, tile::load_rows, tile::store_row;
constexpr int kQueries = 16, kKeys = 32;  // a warp has two queries, and a lane one of the keys
constexpr int kWarps = 8, kThreads = kWarps * tile::kWarp;
constexpr int kWarpQueries = kQueries / kWarps;

// snippet-begin kernel
template <class T>
__global__ void attention_tiles(Heads<const T> q,  // [batch][queries][heads][dim]
                                Heads<const T> k,  // [batch][keys][heads / group][dim]
                                Heads<const T> v,  // as k
                                Heads<T> o,        // [batch][queries][heads][dim]
                                float* lse,        // [batch][heads][queries], or null
                                BatchMasks masks, int heads, int group, int dim, float scale_log2) {
  extern __shared__ float smem[];                  // {queries, keys or values}
  float* q_smem = smem;                            // [kQueries][dim + 1]
  float* kv_smem = q_smem + kQueries * (dim + 1);  // [kKeys][dim + 1]
  const auto work = work_of_block(heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_query = static_cast<int>(threadIdx.x) / tile::kWarp * kWarpQueries;  // in the tile
  const int lane = threadIdx.x % tile::kWarp;
  load_rows<kQueries>(q_smem, q.rows(work.batch, work.head, block_query),
                      mask.queries - block_query, dim);

  tile::LaneSoftmax softmax[kWarpQueries];
  float out[kWarpQueries][kLaneDims] = {};  // of the elements lane, lane + 32, …
  for (int first_key = 0; first_key < mask.keys; first_key += kKeys) {
    const int keys_left = mask.keys - first_key;
    load_rows<kKeys>(kv_smem, k.rows(work.batch, kv_head, first_key), keys_left, dim);
    __syncthreads();  // queries and keys are there
    float weight[kWarpQueries];
#pragma unroll
    for (int i = 0; i < kWarpQueries; ++i) {
      // S = Q K^T, a key for each lane
      const float* query = q_smem + (warp_query + i) * (dim + 1);
      const float* key = kv_smem + lane * (dim + 1);
      float score = 0;
      for (int d = 0; d < dim; ++d) score += query[d] * key[d];
      const bool seen = mask.sees(block_query + warp_query + i, first_key + lane);
      weight[i] = softmax[i].weigh(seen ? scale_log2 * score : -INFINITY, out[i]);
    }
    __syncthreads();  // all warps have read the keys
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
// snippet-end kernel

}  // namespace

tile::Status takes_tiles(const AttentionForward& p, const tile::Device&) {
  return tile::check_float_dim(p.head_dim);
}

tile::Status tiles(const AttentionForward& p, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, kQueries, &blocks));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    const std::size_t bytes = (kQueries + kKeys) * (p.head_dim + 1) * sizeof(float);
    return tile::launch(attention_tiles<T>, "attention_tiles", blocks, kThreads, bytes, stream,
                        heads_of<const T>(p.q), heads_of<const T>(p.k), heads_of<const T>(p.v),
                        heads_of<T>(p.o), p.lse, masks_of(p), p.heads, group_of(p), p.head_dim,
                        p.scale * kLog2E);
  });
}

}  // namespace flash_attention
