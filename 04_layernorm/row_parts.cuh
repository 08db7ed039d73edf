// Rows of which each block has the same part, row after row: what the warps of a block tell each
// other in shared memory, and what the blocks of a row tell each other in global memory.
#pragma once

#include "layernorm.hpp"
#include "row_order.cuh"
#include "tile/ptx/mbarrier.cuh"
#include "tile/ptx/semaphore.cuh"
#include "tile/ptx/tagged.cuh"
#include "tile/ptx/tma.cuh"
#include "tile/reduce.cuh"

namespace layernorm {

inline constexpr int kStages = kForwardParts.stages;  // rows of which a block has its part
/// Moments are found for a row that is `kAhead` rows after the one that is written. So those of
/// kRing rows are there at one time.
inline constexpr int kAhead = 3, kRing = kAhead + 1;
/// A block sends the moments of row i when it has written row i - kAhead - 1, so when all blocks
/// have sent those. By then they have written row i - 2 kAhead - 2, and need its messages no more.
inline constexpr int kMail = 2 * kAhead + 2;
inline constexpr int kWarps = kForwardParts.threads / tile::kWarp;  // of a block, that compute

/// What a block says of its part of a row.
struct Message {
  tile::ptx::TaggedPair mean;     // the part's first x, and the mean less that
  tile::ptx::TaggedPair moments;  // squares and count
};

/// The matrices and how they are shared.
template <class T>
struct SharedRows {
  tile::Rows<const T> x;  // [rows][cols]
  const T* gamma;         // [cols], or null: all ones
  const T* beta;          // [cols], or null: all zeros
  tile::Rows<T> y;        // [rows][cols]
  float* mean;            // [rows], or null
  float* rstd;            // [rows], or null
  Message* mail;          // [kMail][blocks of the grid], zeros at first
  RowOrder order;
  int cols;
  int blocks;  // that share a row
  int room;    // chunks of a row in a block's shared memory
  float per_col, eps;
  bool centred;  // RMSNorm is not: its mean is 0
};

struct alignas(16) RowMoments {
  float origin, mean, rstd;  // the mean less the origin
};

/// What the warps of a block tell each other. In shared memory.
template <class T>
struct Board {
  tile::ptx::Mbarrier full[kStages];
  T* y[kStages];                     // where the results of a part go
  int col[kStages], count[kStages];  // its first column, and its chunks
  tile::ptx::Mbarrier summed[kRing], merged[kRing];
  Moments of_warp[kRing][kWarps];
  RowMoments of_row[kRing];
};
static_assert(sizeof(Board<float>) <= kForwardParts.static_bytes);

/// By one thread, before a barrier of the block.
template <class T>
__device__ __forceinline__ void init(Board<T>& board) {
  for (auto& full : board.full) tile::ptx::mbarrier_init(&full, 1);
  for (auto& summed : board.summed) tile::ptx::mbarrier_init(&summed, kWarps);
  for (auto& merged : board.merged) tile::ptx::mbarrier_init(&merged, 1);
}

/// One thread starts to load a part of this row, number i of the block's rows.
template <class T>
__device__ __forceinline__ void load_part(const SharedRows<T>& p, int i, int row,
                                          const PartOfRow<T>& part, uint4* parts, Board<T>& board) {
  const int stage = i % kStages, col = part.col;
  const auto bytes = static_cast<unsigned>(part.count) * 16;
  board.y[stage] = p.y[row] + col, board.col[stage] = col, board.count[stage] = part.count;
  tile::ptx::mbarrier_arrive_expect(&board.full[stage], bytes);
  tile::ptx::bulk_load(tile::ptx::SharedAddress(parts + stage * p.room), p.x[row] + col, bytes,
                       &board.full[stage]);
}

/// The moments of kParts parts of each lane, by three sums: their mean, and how far the mean of
/// each part lies from it. Merged pair by pair, they would take divisions in each of five rounds.
template <int kParts>
__device__ __forceinline__ Moments merge_lanes(const Moments (&parts)[kParts]) {
  float count = 0, sum = 0, squares = 0;
#pragma unroll
  for (const Moments& part : parts) count += part.count, sum += part.count * part.mean;
  count = tile::reduce_lanes(count, tile::Add{});
  const float mean = tile::reduce_lanes(sum, tile::Add{}) / count;
#pragma unroll
  for (const Moments& part : parts) {
    const float distance = part.mean - mean;
    squares += part.squares + part.count * distance * distance;
  }
  return {count, mean, tile::reduce_lanes(squares, tile::Add{})};
}
__device__ __forceinline__ Moments merge_lanes(Moments mine) {
  const Moments parts[1] = {mine};
  return merge_lanes(parts);
}

// snippet-begin send
/// Sends what this block has found in its part of a row. One thread calls it.
__device__ __forceinline__ void send(Message* to, float first_x, Moments part, unsigned tag) {
  tile::ptx::store_tagged(&to->mean, first_x, part.mean, tag);
  tile::ptx::store_tagged(&to->moments, part.squares, part.count, tag);
}
// snippet-end send

/// The moments of a row, from the messages of its blocks. All lanes call it. The origin is the
/// first x of the first part, and the mean is less that.
__device__ __forceinline__ Moments receive(Message* from,  // [blocks]
                                           int blocks, unsigned tag, int lane, float* origin) {
  constexpr int kOfLane = kForwardParts.blocks / tile::kWarp;
  float2 mean[kOfLane], moments[kOfLane];
  while (true) {
    bool all_came = true;
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {  // all of them are on their way at one time
      const int block = lane + j * tile::kWarp;
      mean[j] = moments[j] = make_float2(0, 0);
      if (block >= blocks) continue;
      all_came &= tile::ptx::load_tagged(&from[block].mean, tag, &mean[j]);
      all_came &= tile::ptx::load_tagged(&from[block].moments, tag, &moments[j]);
    }
    if (__all_sync(tile::kAllLanes, all_came)) break;
    tile::ptx::pause_polling();
  }
  *origin = __shfl_sync(tile::kAllLanes, mean[0].x, 0);
  Moments seen[kOfLane] = {};  // what comes from no block counts nothing
#pragma unroll
  for (int j = 0; j < kOfLane; ++j) {
    if (lane + j * tile::kWarp >= blocks) break;
    seen[j] = {moments[j].y, mean[j].x - *origin + mean[j].y, moments[j].x};
  }
  return merge_lanes(seen);
}

/// The moments of a warp's chunks of a part, in one pass; the mean is less the part's first x. What
/// is subtracted before squares are added need not be the mean. The mean of a thread's first chunk
/// will do: if the thread has m others, the squares are at most m + 1 times those around the mean
/// of all, and no more than that is lost to rounding. Not centred, the mean is taken to be 0.
template <class T, int kChunks>
__device__ __forceinline__ Moments add_up(const uint4* part, int thread, bool has_last,
                                          bool centred) {
  constexpr int kWidth = 16 / sizeof(T);
  using Chunk = tile::Chunk<T, kWidth>;
  float value[kWidth], near = 0, sum = 0, squares = 0;
  Chunk{part[thread]}.to_floats(value);
#pragma unroll
  for (const float v : value) near += v - value[0];
  near = centred ? value[0] + near / kWidth : 0;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    if (k == kChunks - 1 && !has_last) break;
    Chunk{part[thread + k * kForwardParts.threads]}.to_floats(value);
    float of_chunk = 0, squares_of_chunk = 0;
#pragma unroll
    for (const float v : value) {
      of_chunk += v - near;
      squares_of_chunk += (v - near) * (v - near);
    }
    sum += of_chunk, squares += squares_of_chunk;
  }
  const auto count = static_cast<float>((has_last ? kChunks : kChunks - 1) * kWidth);
  if (!centred) return merge_lanes({count, 0, squares});
  const float off = sum / count, first_x = static_cast<float>(*reinterpret_cast<const T*>(part));
  return merge_lanes({count, near - first_x + off, fmaxf(squares - sum * off, 0)});
}

}  // namespace layernorm
