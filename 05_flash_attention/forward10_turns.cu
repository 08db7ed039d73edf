// Forward, step 10: each warpgroup at its own time.
// Idea: if all consumers are at the same place, the tensor cores wait while they compute
//       exponentials. At 64 columns they take turns: one starts its two products, and then the next
//       one, so that the exponentials of one lie under the products of the others.
// Change: a consumer ends at the last tile that its own 64 queries see, not at the block's. The
//         first tile has no output to multiply and stands before the loop; the mask is asked for in
//         the loop, which therefore stands once.
// Limit: a block has one tile of queries, and waits at its beginning and its end.
#include "launch.hpp"
#include "tile/head_boxes.cuh"
#include "tile/host/head_boxes.hpp"
#include "tile/lazy_softmax.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace flash_attention {
namespace {

using tile::Fragment, tile::LazySoftmax, tile::Accumulator;

constexpr int kRows = 64;   // of a consumer: those of one wgmma
constexpr int kKeys = 128;  // of a tile
constexpr int kNoTile = -1;
constexpr int kAllConsumers = 1, kFirstTurn = 2;  // barriers

template <int kDim>
struct TilePlan {
  // A thread holds 64 scores, 128 / 4 registers of weights and kDim / 2 sums of the output: of its
  // registers 128 of 160, or 160 of 232.
  static constexpr int kConsumers = kDim == 64 ? 3 : 2;
  // With 128 columns the products take twice as long as the exponentials, and turns cost 1 %.
  static constexpr bool kTakesTurns = kDim == 64;
  static constexpr int kQueries = kConsumers * kRows;
  static constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
  // 65,536 registers are 128 for each of 512 threads, or 168 of 384, in steps of 8.
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 40;
  static constexpr int kConsumerRegisters = kDim == 64 ? 160 : 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (1 + kConsumers) * (65536 / kThreads / 8 * 8));
  static constexpr int kStages = kDim == 64 ? 8 : 4;  // 128 KiB
  static constexpr int kBytes = (kQueries + kStages * kKeys) * kDim * 2;
};

