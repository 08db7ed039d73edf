// Forward, step 12: the output leaves by TMA.
// Idea: consumers go on with the next tile while a thread of another warp stores this one's output.
// Change: the output is put where the queries were, and stored from there by TMA. Heads that share
//         their keys share tiles, where that leaves fewer rounds of tiles.
// Limit: power. At 64 columns the arithmetic of the softmax, which takes as long as the products.
#include <string>

#include "launch.hpp"
#include "query_queue.cuh"
#include "tile/head_boxes.cuh"
#include "tile/host/query_queue.hpp"
#include "tile/host/stream_memory.hpp"
#include "tile/lazy_softmax.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace flash_attention {
namespace {

using tile::Fragment, tile::LazySoftmax, tile::Accumulator, tile::QueryTiles;

constexpr int kRows = 64;                         // of a consumer: those of one wgmma
constexpr int kAllConsumers = 1, kFirstTurn = 2;  // barriers

template <int kDim>
struct TilePlan {
  // Scores, weights and sums of the output are 128 of 160 registers, or 160 of 232.
  static constexpr int kKeys = 128;  // of a tile
  static constexpr int kConsumers = kDim == 64 ? 3 : 2;
  static constexpr int kQueries = kConsumers * kRows;
  static constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
  // 65,536 registers are 128 for each of 512 threads, or 168 of 384, in steps of 8.
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 40;
  static constexpr int kConsumerRegisters = kDim == 64 ? 160 : 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (1 + kConsumers) * (65536 / kThreads / 8 * 8));
  static constexpr int kQueryStages = 2;
  static constexpr int kStages = kDim == 64 ? 8 : 4;
  static constexpr int kBytes = (kQueryStages * kQueries + kStages * kKeys) * kDim * 2;
};

