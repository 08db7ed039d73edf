// Forward, step 6: two visits by persistent blocks.
// Idea: chapter 05's last step, with both parts in its one loop. Warpgroups take turns at the
// tensor
//       cores, also where far keys end and near ones begin; a block takes tiles of queries from a
//       queue; Q1 and Q2 of the next tile come while this one is computed, and the output leaves
//       by TMA.
// Change: chapter 05's step 11 (`persistent`). The next tile of keys may be the first one of the
//         next part; the keys past an entry's end may come before the last tile, so values are
//         cleared before a turn. Tiles of 96 keys with 128 columns, for the second Q.
// Limit: as in that step, and mixed tiles: two to three of each row of tiles are visited twice.
#include <string>
#include <tuple>

#include "tile/head_boxes.cuh"
#include "tile/host/stream_memory.hpp"
#include "tile/lazy_softmax.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/query_queue.cuh"
#include "windowed/windowed_rope.cuh"

namespace windowed_rope {
namespace {

using tile::Fragment, tile::LazySoftmax, tile::Accumulator, tile::Mailbox, tile::QueryTiles;

constexpr int kRows = 64;  // of a consumer: those of one wgmma
constexpr int kNoTile = -1;
constexpr int kAllConsumers = 1, kFirstTurn = 2;  // barriers

template <int kDim>
struct TilePlan {
  // A thread holds a score and half a weight for each two keys, and kDim / 2 sums of the output: of
  // its registers 128 of 160, or 136 of 232.
  static constexpr int kKeys = kDim == 128 ? 96 : 128;  // of a tile
  static constexpr int kConsumers = kDim == 64 ? 3 : 2;
  static constexpr bool kTakesTurns = kDim == 64;
  static constexpr int kQueries = kConsumers * kRows;
  static constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
  // 65,536 registers are 128 for each of 512 threads, or 168 of 384, in steps of 8.
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 40;
  static constexpr int kConsumerRegisters = kDim == 64 ? 160 : 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (1 + kConsumers) * (65536 / kThreads / 8 * 8));
  // 224 KiB: two tiles of both queries, and the ring. With 128 keys and 128 columns the ring would
  // have three stages, and a visit needs two of them.
  static constexpr int kQueryStages = 2;
  static constexpr int kStages = kDim == 64 ? 8 : 4;
  static constexpr int kBytes = (kQueryStages * 2 * kQueries + kStages * kKeys) * kDim * 2;
};

/// One thread loads: both queries of a tile, then far keys and near ones, and the values of both.
template <class Plan, class QueryBoxes, class KeyBoxes>
__device__ __forceinline__ void load_tiles(
    Mailbox<Plan>& mail, tile::ptx::SharedAddress queries, tile::ptx::SharedAddress stages,
    const tile::TensorMap& q1_map, const tile::TensorMap& k1_map, const tile::TensorMap& q2_map,
    const tile::TensorMap& k2_map, const tile::TensorMap& v_map, const QueryTiles& tiles,
    const BatchMasks& masks, const Window& window, int group, unsigned* taken) {
  using namespace tile::ptx;
  tile::RingPlace<Plan::kStages> place;
  tile::RingPlace<Plan::kQueryStages> tile_place;
  for (unsigned at = atomicAdd(taken, 1u);; tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_empty[i], tile_place.parity ^ 1);
    mail.work_at[i] = at;
    if (at >= tiles.all) return mbarrier_arrive(&mail.queries_full[i]);  // tells all to end
    const BlockWork work = tiles.work(at);
    const int first_query = work.tile * Plan::kQueries;
    const SharedAddress q2 = queries + i * 2 * QueryBoxes::kBytes, q1 = q2 + QueryBoxes::kBytes;
    mbarrier_arrive_expect(&mail.queries_full[i], 2 * QueryBoxes::kBytes);
    QueryBoxes::load(q2, q2_map, first_query, work.head, work.batch, &mail.queries_full[i]);
    QueryBoxes::load(q1, q1_map, first_query, work.head, work.batch, &mail.queries_full[i]);
    const Mask entry = masks.of(work.batch);
    const int kv_head = work.head / group;
    const auto copy = [&](const tile::TensorMap& map, int tile) {
      const int stage = place.stage;
      mbarrier_wait(&mail.empty[stage], place.parity ^ 1);
      mbarrier_arrive_expect(&mail.full[stage], KeyBoxes::kBytes);
      KeyBoxes::load(stages + stage * KeyBoxes::kBytes, map, tile * Plan::kKeys, kv_head,
                     work.batch, &mail.full[stage]);
      place.advance();
    };
    int before = kNoTile;  // tile of the last keys; its values come after the next keys
#pragma unroll
    for (int part = 0; part < Window::kParts; ++part) {
      const Mask mask = window.part(entry, part);
      const Mask::Tiles visited = mask.tiles(first_query, Plan::kQueries, Plan::kKeys);
#pragma unroll 1
      for (int tile = visited.first; tile < visited.last; before = tile++) {
        copy(Window::is_near(part) ? k1_map : k2_map, tile);
        if (before != kNoTile) copy(v_map, before);
      }
    }
    if (before != kNoTile) copy(v_map, before);
    at = atomicAdd(taken, 1u);
  }
}

