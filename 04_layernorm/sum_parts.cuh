// Rows of which blocks exchange sums (backward step 6): what the warps of a block tell each other
// in shared memory and the blocks of a row in global memory, and the warp that has the rows' ends.
#pragma once

#include "column_sums.hpp"
#include "row_order.cuh"
#include "tile/ptx/mbarrier.cuh"
#include "tile/ptx/semaphore.cuh"
#include "tile/ptx/tagged.cuh"
#include "tile/ptx/tma.cuh"
#include "tile/reduce.cuh"

namespace layernorm::exchanged {

using tile::ptx::bulk_load, tile::ptx::mbarrier_arrive, tile::ptx::mbarrier_wait;
using tile::ptx::SharedAddress;

inline constexpr int kThreads = kBackwardParts.threads, kWarps = kThreads / tile::kWarp;
inline constexpr int kStages = kBackwardParts.stages;  // rows of which a block has its part
/// The sums are found for a row that is `kAhead` rows after the one that is written.
inline constexpr int kAhead = 2, kRing = kAhead + 1;
/// Warps for the exchange, each for every third row.
inline constexpr int kCouriers = 3;
// When all warps have added up row i, they have written the row kAhead + 1 before it. In its stage
// row i + kCouriers finds its place.
static_assert(kStages == kAhead + 1 + kCouriers);
/// A block sends the sums of row i when it has written row i - kAhead - 1, so when all blocks have
/// sent those. By then they have written row i - 2 kAhead - 2, and need its messages no more.
inline constexpr int kMail = 2 * kAhead + 2;

/// The matrices and how they are shared.
template <class T>
struct SharedRows {
  tile::Rows<const T> x, dy;  // [rows][cols]
  const T* gamma;             // [cols], or null: all ones
  const float* mean;          // [rows], or null: zeros
  const float* rstd;          // [rows]
  tile::Rows<T> dx;           // [rows][cols]
  ColumnSums sums;
  tile::ptx::TaggedPair* mail;  // [kMail][blocks of the grid], zeros at first
  RowOrder order;
  int cols;
  int blocks;     // that share a row
  int room;       // chunks of a row in a block's shared memory
  float per_col;  // 1 / cols

  __device__ __forceinline__ PartOfRow<T> part(int row, int block) const {
    return {x[row], cols, block, blocks};
  }
};

struct alignas(8) RowMean {
  float mean, rstd;
};
/// What dx takes from the sums over a row: dx = rstd w + of_row + of_xhat xhat.
struct alignas(8) RowTerms {
  float of_row, of_xhat;
};

/// What the warps of a block tell each other. In shared memory.
struct Board {
  tile::ptx::Mbarrier full[kStages];
  RowMean of_stage[kStages];
  tile::ptx::Mbarrier summed[kRing], merged[kRing];
  RowSums of_warp[kRing][kWarps + 1];
  RowTerms of_row[kRing];
};
static_assert(sizeof(Board) <= kBackwardParts.static_bytes);

/// The rows of a group of blocks, which share each of them.
struct Group {
  int begin, count;         // indices in the order of rows
  std::int64_t first_sums;  // the group's first partial sums

