// Attention backward by wgmma, in blocks that keep keys: tiles of queries come by TMA, the scores
// of a warp are those of 16 keys with the queries of a tile along the columns, and dQ leaves by
// bulk reductions.
#pragma once

#include "tile/head_boxes.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/exp2.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ptx/wgmma_add.cuh"

namespace tile {

/// What is added to a query's scores, -lse / scale, and to the gradients of its weights, -delta.
struct ColumnStats {
  ptx::ColumnTerm lse, delta;
};
enum Stat { kLse, kDelta };

/// What a kernel can hide: scores of a block's first tile of queries, those of all, and rows past
/// the lengths of entries, which may be anything. Each is compiled by itself, as code that a call
/// does not need takes registers from what it needs.
enum class Hides { first, scores, rows };

/// What the warps of a block tell each other about the tiles of queries that go by. The i-th one
/// and its dO lie in stages queries(i) and douts(i) of four, its dS^T in place i % 2.
template <int kQueries>
struct KeyBlockMail {
  ptx::Mbarrier keys_full, full[4], empty[4], ds_full[2], ds_empty[2];
  alignas(16) ColumnStats stats[2][kQueries];
  Mask mask;  // transposed
  struct Tile {
    std::int64_t sum_row;  // of the sums of dQ of all heads
    int query;             // the first one
    int rows;  // from here on they are cleared: past the entry's length they may hold anything
    int part;  // of the mask, in chapter 07
    bool is_border;  // the mask hides some of the queries from some of the keys
  };
  Tile tiles[4];  // twice as many as there are stages: dQ may come a tile late

  __device__ static int queries(int i) { return i % 2 * 2; }
  __device__ static int douts(int i) { return i % 2 * 2 + 1; }
  /// Until all warps have read what was in the stage before.
  __device__ __forceinline__ void await_free(int stage, int i) {
    ptx::mbarrier_wait(&empty[stage], i / 2 % 2 ^ 1);
  }
  /// A warp has read both stages of the i-th tile: one of its lanes says so.
  __device__ __forceinline__ void release(int i) {
    ptx::mbarrier_arrive(&empty[queries(i)]);
    ptx::mbarrier_arrive(&empty[douts(i)]);
  }
  /// By one thread, before a barrier of all. Consumers have so many warps.
  __device__ void init(unsigned warps) {
    ptx::mbarrier_init(&keys_full, 1);
    for (ptx::Mbarrier& each : full) ptx::mbarrier_init(&each, 1);
    for (ptx::Mbarrier& each : empty) ptx::mbarrier_init(&each, warps);
    for (ptx::Mbarrier& each : ds_full) ptx::mbarrier_init(&each, warps);
    for (ptx::Mbarrier& each : ds_empty) ptx::mbarrier_init(&each, warps);
  }
};

/// One of two objects, whose types may differ.
template <bool kFirst, class First, class Second>
__device__ __forceinline__ auto& either(First& first, Second& second) {
  if constexpr (kFirst) return first;
  if constexpr (!kFirst) return second;
}

// snippet-begin weigh
/// S^T - lse / scale becomes weights: P^T = exp2(scale_log2 of it).
template <int kQueries>
__device__ __forceinline__ void weigh(Accumulator<16, kQueries>& scores, float scale_log2) {
#pragma unroll
  for (int c = 0; c < kQueries / 4; ++c) {
    scores.at(0, c) = ptx::exp2_approx(scale_log2 * scores.at(0, c));
    scores.at(1, c) = ptx::exp2_approx(scale_log2 * scores.at(1, c));
  }
}
/// dP^T - delta becomes the gradients of scores: dS^T = P^T of it.
template <int kQueries>
__device__ __forceinline__ void to_dscores(Accumulator<16, kQueries>& dweights,
                                           const Accumulator<16, kQueries>& weights) {
#pragma unroll
  for (int c = 0; c < kQueries / 4; ++c) {
    dweights.at(0, c) *= weights.at(0, c);
    dweights.at(1, c) *= weights.at(1, c);
  }
}
// snippet-end weigh
/// What a block works on: keys of a head, and the tiles of queries that see them, of each of the
/// heads that share the keys.
struct KeyWork {
  int batch, kv_head, first_key;
  Mask mask;  // transposed
  Mask::Tiles visited;
  int tiles;  // of all those heads
};
template <class Block>
__device__ __forceinline__ KeyWork work_of_keys(const BlockWork& at, const BatchMasks& masks,
                                                int group) {
  KeyWork work{at.batch, at.head, at.tile * Block::kKeys, masks.of(at.batch).transposed(), {}, 0};
  work.visited = work.mask.tiles(work.first_key, Block::kKeys, Block::kQueries);
  work.tiles = (work.visited.last - work.visited.first) * group;
  return work;
}

/// A block's threads, and its tiles in shared memory: {[kKeyTensors]{keys}, values, [4]{queries or
/// dO}}. There may be two tensors of keys, of which a tile of queries has either.
template <class T, int kDim, int kKeys_, int kQueries_, int kKeyTensors = 1>
struct KeyBlockTiles {
  static constexpr int kKeys = kKeys_, kQueries = kQueries_;  // of the block; of a tile
  static constexpr int kConsumers = 2, kWarps = 4 * kConsumers;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  // 65,536 registers are 168 for each of 384 threads, in steps of 8.
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * 168);
  using Mail = KeyBlockMail<kQueries>;
  using KeyBoxes = HeadBoxes<T, kKeys, kDim>;
  using QueryBoxes = HeadBoxes<T, kQueries, kDim>;
  using ScoreBoxes = HeadBoxes<T, kKeys, kQueries>;
  static constexpr int kKeyBytes = (kKeyTensors + 1) * KeyBoxes::kBytes, kStages = kKeyBytes;
  static constexpr int kTileBytes = kStages + 4 * QueryBoxes::kBytes;