// snippet-begin kernel
template <class T, int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1) windowed_persistent(
    const __grid_constant__ tile::TensorMap q1_map,  // [batch][heads][queries][kDim]
    const __grid_constant__ tile::TensorMap k1_map,  // … [heads / group][keys] …
    const __grid_constant__ tile::TensorMap q2_map,  // as q1
    const __grid_constant__ tile::TensorMap k2_map,  // as k1
    const __grid_constant__ tile::TensorMap v_map,   // as k1
    const __grid_constant__ tile::TensorMap o_map,   // as q1
    float* lse,                                      // [batch][heads][queries], or null
    unsigned* taken,                                 // 0 at first: tiles that blocks have taken
    QueryTiles tiles, BatchMasks masks, Window window, int group, float scale_log2) {
  using namespace tile::ptx;
  using Plan = TilePlan<kDim>;
  constexpr int kConsumers = Plan::kConsumers, kKeys = Plan::kKeys;
  using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
  using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
  // {[kQueryStages]{q2, then output; q1}, [kStages]{keys or values}}
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ Mailbox<Plan> mail;
  constexpr int kQueryStage = 2 * QueryBoxes::kBytes;
  const SharedAddress queries(smem), stages = queries + Plan::kQueryStages * kQueryStage;
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) mail.init();
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x == 0) {
      load_tiles<Plan, QueryBoxes, KeyBoxes>(mail, queries, stages, q1_map, k1_map, q2_map, k2_map,
                                             v_map, tiles, masks, window, group, taken);
    } else if (threadIdx.x == tile::kWarp) {
      tile::store_tiles<Plan, QueryBoxes>(mail, queries, kQueryStage, o_map, tiles);
    }
    return;
  }
  setmaxnreg_inc<Plan::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * kRows;  // in the tile of queries
  const auto stage = [&](int i) { return stages + i * KeyBoxes::kBytes; };
  tile::RingReader<Plan::kStages> ring(mail.full, mail.empty, threadIdx.x % tile::kWarpgroup == 0);
  const tile::Turns<kConsumers, kFirstTurn, Plan::kTakesTurns> turn(warpgroup);
  for (tile::RingPlace<Plan::kQueryStages> tile_place;; tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_full[i], tile_place.parity);
    // Shuffled, so that ptxas knows that the warp stays together, as wgmma must have it.
    const unsigned at = __shfl_sync(tile::kAllLanes, mail.work_at[i], 0);
    if (at >= tiles.all) break;
    const BlockWork work = tiles.work(at);
    const int block_query = work.tile * Plan::kQueries, entry_keys = masks.of(work.batch).keys;
    const int warp_row = first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
    const SharedAddress q2_smem = queries + i * kQueryStage;
    LazySoftmax<16> softmax(scale_log2);
    Accumulator<16, kDim> out;
    Accumulator<16, kKeys> scores;
    Fragment<16, kKeys> weights;
    const auto has_end = [&](int of_tile) {  // rows that this entry does not have
      return entry_keys < masks.keys && entry_keys - of_tile * kKeys < kKeys;
    };
    // snippet-begin parts
    int part = -1, tile = 0;
    bool is_early = false;  // ends before the block's last tile, which has near keys
    Mask mask{};
    Mask::Tiles visited{}, seen{};  // of the part: by the block, and by this consumer
    const auto next_tile = [&] {    // of the part, or the first one of the next part that has any
      for (++tile; tile >= visited.last && part + 1 < Window::kParts; tile = visited.first) {
        mask = window.part(masks.of(work.batch), ++part);
        visited = mask.tiles(block_query, Plan::kQueries, kKeys);
        seen = mask.tiles(block_query + first_row, kRows, kKeys);
        is_early = Window::is_near(part) && seen.last < visited.last &&
                   visited.first + 1 < visited.last && !has_end(visited.last - 1);
        visited.last -= is_early;
      }
      return tile < visited.last;
    };
    // snippet-end parts
    const auto start_scores = [&](int keys) {  // S = Q K^T
      wgmma_fence();
      tile::start_product_of_rows<T, QueryBoxes, KeyBoxes>(
          scores, q2_smem + Window::is_near(part) * QueryBoxes::kBytes, first_row, stage(keys));
      wgmma_commit();
    };
    const auto hide_some = [&] {
      if (tile >= seen.whole_first && tile < seen.whole_last) return;
      hide(scores, mask, block_query + warp_row, tile * kKeys);
    };
    const auto weigh_all = [&] {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) softmax.weigh(scores, n);
    };
    const auto clear_past_end = [&](int values, int of_tile) {
      const int rows = entry_keys - of_tile * kKeys;
      if (!has_end(of_tile)) return;
      KeyBoxes::template clear<kConsumers * tile::kWarpgroup>(stage(values), rows);
      fence_async_proxy();  // wgmma sees what this thread has cleared, and what all others have
      barrier_sync(kAllConsumers, kConsumers * tile::kWarpgroup);
    };
    if (next_tile()) {
      const int first_keys = ring.next();
      start_scores(first_keys);
      wgmma_wait<0>(registers_of(scores));
      ring.release(first_keys);
      hide_some();
      softmax.look_at(scores, out);
      weigh_all();
      weights = tile::as_fragment<T>(scores);
      int before = tile;
      while (next_tile()) {
        const int keys = ring.next(), values = ring.next();
        clear_past_end(values, before);
        turn.take();
        start_scores(keys);
        tile::start_product_with_columns<T, KeyBoxes>(out, weights, stage(values));  // O += P V
        wgmma_commit();
        turn.pass();
        wgmma_wait<1>(registers_of(scores));  // the output is still under way
        ring.release(keys);
        hide_some();
        tile::Corrections<16> later;
        const bool is_raised = softmax.look_at(scores, later);
        weigh_all();
        wgmma_wait<0>(registers_of(out));
        ring.release(values);
        for (int r = 0; is_raised && r < 2; ++r) out.scale_row(r, later.of[r]);
        weights = tile::as_fragment<T>(scores);
        before = tile;
      }
      if (is_early) turn.take(), turn.pass(), ring.drop();  // the others' last keys
      const int values = ring.next();
      clear_past_end(values, before);
      wgmma_fence();
      tile::start_product_with_columns<T, KeyBoxes>(out, weights, stage(values));
      wgmma_commit();
      wgmma_wait<0>(registers_of(out));
      ring.release(values);
      if (is_early) ring.drop();  // and their last values
    }
    float row_lse[2];
    softmax.finish(out, row_lse);
    QueryBoxes::store_warp(out, q2_smem, warp_row);
    fence_async_proxy();  // TMA sees what this lane has stored
    __syncwarp();         // and what the others have
    if (threadIdx.x % tile::kWarp == 0) mbarrier_arrive(&mail.outputs_full[i]);
    tile::store_lse(row_lse, lse_of_head(lse, work, tiles.heads, masks.queries),
                    block_query + warp_row, masks.queries);
  }
  turn.end();
}
// snippet-end kernel

}  // namespace