template <class T, int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1) attention_persistent(
    const __grid_constant__ tile::TensorMap q_map,  // [batch][queries][heads][kDim]
    const __grid_constant__ tile::TensorMap k_map,  // [batch][heads / group][keys][kDim]
    const __grid_constant__ tile::TensorMap v_map,  // as k
    const __grid_constant__ tile::TensorMap o_map,  // as q
    float* lse,                                     // [batch][heads][queries], or null
    unsigned* taken,                                // 0 at first: tiles that blocks have taken
    QueryTiles tiles, BatchMasks masks, int group, float scale_log2) {
  using namespace tile::ptx;
  using Plan = TilePlan<kDim>;
  constexpr int kConsumers = Plan::kConsumers, kKeys = Plan::kKeys;
  using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
  using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
  // {[kQueryStages]{queries, then output}, [kStages]{keys or values}}
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ Mailbox<Plan> mail;
  const SharedAddress queries(smem), stages = queries + Plan::kQueryStages * QueryBoxes::kBytes;
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) mail.init();
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x == 0) {
      load_tiles<Plan, QueryBoxes, KeyBoxes>(mail, queries, stages, q_map, k_map, v_map, tiles,
                                             masks, group, taken);
    } else if (threadIdx.x == tile::kWarp) {
      store_tiles<Plan, QueryBoxes>(mail, queries, QueryBoxes::kBytes, o_map, tiles.log2_pack);
    }
    return;
  }
  setmaxnreg_inc<Plan::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * kRows;  // in the tile of queries
  const auto stage = [&](int i) { return stages + i * KeyBoxes::kBytes; };
  tile::RingReader<Plan::kStages> ring(mail.full, mail.empty, threadIdx.x % tile::kWarpgroup == 0);
  const tile::Turns<kConsumers, kFirstTurn, kDim == 64> turn(warpgroup);
  for (tile::RingPlace<Plan::kQueryStages> tile_place;; tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_full[i], tile_place.parity);
    const BlockWork work = tile::read_by_first_lane(mail.work[i]);
    if (work.is_none()) break;
    const PackMask mask{masks.of(work.batch), tiles.log2_pack};
    const int block_row = work.tile * Plan::kQueries;
    const int warp_row = first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
    const Mask::Tiles visited = mask.tiles_of_rows(block_row, Plan::kQueries, kKeys, masks.queries);
    const Mask::Tiles seen = mask.tiles_of_rows(block_row + first_row, kRows, kKeys, masks.queries);
    const SharedAddress q_smem = queries + i * QueryBoxes::kBytes;
    LazySoftmax<16> softmax(scale_log2);
    Accumulator<16, kDim> out;
    Accumulator<16, kKeys> scores;
    Fragment<16, kKeys> weights;
    const auto hide_some = [&](int tile) {
      if (tile >= seen.whole_first && tile < seen.whole_last) return;
      hide(scores, mask, block_row + warp_row, tile * kKeys);
    };
    const auto weigh_all = [&] {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) softmax.weigh(scores, n);
    };
    if (visited.first < visited.last) {
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
      const int rows = mask.keys - (visited.last - 1) * kKeys;  // of the last tile
      const bool clears = rows < kKeys && mask.keys < masks.keys;
      const bool is_early = !clears && seen.last < visited.last && visited.first + 1 < visited.last;
      const int end = is_early ? visited.last - 1 : visited.last;
      for (int tile = visited.first + 1; tile < end; ++tile) {
        const int keys = ring.next();
        turn.take();
        wgmma_fence();  // S = Q K^T
        tile::start_product_of_rows<T, QueryBoxes, KeyBoxes>(scores, q_smem, first_row,
                                                             stage(keys));
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
      ring.release(values);
      if (is_early) ring.drop();  // and their last values
    }
    float row_lse[2];
    softmax.finish(out, row_lse);
    QueryBoxes::store_warp(tile::as_fragment<T>(out), q_smem, warp_row);
    fence_async_proxy();                  // TMA sees what this lane has stored
    const BlockWork same = mail.work[i];  // read again: kept, it would take the loop's registers
    __syncwarp();                         // and what the others have stored; all have read
    if (threadIdx.x % tile::kWarp == 0) mbarrier_arrive(&mail.outputs_full[i]);
    tile::store_lse(row_lse, lse, tiles, same, same.tile * Plan::kQueries + warp_row,
                    masks.queries);
  }
  turn.end();
}

}  // namespace

tile::Status takes_persistent(const AttentionForward& p, const tile::Device& device) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  TILE_TRY(takes_many_queries(p, device));
  return tile::check_boxes(p, false);
}

tile::Status persistent(const AttentionForward& p, void* stream) {
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value == 128 ? 128 : 64;
        using Plan = TilePlan<kDim>;
        using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
        using KeyBoxes = tile::HeadBoxes<T, Plan::kKeys, kDim>;
        tile::TensorMap q_map, k_map, v_map, o_map;
        QueryTiles tiles{};
        unsigned blocks = 0;
        tiles.log2_pack = log2_pack_of(p, Plan::kQueries, tile::persistent_blocks(p));
        TILE_TRY(tile::queue_of(p, Plan::kQueries, &tiles, &blocks));
        TILE_TRY(make_query_map<QueryBoxes>("q", p, p.q, tiles.log2_pack, &q_map));
        TILE_TRY(make_map<KeyBoxes>("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k_map));
        TILE_TRY(make_map<KeyBoxes>("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v_map));
        TILE_TRY(make_query_map<QueryBoxes>("o", p, p.o, tiles.log2_pack, &o_map));
        tile::StreamMemory taken;
        TILE_TRY(taken.allocate(sizeof(unsigned), stream));
        return tile::launch(attention_persistent<T, kDim>, "attention_persistent", blocks,
                            Plan::kThreads, Plan::kBytes, stream, q_map, k_map, v_map, o_map, p.lse,
                            static_cast<unsigned*>(taken.data()), tiles, masks_of(p), group_of(p),
                            p.scale * kLog2E);
      });
}

}  // namespace flash_attention
