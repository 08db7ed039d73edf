// Attention backward by wgmma, in blocks that keep keys: tiles of queries come by TMA, the scores
// of a warp are those of 16 keys with the queries of a tile along the columns, and dQ leaves by
// bulk reductions.
#pragma once

#include "tile/head_boxes.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/exp2.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace tile {

/// The stats of 16 queries, to which the columns of scores belong. In each 16 columns, lane q of a
/// quad has columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9: lse2[q] and delta[q] are those of its
/// queries.
struct ColumnStats {
  float lse2[4][4], delta[4][4];
  static constexpr int kQueries = 16;
};

/// What the warps of a block tell each other about the tiles of queries that go by. The i-th one
/// and its dO lie in stages queries(i) and douts(i) of four, its dS^T in place i % 2.
template <int kQueries>
struct KeyBlockMail {
  ptx::Mbarrier keys_full, full[4], empty[4], ds_full[2], ds_empty[2];
  alignas(16) ColumnStats stats[2][kQueries / ColumnStats::kQueries];
  struct Tile {
    std::int64_t sum_row;  // of the sums of dQ of all heads
    int query;             // the first one
    int rows;  // from here on they are cleared: past the entry's length they may hold anything
    int turn;  // where blocks add to dQ in order, so many come before
    bool is_border;  // the mask hides some of the queries from some of the keys
  };
  Tile tiles[4];  // twice as many as there are stages: dQ may come a tile late

