// Backward preprocess: delta and the log-sum-exp of each query.
#pragma once

#include "tile/host/attention_launch.hpp"
#include "tile/reduce.cuh"

namespace tile {

/// Rows of a warp: their loads are under way together.
constexpr int kWarpTerms = 4;
template <int kThreads>
constexpr int kBlockTerms = kThreads / kWarp* kWarpTerms;

/// delta = sum dO O of a query. A block has kBlockTerms of the `rows` of a head.
template <int kThreads, class T>
__device__ void compute_stats(const Heads<const T>& o,     // [batch][queries][heads][dim]
                              const Heads<const T>& dout,  // as o
                              const float* lse,            // [batch][heads][queries]
                              RowStats* stats,             // [batch][heads][rows]
                              const BatchMasks& masks, int heads, int rows, int dim) {
  static_assert(kRowsOfTerms % kBlockTerms<kThreads> == 0, "whole blocks");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned blocks = rows / kBlockTerms<kThreads>, of_all = blockIdx.x / blocks;
  const int head = static_cast<int>(of_all % heads), batch = static_cast<int>(of_all / heads);
  const int query =
      static_cast<int>(blockIdx.x % blocks) * kBlockTerms<kThreads> + warp * kWarpTerms;
  const int queries = masks.of(batch).queries;
  float sum[kWarpTerms] = {};
#pragma unroll 2
  for (int d = lane; d < dim; d += kWarp) {
#pragma unroll
    for (int r = 0; r < kWarpTerms; ++r) {
      if (query + r < queries) {
        sum[r] += static_cast<float>(o.row(batch, query + r, head)[d]) *
                  static_cast<float>(dout.row(batch, query + r, head)[d]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kWarpTerms; ++r) {
    // A query that does not exist, or sees no key, has no weight: the mask hides its scores.
    RowStats row{0, reduce_lanes(sum[r], Add{})};
    if (query + r < queries) {
      const float of_row = lse[std::int64_t{of_all} * masks.queries + query + r];
      if (of_row != -INFINITY) row.lse2 = kLog2E * of_row;
    }
    if (lane == 0) stats[std::int64_t{of_all} * rows + query + r] = row;
  }
}

template <int kThreads, class T>
__global__ void attention_backward_preprocess(Heads<const T> o,     // [batch][queries][heads][dim]
                                              Heads<const T> dout,  // as o
                                              const float* lse,     // [batch][heads][queries]
                                              RowStats* stats,      // [batch][heads][rows]
                                              BatchMasks masks, int heads, int rows, int dim) {
  compute_stats<kThreads>(o, dout, lse, stats, masks, heads, rows, dim);
}

/// Fills in `stats`, [batch][heads][queries, up to a multiple of kRowsOfTerms], in the stream, a
/// cudaStream_t. Of the call it reads o, dout, lse, the sizes and the lengths.
inline Status launch_row_stats(const AttentionBackward& p, RowStats* stats, void* stream) {
  constexpr int kThreads = 128;
  const int rows = tiles_of(p.queries, kRowsOfTerms) * kRowsOfTerms;
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, rows, kBlockTerms<kThreads>, &blocks));
  return with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return launch(attention_backward_preprocess<kThreads, T>, "attention_backward_preprocess",
                  blocks, kThreads, 0, stream, heads_of<const T>(p.o), heads_of<const T>(p.dout),
                  p.lse, stats, masks_of(p), p.heads, rows, p.head_dim);
  });
}

}  // namespace tile
