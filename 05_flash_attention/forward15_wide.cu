// Forward, step 15: 256 columns.
// Idea: there is room for the queries of one tile only. If the output left from there, the next
//       queries would wait for it, and the block for them. So a consumer's output leaves from a
//       stage of the ring, and the next queries come once the last scores are there.
// Change: from step 12: one place for queries, and none for outputs. The thread that loads leaves
//         a stage to each consumer, whose first thread stores the output and releases the stage
//         when the next tile begins. Tiles of 80 keys, and no turns.
// Limit: power, and the first and the last product of a tile, which run alone.
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

constexpr int kDim = 256;
constexpr int kRows = 64;  // of a consumer: those of one wgmma
constexpr int kNoStage = -1;
constexpr int kAllConsumers = 1, kOneConsumer = 2;  // barriers; one for each

struct Plan {
  // Scores, weights and sums of the output are 188 of 232 registers.
  static constexpr int kKeys = 80;  // of a tile
  static constexpr int kConsumers = 2;
  static constexpr int kQueries = kConsumers * kRows;
  static constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
  // 65,536 registers are 168 for each of 384 threads, in steps of 8.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (1 + kConsumers) * (65536 / kThreads / 8 * 8));
  static constexpr int kQueryStages = 1, kStages = 4;
  static constexpr int kBytes = (kQueries + kStages * kKeys) * kDim * 2;  // 224 KiB
};

// snippet-begin kernel
template <class T>
__global__ void __launch_bounds__(Plan::kThreads, 1) attention_wide(
    const __grid_constant__ tile::TensorMap q_map,  // [batch][queries][heads][kDim]
    const __grid_constant__ tile::TensorMap k_map,  // [batch][heads / group][keys][kDim]
    const __grid_constant__ tile::TensorMap v_map,  // as k
    const __grid_constant__ tile::TensorMap o_map,  // as q
    float* lse,                                     // [batch][heads][queries], or null
    unsigned* taken,                                // 0 at first: tiles that blocks have taken
    QueryTiles tiles, BatchMasks masks, int group, float scale_log2) {
  using namespace tile::ptx;
  constexpr int kConsumers = Plan::kConsumers, kKeys = Plan::kKeys;
  using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
  using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
  using OutputBoxes = tile::HeadBoxes<T, kRows, kDim>;
  // {queries, [kStages]{keys, values, or a consumer's output}}
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ Mailbox<Plan> mail;
  const SharedAddress queries(smem), stages = queries + QueryBoxes::kBytes;
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) mail.init(kConsumers * 4);  // a lane of each warp
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x == 0) {
      load_tiles<Plan, QueryBoxes, KeyBoxes>(mail, queries, stages, q_map, k_map, v_map, tiles,
                                             masks, group, taken);
    }
    return;
  }
  setmaxnreg_inc<Plan::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * kRows;  // in the tile of queries
  const auto stage = [&](int i) { return stages + i * KeyBoxes::kBytes; };
  const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
  tile::RingReader<Plan::kStages> ring(mail.full, mail.empty, is_leader);
  int output = kNoStage;  // which the last output leaves from
  for (unsigned parity = 0;; parity ^= 1) {
    mbarrier_wait(&mail.queries_full[0], parity);
    if (output != kNoStage) bulk_wait_read<0>(), ring.release(output);
    const BlockWork work = tile::read_by_first_lane(mail.work[0]);
    if (work.is_none()) break;
    const PackMask mask{masks.of(work.batch), tiles.log2_pack};
    const int block_row = work.tile * Plan::kQueries;
    const int warp_row = first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
    const Mask::Tiles visited = mask.tiles_of_rows(block_row, Plan::kQueries, kKeys, masks.queries);
    const Mask::Tiles seen = mask.tiles_of_rows(block_row + first_row, kRows, kKeys, masks.queries);
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
    const auto give_back_queries = [&] {
      if (threadIdx.x % tile::kWarp == 0) mbarrier_arrive(&mail.queries_empty[0]);
    };
    if (visited.first < visited.last) {
      const int first_keys = ring.next();
      wgmma_fence();
      tile::start_product_of_rows<T, QueryBoxes, KeyBoxes>(scores, queries, first_row,
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
        wgmma_fence();  // S = Q K^T
        tile::start_product_of_rows<T, QueryBoxes, KeyBoxes>(scores, queries, first_row,
                                                             stage(keys));
        wgmma_commit();
        const int values = ring.next();  // O += P V, of the tile before
        tile::start_product_with_columns<T, KeyBoxes>(out, weights, stage(values));
        wgmma_commit();
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
      give_back_queries();
      if (is_early) ring.drop();  // the others' last keys
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
    } else {
      give_back_queries();
    }
    float row_lse[2];
    softmax.finish(out, row_lse);
    const int first = ring.next(), second = ring.next();
    output = warpgroup == 1 ? first : second;
    OutputBoxes::store_warp(tile::as_fragment<T>(out), stage(output), warp_row - first_row);
    fence_async_proxy();  // TMA sees what this thread has stored
    barrier_sync(kOneConsumer + warpgroup, tile::kWarpgroup);  // and what the others have
    ring.release(first + second - output);  // the other one's, now that all have waited for it
    if (is_leader) {
      OutputBoxes::store(o_map, work.head << tiles.log2_pack,
                         (block_row + first_row) >> tiles.log2_pack, work.batch, stage(output));
      bulk_commit();
    }
    tile::store_lse(row_lse, lse, tiles, work, block_row + warp_row, masks.queries);
  }
}
// snippet-end kernel

}  // namespace

tile::Status takes_wide(const AttentionForward& p, const tile::Device& device) {
  if (p.head_dim != kDim) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is not 256");
  }
  TILE_TRY(takes_many_queries(p, device));
  return tile::check_boxes(p, false);
}

tile::Status wide(const AttentionForward& p, void* stream) {
  const auto launch_with = [&](auto element) -> tile::Status {
    using T = decltype(element);
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
    TILE_TRY(make_query_map<tile::HeadBoxes<T, kRows, kDim>>("o", p, p.o, tiles.log2_pack, &o_map));
    tile::StreamMemory taken;
    TILE_TRY(taken.allocate(sizeof(unsigned), stream));
    return tile::launch(attention_wide<T>, "attention_wide", blocks, Plan::kThreads, Plan::kBytes,
                        stream, q_map, k_map, v_map, o_map, p.lse,
                        static_cast<unsigned*>(taken.data()), tiles, masks_of(p), group_of(p),
                        p.scale * kLog2E);
  };
  return p.type == tile::DType::fp16 ? launch_with(__half{}) : launch_with(__nv_bfloat16{});
}

}  // namespace flash_attention