template <class T, int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1)
    attention_turns(const __grid_constant__ tile::TensorMap q_map,  // [batch][heads][queries][kDim]
                    const __grid_constant__ tile::TensorMap k_map,  // … [heads / group][keys] …
                    const __grid_constant__ tile::TensorMap v_map,  // as k
                    Heads<T> o,                                     // [batch][queries][heads][kDim]
                    float* lse,  // [batch][heads][queries], or null
                    BatchMasks masks, int batch, int heads, int group, float scale_log2) {
  using namespace tile::ptx;
  using Plan = TilePlan<kDim>;
  constexpr int kConsumers = Plan::kConsumers, kQueries = Plan::kQueries, kStages = Plan::kStages;
  using QueryBoxes = tile::HeadBoxes<T, kQueries, kDim>;
  using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, [kStages]{keys or values}}
  __shared__ Mbarrier queries_full, full[kStages], empty[kStages];
  const SharedAddress q_smem(smem);
  const auto stage = [&](int i) { return q_smem + (QueryBoxes::kBytes + i * KeyBoxes::kBytes); };
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    mbarrier_init(&queries_full, 1);
    tile::init_ring(full, empty, kConsumers);  // a thread of each
  }
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  const auto work = work_longest_first(batch, heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries;
  const Mask::Tiles visited = mask.tiles(block_query, kQueries, kKeys);
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x != 0 || visited.first == visited.last) return;
    const auto copy = [&](const tile::TensorMap& map, int tile) {
      mbarrier_wait(&empty[place.stage], place.parity ^ 1);
      mbarrier_arrive_expect(&full[place.stage], KeyBoxes::kBytes);
      KeyBoxes::load(stage(place.stage), map, tile * kKeys, work.head / group, work.batch,
                     &full[place.stage]);
      place.advance();
    };
    mbarrier_arrive_expect(&queries_full, QueryBoxes::kBytes);
    QueryBoxes::load(q_smem, q_map, block_query, work.head, work.batch, &queries_full);
    int before = kNoTile;  // tile of the last keys; its values are loaded after the next keys
    for (int tile = visited.first; tile < visited.last; before = tile++) {
      copy(k_map, tile);
      if (before != kNoTile) copy(v_map, before);
    }
    copy(v_map, before);
    return;
  }

  setmaxnreg_inc<Plan::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * kRows;  // in the tile of queries
  const int warp_query = block_query + first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  LazySoftmax<16> softmax(scale_log2);
  Accumulator<16, kDim> out;
  Accumulator<16, kKeys> scores;
  Fragment<16, kKeys> weights;
  tile::RingReader<kStages> ring(full, empty, threadIdx.x % tile::kWarpgroup == 0);
  const tile::Turns<kConsumers, kFirstTurn, Plan::kTakesTurns> turn(warpgroup);
  const Mask::Tiles seen = mask.tiles(block_query + first_row, kRows, kKeys);  // by this consumer
  const auto hide_some = [&](int tile) {
    if (tile >= seen.whole_first && tile < seen.whole_last) return;
    hide(scores, mask, warp_query, tile * kKeys);
  };
  const auto weigh_all = [&] {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) softmax.weigh(scores, n);
  };
  if (visited.first < visited.last) {
    mbarrier_wait(&queries_full, 0);
    const int first_keys = ring.next();
    wgmma_fence();
    tile::start_product_of_rows<T, QueryBoxes, KeyBoxes>(scores, q_smem, first_row,
                                                         stage(first_keys));
    wgmma_commit();
    wgmma_wait<0>(registers_of(scores));
    ring.release(first_keys);
    hide_some(visited.first);
    softmax.look_at(scores, out);
    weigh_all();
    weights = tile::as_fragment<T>(scores);

    // The last tile is left out if these queries do not see it. Rows past this entry's length may
    // hold anything, and 0 times that may be NaN: all consumers clear them together.
    const int rows = mask.keys - (visited.last - 1) * kKeys;  // of the last tile
    const bool clears = rows < kKeys && mask.keys < masks.keys;
    const bool is_early = !clears && seen.last < visited.last && visited.first + 1 < visited.last;
    const int end = is_early ? visited.last - 1 : visited.last;
    // snippet-begin visit
    for (int tile = visited.first + 1; tile < end; ++tile) {
      const int keys = ring.next();
      turn.take();
      wgmma_fence();  // S = Q K^T
      tile::start_product_of_rows<T, QueryBoxes, KeyBoxes>(scores, q_smem, first_row, stage(keys));
      wgmma_commit();
      const int values = ring.next();  // O += P V, of the tile before
      tile::start_product_with_columns<T, KeyBoxes>(out, weights, stage(values));
      wgmma_commit();
      turn.pass();
      wgmma_wait<1>(registers_of(scores));  // the output is still under way
      ring.release(keys);
      hide_some(tile);
      tile::Corrections<16> later;
      const bool is_raised = softmax.look_at(scores, later);
      weigh_all();
      wgmma_wait<0>(registers_of(out));
      ring.release(values);
      for (int r = 0; is_raised && r < 2; ++r) out.scale_row(r, later.of[r]);
      weights = tile::as_fragment<T>(scores);
    }
    // snippet-end visit
    if (is_early) turn.take(), turn.pass(), ring.drop();  // the others' last keys
    const int values = ring.next();
    if (clears) {
      KeyBoxes::template clear<kConsumers * tile::kWarpgroup>(stage(values), rows);
      fence_async_proxy();  // wgmma sees what this thread has cleared, and what all others have
      barrier_sync(kAllConsumers, kConsumers * tile::kWarpgroup);
    }
    wgmma_fence();
    tile::start_product_with_columns<T, KeyBoxes>(out, weights, stage(values));
    wgmma_commit();
    wgmma_wait<0>(registers_of(out));
  }
  turn.end();
  float row_lse[2];
  softmax.finish(out, row_lse);
  store(out, o.rows(work.batch, work.head), warp_query, masks.queries);
  tile::store_lse(row_lse, lse_of_head(lse, work, heads, masks.queries), warp_query, masks.queries);
}

}  // namespace

tile::Status turns(const AttentionForward& p, void* stream) {
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value == 128 ? 128 : 64;
        using Plan = TilePlan<kDim>;
        using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
        using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
        tile::TensorMap q_map, k_map, v_map;
        TILE_TRY(make_map<QueryBoxes>("q", p.type, p.q, p.batch, p.heads, p.queries, &q_map));
        TILE_TRY(make_map<KeyBoxes>("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k_map));
        TILE_TRY(make_map<KeyBoxes>("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v_map));
        unsigned blocks = 0;
        TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, Plan::kQueries, &blocks));
        return tile::launch(attention_turns<T, kDim>, "attention_turns", blocks, Plan::kThreads,
                            Plan::kBytes, stream, q_map, k_map, v_map, heads_of<T>(p.o), p.lse,
                            masks_of(p), p.batch, p.heads, group_of(p), p.scale * kLog2E);
      });
}

}  // namespace flash_attention
