// Backward preprocess for wgmma: lse and delta of each query, as a product adds them, and zeros for
// the sums of dQ.
#pragma once

#include "tile/host/key_blocks.hpp"
#include "tile/reduce.cuh"
#include "tile/rows.cuh"

namespace tile {

// snippet-begin prepare
/// delta = sum dO O of a query, and zeros for its sums of kSums tensors, as dQ. A row has kDim / 8
/// lanes, and a block so many rows that each head's have whole blocks. The first blocks have the
/// last rows: what the next kernel reads first is then still in the L2.
template <class T, int kDim, int kThreads, int kSums>
__global__ void attention_backward_prepare(Heads<const T> o,     // [batch][queries][heads][kDim]
                                           Heads<const T> dout,  // as o
                                           const float* lse,     // [batch][heads][queries]
                                           ColumnStats* stats,   // [batch][heads][rows]
                                           float4* dq_sums,      // [kSums] … [kDim / 8][lane]
                                           BatchMasks masks, int heads, int rows, float scale) {
  constexpr int kLanes = kDim / 8, kRows = kThreads / kLanes;
  static_assert(kRowsOfTerms % kRows == 0 && kLanes <= kWarp, "whole blocks, whole warps");
  const unsigned block = gridDim.x - 1 - blockIdx.x, of_all = block / (rows / kRows);
  const int head = static_cast<int>(of_all % heads), batch = static_cast<int>(of_all / heads);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const int query = static_cast<int>(block % (rows / kRows)) * kRows + thread / kLanes;
  const bool exists = query < masks.of(batch).queries;
  float sum = 0;
  if (exists) {
    float a[8], b[8];
    Chunk<T, 8>::load(o.row(batch, query, head) + lane * 8).to_floats(a);
    Chunk<T, 8>::load(dout.row(batch, query, head) + lane * 8).to_floats(b);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += a[i] * b[i];
  }
  sum = reduce_lanes(sum, Add{}, kLanes);
  // A query that does not exist, or sees no key, has no weight: the mask hides its scores.
  if (lane == 0) {
    const float of_row = exists ? lse[std::int64_t{of_all} * masks.queries + query] : -INFINITY;
    stats[std::int64_t{of_all} * rows + query] = {
        ptx::ColumnTerm::of(of_row != -INFINITY ? -of_row / scale : 0), ptx::ColumnTerm::of(-sum)};
  }
#pragma unroll
  for (unsigned of = 0; of < kSums; ++of) {
    float4* zeros = dq_sums + (std::int64_t{of} * gridDim.x + block) * kRows * (kDim / 4);
#pragma unroll
    for (int i = 0; i < kRows * kDim / 4; i += kThreads) zeros[i + thread] = float4{};
  }
}
// snippet-end prepare

/// Fills in the stats and clears the sums of dQ in the stream, a cudaStream_t, for a type of 16
/// bits and kDim columns, those of kSums tensors one after the other. Of the call it reads o, dout,
/// lse, the sizes and the lengths. The rows of o and dout consist of aligned chunks of 16 bytes.
template <class T, int kDim, int kSums = 1>
Status launch_column_stats(const AttentionBackward& p, void* stream) {
  constexpr int kThreads = 256;
  const int rows = tiles_of(p.queries, kRowsOfTerms) * kRowsOfTerms;
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, rows, kThreads / (kDim / 8), &blocks));
  return launch(attention_backward_prepare<T, kDim, kThreads, kSums>, "attention_backward_prepare",
                blocks, kThreads, 0, stream, heads_of<const T>(p.o), heads_of<const T>(p.dout),
                p.lse, column_stats_of(p), sums_of(p), masks_of(p), p.heads, rows, p.scale);
}

}  // namespace tile
