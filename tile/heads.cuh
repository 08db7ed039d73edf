// What attention kernels begin with: the rows of heads, the statistics of each query, and which
// part of the work a block does.
#pragma once

#include "tile/basics.cuh"
#include "tile/host/strides.hpp"

namespace tile {

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// snippet-begin heads
/// A tensor of rows, some heads to each batch entry.
template <class T>
struct Heads {
  T* data;
  Strides stride;

  __device__ Rows<T> rows(int batch, int head, int first_row = 0) const {
    return {data + batch * stride.batch + head * stride.head + first_row * stride.row, stride.row};
  }
  __device__ __forceinline__ T* row(int batch, int row, int head) const {
    return ptx::address_once(data + batch * stride.batch + row * stride.row + head * stride.head);
  }
};
// snippet-end heads

/// What a block works on: a tile of the rows of one head.
struct BlockWork {
  int batch, head, tile;
  __device__ bool is_none() const { return batch < 0; }  // no work is left
};
/// The tiles of a head follow one another, so that blocks that run at the same time share its keys
/// and values in the L2.
__device__ inline BlockWork work_of_block(int heads, int tiles) {
  const unsigned of_head = blockIdx.x / tiles;
  return {static_cast<int>(of_head / heads), static_cast<int>(of_head % heads),
          static_cast<int>(blockIdx.x % tiles)};
}

/// The `at`-th work if tiles with the most work come first, so that little ones fill the gaps at
/// the end. `together` heads take turns at each tile, and share the L2. For tiles of keys: under a
/// causal mask the first ones are seen by the most queries.
__device__ inline BlockWork longest_first(unsigned at, unsigned together, int batch, int heads,
                                          int tiles) {
  const unsigned all = batch * heads, section = at / (together * tiles) * together;
  const unsigned width = min(together, all - section), in_section = at % (together * tiles);
  const unsigned of_head = section + in_section % width;
  return {static_cast<int>(of_head / heads), static_cast<int>(of_head % heads),
          static_cast<int>(in_section / width)};
}
__device__ inline BlockWork keys_longest_first(int batch, int heads, int tiles) {
  return longest_first(blockIdx.x, 8, batch, heads, tiles);
}
/// For tiles of queries: the last ones see the most keys.
__device__ inline BlockWork work_longest_first(int batch, int heads, int tiles) {
  const BlockWork work = keys_longest_first(batch, heads, tiles);
  return {work.batch, work.head, tiles - 1 - work.tile};
}
/// The same for blocks that take tiles of all heads from a queue, by their numbers. A "head" is a
/// pack of 2^log2_pack heads: its row r is query r >> log2_pack of its head r % 2^log2_pack.
struct QueryTiles {
  int batch, heads, of_head;
  unsigned all, together;  // tiles; and heads, whose tiles are taken in turn
  int log2_pack;

  __device__ BlockWork work(unsigned at) const {
    if (at >= all) return {-1, 0, 0};
    const BlockWork work = longest_first(at, together, batch, heads, of_head);
    return {work.batch, work.head, of_head - 1 - work.tile};
  }
};

/// Backward, of each query: lse in units of log2, and delta. After a head's queries there are rows
/// up to a multiple of kRowsOfTerms which have no weight, so that a tile of queries need not check
/// where they end.
struct RowStats {
  float lse2, delta;
};
inline constexpr int kRowsOfTerms = 128;

/// Where the stats of a head begin. Of is RowStats, or const RowStats.
template <class Of>
__device__ Of* stats_of_head(Of* stats, const BlockWork& work, int heads, int queries) {
  const std::int64_t rows = (queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;
  return stats + (std::int64_t{work.batch} * heads + work.head) * rows;
}

}  // namespace tile