  __host__ __device__ static __forceinline__ int first(int rows, int number, int groups) {
    return static_cast<int>(std::int64_t{rows} * number / groups);
  }
  /// How many partial sums come before those of this group: one for each group and each kind of
  /// rows, but only one where both begin with the same row.
  __host__ __device__ static __forceinline__ int sums_before(const RowOrder& order, int number,
                                                             int groups) {
    const int begin = first(order.rows, number, groups);
    int sums = number;
    for (int kind = 1; kind < order.period; ++kind) {
      const int first_row = order.first_index(kind);
      const auto next =
          static_cast<int>((std::int64_t{first_row} * groups + order.rows - 1) / order.rows);
      if (first_row < begin && first(order.rows, next, groups) != first_row) ++sums;
    }
    return sums;
  }
  __device__ __forceinline__ Group(const RowOrder& order, int number, int groups)
      : begin(first(order.rows, number, groups)),
        count(first(order.rows, number + 1, groups) - begin),
        first_sums(sums_before(order, number, groups)) {}
};

/// One thread starts to load a part of this row, index i of the group's.
template <class T>
__device__ __forceinline__ void load_part(const SharedRows<T>& p, int i, int row,
                                          const PartOfRow<T>& part, RowMean of_row, uint4* parts,
                                          Board& board) {
  const int stage = i % kStages;
  const auto bytes = static_cast<unsigned>(part.count) * 16;
  uint4* to = parts + stage * 2 * p.room;
  board.of_stage[stage] = of_row;
  tile::ptx::mbarrier_arrive_expect(&board.full[stage], 2 * bytes);
  bulk_load(SharedAddress(to), p.x[row] + part.col, bytes, &board.full[stage]);
  bulk_load(SharedAddress(to + p.room), p.dy[row] + part.col, bytes, &board.full[stage]);
}

/// The sums of what all lanes have found.
__device__ __forceinline__ RowSums add_lanes(RowSums mine) {
  return {tile::reduce_lanes(mine.w, tile::Add{}), tile::reduce_lanes(mine.w_xhat, tile::Add{})};
}

/// The sums over a row, from the messages of its blocks, in the same order each time. All lanes
/// call it.
__device__ __forceinline__ RowSums receive(tile::ptx::TaggedPair* from,  // [blocks]
                                           int blocks, unsigned tag, int lane) {
  constexpr int kOfLane = kBackwardParts.blocks / tile::kWarp;
  RowSums sums;
  while (true) {
    bool all_came = true;
    sums = {0, 0};
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {  // all of them are on their way at one time
      float2 values = make_float2(0, 0);
      if (const int block = lane + j * tile::kWarp; block < blocks) {
        all_came &= tile::ptx::load_tagged(&from[block], tag, &values);
      }
      sums.w += values.x, sums.w_xhat += values.y;
    }
    if (__all_sync(tile::kAllLanes, all_came)) break;
    tile::ptx::pause_polling();
  }
  return add_lanes(sums);
}

/// A warp that has the elements before and after a row's chunks, a lane each.
template <class T>
__device__ __forceinline__ void compute_ends(const SharedRows<T>& p, Group group, int block,
                                             Board& board) {
  struct Element {
    float distance, dy, rstd;  // distance: x - mean
  };
  const int lane = static_cast<int>(threadIdx.x) % tile::kWarp;
  std::int64_t sums = group.first_sums;
  for (int done = 0; done < group.count;) {
    const auto run = p.order.run(group.begin + done);
    const int end = done + min(run.left, group.count - done);
    const PartOfRow<T> part = p.part(run.row, block);
    int col = p.cols;
    if (block == 0 && lane < part.head) col = lane;
    if (block == p.blocks - 1 && lane >= 8 && lane < 8 + part.tail)
      col = p.cols - part.tail + lane - 8;
    const bool has = col < p.cols;
    const float weight = has && p.gamma ? static_cast<float>(p.gamma[col]) : 1;
    float dgamma = 0, dbeta = 0;
    const auto load = [&](int i) {
      const int row = run.row + (i - done) * p.order.period;
      const float mean = p.mean ? p.mean[row] : 0, rstd = p.rstd[row];
      const float x = has ? static_cast<float>(p.x[row][col]) : mean;
      const float dy = has ? static_cast<float>(p.dy[row][col]) : 0;
      return Element{x - mean, dy, rstd};
    };
    Element ahead = load(done), held[kAhead + 1] = {};  // those of rows i to i + kAhead
    for (int i = done - kAhead; i < end; ++i) {
#pragma unroll
      for (int k = 0; k < kAhead; ++k) held[k] = held[k + 1];
      if (const int next = i + kAhead; next < end) {
        const Element now = held[kAhead] = ahead;
        if (next + 1 < end) ahead = load(next + 1);
        const float w = weight * now.dy, xhat = now.distance * now.rstd;
        dgamma += now.dy * xhat, dbeta += now.dy;
        const RowSums of_row = add_lanes({w, w * xhat});
        __syncwarp();  // all lanes have read the terms of the row that was written last
        if (lane == 0) {
          board.of_warp[next % kRing][kWarps] = of_row;
          mbarrier_arrive(&board.summed[next % kRing]);
        }
      }
      if (i < done) continue;
      const Element now = held[0];
      mbarrier_wait(&board.merged[i % kRing], i / kRing & 1);
      const RowTerms terms = board.of_row[i % kRing];
      if (!has) continue;
      const float value =
          now.rstd * (weight * now.dy) + (terms.of_xhat * (now.distance * now.rstd) + terms.of_row);
      p.dx[run.row + (i - done) * p.order.period][col] = static_cast<T>(value);
    }
    const std::int64_t to = sums++ * p.sums.ld + part.lead() + col;
    if (has) p.sums.dgamma[to] = dgamma, p.sums.dbeta[to] = dbeta;
    done = end;
  }
}

}  // namespace layernorm::exchanged