tile::Status takes_persistent(const AttentionForward& p, const tile::Device&) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  if (p.keys == 0) return tile::unsupported("keys", "there are none");
  TILE_TRY(check_chunks(p));
  using Boxes = tile::HeadBoxes<__half, 64, 64>;  // strides are asked for, whatever the extents
  for (const auto& [name, x, heads, rows] : {std::tuple{"q", &p.q, p.heads, p.queries},
                                             {"k", &p.k, p.kv_heads, p.keys},
                                             {"q_far", &p.q_far, p.heads, p.queries},
                                             {"k_far", &p.k_far, p.kv_heads, p.keys},
                                             {"v", &p.v, p.kv_heads, p.keys},
                                             {"o", &p.o, p.heads, p.queries}}) {
    TILE_TRY(tile::check_tensor_map(
        name, Boxes::boxed(p.type, x->data, p.batch, heads, rows, x->stride)));
  }
  return {};
}

tile::Status persistent(const AttentionForward& p, void* stream) {
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    using Plan = TilePlan<kDim>;
    using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
    using KeyBoxes = tile::HeadBoxes<T, Plan::kKeys, kDim>;
    tile::TensorMap q1, k1, q2, k2, v, o;
    TILE_TRY(QueryBoxes::make_map("q", p.type, p.q, p.batch, p.heads, p.queries, &q1));
    TILE_TRY(KeyBoxes::make_map("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k1));
    TILE_TRY(QueryBoxes::make_map("q_far", p.type, p.q_far, p.batch, p.heads, p.queries, &q2));
    TILE_TRY(KeyBoxes::make_map("k_far", p.type, p.k_far, p.batch, p.kv_heads, p.keys, &k2));
    TILE_TRY(KeyBoxes::make_map("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v));
    TILE_TRY(QueryBoxes::make_map("o", p.type, p.o, p.batch, p.heads, p.queries, &o));
    QueryTiles tiles{};
    unsigned blocks = 0;
    TILE_TRY(tile::queue_of(p, Plan::kQueries, &tiles, &blocks));
    tile::StreamMemory taken;
    TILE_TRY(taken.allocate(sizeof(unsigned), stream));
    return tile::launch(windowed_persistent<T, kDim>, "windowed_persistent", blocks, Plan::kThreads,
                        Plan::kBytes, stream, q1, k1, q2, k2, v, o, p.lse,
                        static_cast<unsigned*>(taken.data()), tiles, masks_of(p), window_of(p),
                        group_of(p), p.scale * kLog2E);
  });
}

}  // namespace windowed_rope