  __device__ static int queries(int i) { return i % 2 * 2; }
  __device__ static int douts(int i) { return i % 2 * 2 + 1; }
  __device__ __forceinline__ void await(int stage, int i) {
    ptx::mbarrier_wait(&full[stage], i / 2 % 2);
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
  if constexpr (kFirst) {
    return first;
  } else {
    return second;
  }
}

// snippet-begin weigh
/// A lane's stats of kCols queries, one for each of its columns: those at `member` of ColumnStats.
template <int kCols>
__device__ __forceinline__ void load_stats(float (&lane)[kCols], const ColumnStats* stats,
                                           float (ColumnStats::*member)[4][4]) {
#pragma unroll
  for (int c = 0; c < kCols; c += 4) {
    const float* four = (stats[c / 4].*member)[threadIdx.x % 4];
    reinterpret_cast<float4&>(lane[c]) = reinterpret_cast<const float4&>(*four);
  }
}

/// Scores become weights: P^T = exp2(scale_log2 S^T - lse2).
template <int kQueries>
__device__ __forceinline__ void weigh(Accumulator<16, kQueries>& scores,
                                      const float (&lse2)[kQueries / 4], float scale_log2) {
#pragma unroll
  for (int c = 0; c < kQueries / 4; ++c) {
    scores.at(0, c) = ptx::exp2_approx(fmaf(scale_log2, scores.at(0, c), -lse2[c]));
    scores.at(1, c) = ptx::exp2_approx(fmaf(scale_log2, scores.at(1, c), -lse2[c]));
  }
}
/// Their gradients, dP^T = V dO^T, become those of scores: dS^T = P^T (dP^T - delta), with delta
/// from `stats`. From column `end` on they are 0.
template <int kQueries>
__device__ __forceinline__ void to_dscores(Accumulator<16, kQueries>& dweights,
                                           const Accumulator<16, kQueries>& weights,
                                           const ColumnStats* stats, int end) {
  float delta[kQueries / 4];
  load_stats(delta, stats, &ColumnStats::delta);
#pragma unroll
  for (int c = 0; c < kQueries / 4; ++c) {
    dweights.at(0, c) = weights.at(0, c) * (dweights.at(0, c) - delta[c]);
    dweights.at(1, c) = weights.at(1, c) * (dweights.at(1, c) - delta[c]);
  }
  if (end >= kQueries) return;
#pragma unroll
  for (int c = 0; c < kQueries / 4; ++c) {
    if (dweights.col(c) >= end) dweights.at(0, c) = dweights.at(1, c) = 0;
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

/// A block's shared memory, and what a consumer does with it. A consumer has 64 keys: P^T and dS^T
/// of its keys lie in its registers as wgmma has left them, and are left factors from there. dS^T
/// of all keys lies in shared memory, too, for dQ, which sums over the keys. There may be two
/// tensors of keys, of which a tile of queries has either.
template <class T, int kDim, int kKeyTensors = 1>
struct KeyBlock {
  static constexpr int kRows = 64, kConsumers = 2, kKeys = kConsumers * kRows;
  static constexpr int kWarps = 4 * kConsumers, kThreads = (1 + kConsumers) * kWarpgroup;
  // 65,536 registers are 168 for each of 384 threads, in steps of 8.
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * 168);
  // A thread has kDim sums of dK and dV, and kQueries of scores and their gradients: 192 of 240.
  static constexpr int kQueries = kDim == 64 ? 128 : 64;            // of a tile
  static constexpr int kDqCols = 64, kRowParts = kQueries / kRows;  // parts of dQ are 64 x 64
  static_assert(kRowParts * (kDim / kDqCols) == kConsumers);
  using Mail = KeyBlockMail<kQueries>;
  using KeyBoxes = HeadBoxes<T, kKeys, kDim>;
  using QueryBoxes = HeadBoxes<T, kQueries, kDim>;
  using ScoreBoxes = HeadBoxes<T, kKeys, kQueries>;
  static constexpr int kWarpDqBytes = 16 * kDqCols * 4;
  static constexpr int kKeyBytes = (kKeyTensors + 1) * KeyBoxes::kBytes, kStages = kKeyBytes;
  static constexpr int kScores = kStages + 4 * QueryBoxes::kBytes;
  static constexpr int kDq = kScores + 2 * ScoreBoxes::kBytes;
  static constexpr int kBytes = kDq + kWarps * kWarpDqBytes;

  // {[kKeyTensors]{keys}, values, [4]{queries or dO}, [2]{dS^T}, [kWarps]{dQ}}
  ptx::SharedAddress memory;
  int consumer, warp;  // 0 or 1; of the consumer's four

  __device__ KeyBlock(void* smem, int warpgroup)
      : memory(smem), consumer(warpgroup - 1), warp(static_cast<int>(threadIdx.x) / kWarp % 4) {}
  __device__ ptx::SharedAddress keys(int tensor) const {
    return memory + tensor * KeyBoxes::kBytes;
  }
  __device__ ptx::SharedAddress values() const { return keys(kKeyTensors); }
  __device__ ptx::SharedAddress queries(int i) const {
    return memory + (kStages + Mail::queries(i) * QueryBoxes::kBytes);
  }
  __device__ ptx::SharedAddress douts(int i) const {
    return memory + (kStages + Mail::douts(i) * QueryBoxes::kBytes);
  }
  __device__ ptx::SharedAddress ds(int i) const {
    return memory + (kScores + i % 2 * ScoreBoxes::kBytes);
  }
  __device__ ptx::SharedAddress staging() const {
    return memory + (kDq + (consumer * 4 + warp) * kWarpDqBytes);
  }
  __device__ int warp_key() const { return consumer * kRows + warp * 16; }

  /// S^T = K Q^T, or dP^T = V dO^T: a group of products, as below.
  __device__ __forceinline__ void start_scores(Accumulator<16, kQueries>& scores, int i,
                                               int tensor = 0) const {
    ptx::wgmma_fence();
    start_product_of_rows<T, KeyBoxes, QueryBoxes>(scores, keys(tensor), consumer * kRows,
                                                   queries(i));
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void start_dweights(Accumulator<16, kQueries>& dweights, int i) const {
    ptx::wgmma_fence();
    start_product_of_rows<T, KeyBoxes, QueryBoxes>(dweights, values(), consumer * kRows, douts(i));
    ptx::wgmma_commit();
  }
  /// dV += P^T dO and dK += dS^T Q.
  __device__ __forceinline__ void start_sums(Accumulator<16, kDim>& dv_sums,
                                             Accumulator<16, kDim>& dk_sums,
                                             const Fragment<16, kQueries>& weights,
                                             const Fragment<16, kQueries>& dscores, int i) const {
    ptx::wgmma_fence();
    start_product_with_columns<T, QueryBoxes>(dv_sums, weights, douts(i));
    start_product_with_columns<T, QueryBoxes>(dk_sums, dscores, queries(i));
    ptx::wgmma_commit();
  }
  /// The consumer's part of dQ = dS K: 64 of its rows, or of its columns.
  __device__ __forceinline__ void start_dq(Accumulator<16, kDqCols>& dq, int i,
                                           int tensor = 0) const {
    const int row_part = consumer % kRowParts, col_part = consumer / kRowParts;
    const ptx::SharedAddress left = ds(i) + row_part * ScoreBoxes::kBoxBytes;
    const ptx::SharedAddress right = keys(tensor) + col_part * KeyBoxes::kBoxBytes;
    ptx::wgmma_fence();
#pragma unroll
    for (int key = 0; key < kKeys; key += 16) {
      ptx::wgmma<T, kDqCols, ptx::Major::mn, ptx::Major::mn>(
          registers_of(dq), ScoreBoxes::along_rows(left, key), KeyBoxes::along_rows(right, key),
          key != 0);
    }
    ptx::wgmma_commit();
  }
  // snippet-begin stage
  /// A warp's 16 rows of that part, which are added to the sums of the tile's rows: one lane sends
  /// what all have staged. The order has no bank conflicts, and is that of the sums.
  __device__ __forceinline__ void stage_dq(const Accumulator<16, kDqCols>& dq) const {
    __syncwarp();  // one lane has waited until the rows before have left
#pragma unroll
    for (int n = 0; n < kDqCols / 8; ++n) {
      const float(&sum)[4] = dq.mma[0][n];
      ptx::store_shared(staging() + (n * kWarp + static_cast<int>(threadIdx.x) % kWarp) * 16,
                        uint4{__float_as_uint(sum[0]), __float_as_uint(sum[1]),
                              __float_as_uint(sum[2]), __float_as_uint(sum[3])});
    }
    ptx::fence_async_proxy();  // the reduction sees what this lane has stored
    __syncwarp();              // and what the others have
  }
  __device__ float* warp_sums(float* sums, std::int64_t first_row) const {
    const int row_part = consumer % kRowParts, col_part = consumer / kRowParts;
    return sums + (first_row + row_part * kRows + warp * 16) * kDim + col_part * kDqCols * 16;
  }
  __device__ __forceinline__ void send_dq(float* to) const {
    ptx::bulk_reduce_add(to, staging(), kWarpDqBytes);
    ptx::bulk_commit();
  }
  // snippet-end stage
  __device__ __forceinline__ void store_ds(const Fragment<16, kQueries>& warp_ds, int i) const {
    ScoreBoxes::store_warp(warp_ds, ds(i), warp_key());
  }
  /// Rows past the entry's lengths may hold anything, and 0 times that may be NaN. Both consumers
  /// call it, without a product under way that reads these.
  __device__ __forceinline__ void clear_queries(int i, int first, int barrier) const {
    ptx::barrier_sync(barrier, kConsumers * kWarpgroup);  // both have waited for such products
    QueryBoxes::template clear<kConsumers * kWarpgroup>(queries(i), first);
    QueryBoxes::template clear<kConsumers * kWarpgroup>(douts(i), first);
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

/// One thread loads the i-th tile of queries and its dO, with the stats that begin at `stats`, and
/// writes to the mail what about() says of it.
template <class Block, class About>
__device__ __forceinline__ void load_tile(typename Block::Mail& mail, const Block& block, int i,
                                          int query, int head, int batch, const TensorMap& q_map,
                                          const TensorMap& dout_map, const ColumnStats* stats,
                                          About about) {
  // snippet-begin load_tile
  using Boxes = typename Block::QueryBoxes;
  constexpr int kStatBytes = sizeof mail.stats[0];
  const int free = i / 2 % 2 ^ 1;  // the parity when a stage is
  ptx::Mbarrier* full = &mail.full[mail.queries(i)];
  ptx::mbarrier_wait(&mail.empty[mail.queries(i)], free);
  mail.tiles[i % 4] = about();
  ptx::mbarrier_arrive_expect(full, Boxes::kBytes + kStatBytes);
  Boxes::load(block.queries(i), q_map, query, head, batch, full);
  ptx::bulk_load(mail.stats[i % 2], stats, kStatBytes, full);
  full = &mail.full[mail.douts(i)];
  ptx::mbarrier_wait(&mail.empty[mail.douts(i)], free);
  ptx::mbarrier_arrive_expect(full, Boxes::kBytes);
  Boxes::load(block.douts(i), dout_map, query, head, batch, full);
  // snippet-end load_tile
}

/// One thread loads the keys and values, and the tiles of queries with their dO.
template <class Block>
__device__ __forceinline__ void load_tiles(typename Block::Mail& mail, const Block& block,
                                           const TensorMap& q_map, const TensorMap& k_map,
                                           const TensorMap& v_map, const TensorMap& dout_map,
                                           const ColumnStats* stats, const BatchMasks& masks,
                                           const KeyWork& work, int heads, int group) {
  using KeyBoxes = typename Block::KeyBoxes;
  if (work.tiles == 0) return;
  ptx::mbarrier_arrive_expect(&mail.keys_full, Block::kKeyBytes);
  KeyBoxes::load(block.keys(0), k_map, work.first_key, work.kv_head, work.batch, &mail.keys_full);
  KeyBoxes::load(block.values(), v_map, work.first_key, work.kv_head, work.batch, &mail.keys_full);
  const int rows = (masks.queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;  // of a head
  // TMA clears what is past the tensor's end itself.
  const int length = work.mask.keys < masks.queries ? work.mask.keys : rows;
  const int visited = work.visited.last - work.visited.first;
  // snippet-begin load
  for (int i = 0; i < work.tiles; ++i) {
    const int head = work.kv_head * group + i / visited, tile = work.visited.first + i % visited;
    const int query = tile * Block::kQueries;
    const std::int64_t row = (std::int64_t{work.batch} * heads + head) * rows + query;
    load_tile(mail, block, i, query, head, work.batch, q_map, dout_map,
              stats + row / ColumnStats::kQueries, [&]() -> typename Block::Mail::Tile {
                return {row, query, min(Block::kQueries, length - query),
                        work.mask.transposed().tiles(query, Block::kQueries, Block::kKeys).last -
                            1 - work.first_key / Block::kKeys,
                        tile < work.visited.whole_first || tile >= work.visited.whole_last};
              });
  }
  // snippet-end load
}

}  // namespace tile
