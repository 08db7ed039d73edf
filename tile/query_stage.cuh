// Attention backward, for kernels that loop over queries: a tile of queries in shared memory, and
// the softmax's weights from scores and terms.
#pragma once

#include "tile/heads.cuh"
#include "tile/ptx/exp2.cuh"
#include "tile/warp_product.cuh"

namespace tile {

// snippet-begin stage
/// A tile of queries and their dO, both [kQueries][kDim], and their terms, [kQueries].
template <class T, int kQueries, int kDim>
struct QueryStage {
  using Tile = SharedTile<T, kQueries, kDim>;
  // Of at most 64 queries. What follows begins at a multiple of a row's bytes, which are at most
  // 512.
  static constexpr int kTermBytes = 512;
  static constexpr int kBytes = 2 * Tile::kBytes + kTermBytes;
  static_assert(kQueries * sizeof(Terms) <= kTermBytes);

  Tile q, dout;
  Terms* terms;

  __device__ explicit QueryStage(unsigned char* begin)
      : q(begin),
        dout(q.after(Tile::kBytes)),
        terms(reinterpret_cast<Terms*>(begin + 2 * Tile::kBytes)) {}

  /// Copies all three with all kThreads threads of the block; the copies are under way when this
  /// returns. Rows from `rows_left` on become zeros. Terms are padded to whole tiles.
  template <int kThreads>
  __device__ void copy_async(Rows<const T> q_rows, Rows<const T> dout_rows, const Terms* of_rows,
                             int rows_left) const {
    q.template copy_async_in_steps<kThreads>(q_rows, rows_left);
    dout.template copy_async_in_steps<kThreads>(dout_rows, rows_left);
    if (threadIdx.x < kQueries / 2) {  // two queries' terms are 16 bytes
      ptx::cp_async<16>(terms + threadIdx.x * 2, of_rows + threadIdx.x * 2);
    }
  }
};
// snippet-end stage

/// Scores, of keys along the rows and of queries along the columns, become weights: P^T =
/// exp2(factor S^T - lse2). dscores become -delta, to which the next product adds dP^T: so the
/// subtraction costs nothing. `terms` are those of the first column's query.
template <int kRows, int kCols>
__device__ __forceinline__ void weigh(Sums<kRows, kCols>& scores, Sums<kRows, kCols>& dscores,
                                      const Terms* terms, float factor) {
#pragma unroll
  for (int c = 0; c < kCols / 4; ++c) {
    const Terms of_query = terms[scores.col(c)];
#pragma unroll
    for (int r = 0; r < kRows / 8; ++r) {
      scores.at(r, c) = ptx::exp2_approx(fmaf(factor, scores.at(r, c), -of_query.lse2));
      dscores.at(r, c) = -of_query.delta;
    }
  }
}

/// sums *= by, element by element.
template <int kRows, int kCols>
__device__ __forceinline__ void multiply(Sums<kRows, kCols>& sums, const Sums<kRows, kCols>& by) {
#pragma unroll
  for (int r = 0; r < kRows / 8; ++r) {
#pragma unroll
    for (int c = 0; c < kCols / 4; ++c) sums.at(r, c) *= by.at(r, c);
  }
}

}  // namespace tile
