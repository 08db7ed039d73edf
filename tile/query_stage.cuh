// Attention backward, for kernels that loop over queries: a tile of queries in shared memory, and
// the softmax's weights from scores and stats.
#pragma once

#include "tile/heads.cuh"
#include "tile/ptx/exp2.cuh"
#include "tile/shared_tile.cuh"

namespace tile {

/// A tile of queries and their dO, both [kQueries][kDim], and their stats, [kQueries].
template <class T, int kQueries, int kDim>
struct QueryStage {
  using Tile = SharedTile<T, kQueries, kDim>;
  // Of at most 64 queries. What follows begins at a multiple of a row's bytes, which are at most
  // 512.
  static constexpr int kTermBytes = 512;
  static constexpr int kBytes = 2 * Tile::kBytes + kTermBytes;
  static_assert(kQueries * sizeof(RowStats) <= kTermBytes);

  Tile q, dout;
  RowStats* stats;

  __device__ explicit QueryStage(unsigned char* begin)
      : q(begin),
        dout(q.after(Tile::kBytes)),
        stats(reinterpret_cast<RowStats*>(begin + 2 * Tile::kBytes)) {}

  /// Copies all three with all kThreads threads of the block; the copies are under way when this
  /// returns. Rows from `rows_left` on become zeros. RowStats are padded to whole tiles.
  template <int kThreads>
  __device__ void copy_async(Rows<const T> q_rows, Rows<const T> dout_rows, const RowStats* of_rows,
                             int rows_left) const {
    q.template copy_async_in_steps<kThreads>(q_rows, rows_left);
    dout.template copy_async_in_steps<kThreads>(dout_rows, rows_left);
    if (threadIdx.x < kQueries / 2) {  // two queries' stats are 16 bytes
      ptx::cp_async<16>(stats + threadIdx.x * 2, of_rows + threadIdx.x * 2);
    }
  }
};

// snippet-begin weigh
/// Scores, of keys along the rows and of queries along the columns, become weights: P^T =
/// exp2(scale_log2 S^T - lse2). dscores become -delta, to which the next product adds dP^T: so the
/// subtraction costs nothing. If they have that product already they become dS^T = P^T (dP^T -
/// delta). `stats` are those of the first column's query.
template <bool kHasProduct = false, int kRows, int kCols>
__device__ __forceinline__ void weigh(Accumulator<kRows, kCols>& scores,
                                      Accumulator<kRows, kCols>& dscores, const RowStats* stats,
                                      float scale_log2) {
#pragma unroll
  for (int c = 0; c < kCols / 4; ++c) {
    const RowStats of_query = stats[scores.col(c)];
#pragma unroll
    for (int r = 0; r < kRows / 8; ++r) {
      float &weight = scores.at(r, c), &dscore = dscores.at(r, c);
      weight = ptx::exp2_approx(fmaf(scale_log2, weight, -of_query.lse2));
      dscore = kHasProduct ? weight * (dscore - of_query.delta) : -of_query.delta;
    }
  }
}

/// The same with queries along the rows, for dQ. `stats_of` gives the stats of a lane's row r.
template <bool kHasProduct = false, int kRows, int kCols, class StatsOf>
__device__ __forceinline__ void weigh_rows(Accumulator<kRows, kCols>& scores,
                                           Accumulator<kRows, kCols>& dscores, StatsOf stats_of,
                                           float scale_log2) {
#pragma unroll
  for (int r = 0; r < kRows / 8; ++r) {
    const RowStats of_query = stats_of(r);
#pragma unroll
    for (int c = 0; c < kCols / 4; ++c) {
      float &weight = scores.at(r, c), &dscore = dscores.at(r, c);
      weight = ptx::exp2_approx(fmaf(scale_log2, weight, -of_query.lse2));
      dscore = kHasProduct ? weight * (dscore - of_query.delta) : -of_query.delta;
    }
  }
}
// snippet-end weigh

/// sums *= by, element by element.
template <int kRows, int kCols>
__device__ __forceinline__ void multiply(Accumulator<kRows, kCols>& sums,
                                         const Accumulator<kRows, kCols>& by) {
#pragma unroll
  for (int r = 0; r < kRows / 8; ++r) {
#pragma unroll
    for (int c = 0; c < kCols / 4; ++c) sums.at(r, c) *= by.at(r, c);
  }
}

}  // namespace tile