  ptx::SharedAddress memory;
  int consumer, warp;  // 0 or 1; of the consumer's four

  __device__ KeyBlockTiles(void* smem, int warpgroup)
      : memory(smem), consumer(warpgroup - 1), warp(static_cast<int>(threadIdx.x) / kWarp % 4) {}
  __device__ ptx::SharedAddress keys(int tensor) const {
    return memory + tensor * KeyBoxes::kBytes;
  }
  __device__ ptx::SharedAddress values() const { return keys(kKeyTensors); }
  __device__ ptx::SharedAddress stage(int i) const {
    return memory + (kStages + i * QueryBoxes::kBytes);
  }
  __device__ ptx::SharedAddress queries(int i) const { return stage(Mail::queries(i)); }
  __device__ ptx::SharedAddress douts(int i) const { return stage(Mail::douts(i)); }

  // snippet-begin start_product
  /// K Q^T - lse / scale, or V dO^T - delta, of 64 keys and as many queries as there are columns: a
  /// group of products, as below. If not from column 0 on, the caller has started the group.
  template <Stat kStat, int kFirstCol = 0, int kCols>
  __device__ __forceinline__ static void start_product(Accumulator<16, kCols>& scores,
                                                       ptx::SharedAddress left, int key,
                                                       ptx::SharedAddress right, int query,
                                                       const ColumnStats* stats) {
    constexpr bool kStatsFirst = kDim == 64;  // 1.01 to 1.02 there, and 0.97 with 128 columns
    if (kFirstCol == 0) ptx::wgmma_fence();
    if (kStatsFirst) ptx::wgmma_add<kStat, kCols>(registers_of(scores), stats, false);
#pragma unroll
    for (int col = kFirstCol; col < kDim; col += 16) {
      ptx::wgmma<T, kCols>(registers_of(scores), KeyBoxes::along_columns(left, key, col),
                           QueryBoxes::along_columns(right, query, col), kStatsFirst || col != 0);
    }
    if (!kStatsFirst) ptx::wgmma_add<kStat, kCols>(registers_of(scores), stats, true);
    ptx::wgmma_commit();
  }
  // snippet-end start_product
  /// dQ = dS K, of the 64 queries of a box of dS^T and 64 columns of the keys.
  __device__ __forceinline__ void start_dq_box(Accumulator<16, 64>& dq, ptx::SharedAddress ds,
                                               int col_box, int tensor) const {
    const ptx::SharedAddress right = keys(tensor) + col_box * KeyBoxes::kBoxBytes;
    ptx::wgmma_fence();
#pragma unroll
    for (int key = 0; key < kKeys; key += 16) {
      ptx::wgmma<T, 64, ptx::Major::mn, ptx::Major::mn>(registers_of(dq),
                                                        ScoreBoxes::along_rows(ds, key),
                                                        KeyBoxes::along_rows(right, key), key != 0);
    }
    ptx::wgmma_commit();
  }
  /// Until the i-th tile's queries are in their stage, or its dO. Rows past the entry's length may
  /// hold anything, and 0 times that may be NaN: both consumers call it, and clear these.
  template <bool kHasLengths = true>
  __device__ __forceinline__ void await(Mail& mail, int at, int i, int barrier) const {
    ptx::mbarrier_wait(&mail.full[at], i / 2 % 2);
    const int rows = kHasLengths ? mail.tiles[i % 4].rows : kQueries;
    if (rows >= kQueries) return;
    QueryBoxes::template clear<kConsumers * kWarpgroup>(stage(at), rows);
    ptx::fence_async_proxy();                             // wgmma sees what this thread has cleared
    ptx::barrier_sync(barrier, kConsumers * kWarpgroup);  // and what all others have
  }
  /// The same with the keys and values, where there are such rows, once they are there.
  __device__ __forceinline__ void await_keys(Mail& mail, const KeyWork& work,
                                             const BatchMasks& masks, int barrier) const {
    ptx::mbarrier_wait(&mail.keys_full, 0);
    const int first = work.mask.queries - work.first_key;
    if (first >= kKeys || work.mask.queries == masks.keys) return;
#pragma unroll
    for (int of = 0; of <= kKeyTensors; ++of) {  // the last are the values
      KeyBoxes::template clear<kConsumers * kWarpgroup>(keys(of), first);
    }
    ptx::fence_async_proxy();  // as above
    ptx::barrier_sync(barrier, kConsumers * kWarpgroup);
  }
};

/// One thread loads the i-th tile of queries and its dO, with the stats that begin at `stats`. It
/// has waited until the queries' stage is free.
template <class Block>
__device__ __forceinline__ void load_tile(typename Block::Mail& mail, const Block& block, int i,
                                          int query, int head, int batch, const TensorMap& q_map,
                                          const TensorMap& dout_map, const ColumnStats* stats) {
  // snippet-begin load_tile
  using Boxes = typename Block::QueryBoxes;
  constexpr int kStatBytes = sizeof mail.stats[0];
  ptx::Mbarrier* full = &mail.full[mail.queries(i)];
  ptx::mbarrier_arrive_expect(full, Boxes::kBytes + kStatBytes);
  Boxes::load(block.queries(i), q_map, query, head, batch, full);
  ptx::bulk_load(mail.stats[i % 2], stats, kStatBytes, full);
  full = &mail.full[mail.douts(i)];
  mail.await_free(mail.douts(i), i);
  ptx::mbarrier_arrive_expect(full, Boxes::kBytes);
  Boxes::load(block.douts(i), dout_map, query, head, batch, full);
  // snippet-end load_tile
}

}  // namespace tile
