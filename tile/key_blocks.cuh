// Attention backward by wgmma, in blocks that keep keys: tiles of queries come by TMA, the scores
// of a warp are those of 16 keys with the queries of a tile along the columns, and dQ leaves by
// bulk reductions.
#pragma once

#include "tile/head_boxes.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/exp2.cuh"
#include "tile/ring.cuh"

namespace tile {

/// The stats of 16 queries, to which the columns of scores belong. In each 16 columns, lane q of a
/// quad has columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9: lse2[q] and delta[q] are those of its
/// queries.
struct ColumnStats {
  float lse2[4][4], delta[4][4];

  static constexpr int kQueries = 16;
  __device__ static int lane(int query) { return query % 8 / 2; }
  __device__ static int place(int query) { return query / 8 % 2 * 2 + query % 2; }
};

inline constexpr int kQueryStages = 4;  // two tiles of queries, and their dO

/// What the warps of a block tell each other.
template <int kQueries>
struct KeyBlockMail {
  ptx::Mbarrier keys_full, full[kQueryStages], empty[kQueryStages];
  struct {
    std::int64_t sum_row;  // of the sums of dQ of all heads
    int query;             // the first one
    bool is_border;        // the mask hides some of the queries from some of the keys
  } tiles[kQueryStages / 2];
  alignas(16) ColumnStats stats[kQueryStages / 2][kQueries / ColumnStats::kQueries];
};

// snippet-begin load
/// One thread loads tiles of queries and their dO, of each head that shares the block's keys.
template <class Boxes>
__device__ __forceinline__ void load_queries(KeyBlockMail<Boxes::kRows>& mail,
                                             ptx::SharedAddress stages, const TensorMap& q_map,
                                             const TensorMap& dout_map, const ColumnStats* stats,
                                             const BatchMasks& masks, const BlockWork& work,
                                             const Mask::Tiles& visited, int heads, int group) {
  constexpr int kStatBytes = sizeof mail.stats[0];
  const int rows = (masks.queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;  // of a head
  RingPlace<kQueryStages> place;
  for (int head = work.head * group; head < (work.head + 1) * group; ++head) {
    for (int tile = visited.first; tile < visited.last; ++tile) {
      const int query = tile * Boxes::kRows;
      const std::int64_t row = (std::int64_t{work.batch} * heads + head) * rows + query;
      ptx::mbarrier_wait(&mail.empty[place.stage], place.parity ^ 1);
      int i = place.advance();
      mail.tiles[i / 2] = {row, query, tile < visited.whole_first || tile >= visited.whole_last};
      ptx::mbarrier_arrive_expect(&mail.full[i], Boxes::kBytes + kStatBytes);
      Boxes::load(stages + i * Boxes::kBytes, q_map, query, head, work.batch, &mail.full[i]);
      ptx::bulk_load(mail.stats[i / 2], stats + row / ColumnStats::kQueries, kStatBytes,
                     &mail.full[i]);
      ptx::mbarrier_wait(&mail.empty[place.stage], place.parity ^ 1);
      i = place.advance();
      ptx::mbarrier_arrive_expect(&mail.full[i], Boxes::kBytes);
      Boxes::load(stages + i * Boxes::kBytes, dout_map, query, head, work.batch, &mail.full[i]);
    }
  }
}
// snippet-end load

// snippet-begin weigh
/// A lane's stats of kQueries queries.
template <int kQueries>
struct LaneStats {
  float4 of[kQueries / ColumnStats::kQueries];

  __device__ __forceinline__ float at(int n, int column) const {
    const float4& four = of[n / 2];
    return n % 2 == 0 ? column == 0 ? four.x : four.y : column == 0 ? four.z : four.w;
  }
};
/// Those at `member`, ColumnStats::lse2 or delta, of a tile of queries.
template <int kQueries>
__device__ __forceinline__ LaneStats<kQueries> load_stats(const ColumnStats* stats,
                                                          float (ColumnStats::*member)[4][4]) {
  LaneStats<kQueries> lane;
#pragma unroll
  for (int i = 0; i < kQueries / ColumnStats::kQueries; ++i) {
    lane.of[i] = reinterpret_cast<const float4&>((stats[i].*member)[threadIdx.x % 4]);
  }
  return lane;
}

/// Scores become weights: P^T = exp2(scale_log2 S^T - lse2).
template <int kQueries>
__device__ __forceinline__ void weigh(Accumulator<16, kQueries>& scores,
                                      const LaneStats<kQueries>& lse2, float scale_log2) {
#pragma unroll
  for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& score = scores.mma[0][n][e];
      score = ptx::exp2_approx(fmaf(scale_log2, score, -lse2.at(n, e % 2)));
    }
  }
}
/// The product dP^T = V dO^T becomes dS^T = P^T (dP^T - delta).
template <int kQueries>
__device__ __forceinline__ void to_dscores(Accumulator<16, kQueries>& product,
                                           const Accumulator<16, kQueries>& weights,
                                           const LaneStats<kQueries>& delta) {
#pragma unroll
  for (int n = 0; n < kQueries / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& dscore = product.mma[0][n][e];
      dscore = weights.mma[0][n][e] * (dscore - delta.at(n, e % 2));
    }
  }
}
// snippet-end weigh

// snippet-begin add
/// A warp adds 16 rows of dQ to the sums at `to`, through as many bytes at `staging`: any order
/// will do, and this one has no bank conflicts. One lane sends them; no lane waits until they are
/// there.
template <int kCols>
__device__ __forceinline__ void add_dq(const Accumulator<16, kCols>& dq, float* to,
                                       ptx::SharedAddress staging) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) ptx::bulk_wait_read<0>();  // the rows before have left
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kCols / 8; ++n) {
    const float(&sum)[4] = dq.mma[0][n];
    ptx::store_shared(staging + (n * kWarp + lane) * 16,
                      uint4{__float_as_uint(sum[0]), __float_as_uint(sum[1]),
                            __float_as_uint(sum[2]), __float_as_uint(sum[3])});
  }
  ptx::fence_async_proxy();  // the reduction sees what this lane has stored
  __syncwarp();              // and what the others have
  if (lane == 0) {
    ptx::bulk_reduce_add(to, staging, 16 * kCols * 4);
    ptx::bulk_commit();
  }
}
// snippet-end add

}  // namespace tile
