// Forward, step 16: some queries, many keys, as when guessed tokens or a piece of a prompt come.
// Idea: a few dozen queries fill a few tiles only, and most multiprocessors have none. So the keys
//       of a tile are divided among as many blocks as there are multiprocessors for it, as in
//       step 8, by wgmma.
// Change: from step 10: the rows of a tile are of as many heads as step 12 packs, a block has a
//         share of the tile's keys, and stores its outputs in fp32 for step 8's merge. All
//         consumers visit the same tiles.
// Limit: the tensor cores. With fewer keys, the two launches.
#include <string>

#include "merge_parts.cuh"
#include "query_queue.cuh"
#include "tile/head_boxes.cuh"
#include "tile/host/query_queue.hpp"
#include "tile/lazy_softmax.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace flash_attention {
namespace {

using tile::Fragment, tile::LazySoftmax, tile::Accumulator, tile::QueryTiles;

constexpr int kRows = 64;              // of a consumer: those of one wgmma
constexpr int kKeys = kSplitTileKeys;  // of a tile
constexpr int kNoTile = -1;
constexpr int kAllConsumers = 1, kFirstTurn = 2;  // barriers

template <int kDim>
struct TilePlan {
  // Scores, weights and sums of the output are 128 of 160 registers, or 160 of 232.
  static constexpr int kQueries = wgmma_tile_rows(kDim), kConsumers = kQueries / kRows;
  static constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
  // 65,536 registers are 128 for each of 512 threads, or 168 of 384, in steps of 8.
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 40;
  static constexpr int kConsumerRegisters = kDim == 64 ? 160 : 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (1 + kConsumers) * (65536 / kThreads / 8 * 8));
  static constexpr int kStages = kDim == 64 ? 10 : 5;  // 160 KiB
  static constexpr int kBytes = (kQueries + kStages * kKeys) * kDim * 2;
};

template <class T, int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1) attention_split_tiles(
    const __grid_constant__ tile::TensorMap q_map,  // [batch][queries][heads][kDim]
    const __grid_constant__ tile::TensorMap k_map,  // [batch][heads / group][keys][kDim]
    const __grid_constant__ tile::TensorMap v_map,  // as k
    Parts parts, QueryTiles tiles, BatchMasks masks, int group, float scale_log2) {
  using namespace tile::ptx;
  using Plan = TilePlan<kDim>;
  constexpr int kConsumers = Plan::kConsumers, kStages = Plan::kStages;
  using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
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

  const int split = static_cast<int>(blockIdx.x) % parts.count;
  const BlockWork work = tiles.work(blockIdx.x / parts.count);
  const int first_head = work.head << tiles.log2_pack;
  const int block_row = work.tile * Plan::kQueries;  // of the pack
  // snippet-begin share
  const PackMask mask{masks.of(work.batch), tiles.log2_pack};
  const Mask::Tiles visited = mask.tiles_of_rows(block_row, Plan::kQueries, kKeys, masks.queries);
  const int share = (visited.last - visited.first + parts.count - 1) / parts.count;
  const int first = visited.first + split * share, last = min(first + share, visited.last);
  // snippet-end share
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x != 0 || first >= last) return;
    const auto copy = [&](const tile::TensorMap& map, int tile) {
      mbarrier_wait(&empty[place.stage], place.parity ^ 1);
      mbarrier_arrive_expect(&full[place.stage], KeyBoxes::kBytes);
      KeyBoxes::load(stage(place.stage), map, tile * kKeys, first_head / group, work.batch,
                     &full[place.stage]);
      place.advance();
    };
    mbarrier_arrive_expect(&queries_full, QueryBoxes::kBytes);
    QueryBoxes::load(q_smem, q_map, first_head, block_row >> tiles.log2_pack, work.batch,
                     &queries_full);
    int before = kNoTile;  // tile of the last keys; its values are loaded after the next keys
    for (int tile = first; tile < last; before = tile++) {
      copy(k_map, tile);
      if (before != kNoTile) copy(v_map, before);
    }
    copy(v_map, before);
    return;
  }

  setmaxnreg_inc<Plan::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * kRows;  // in the tile of queries
  const int warp_row = block_row + first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  LazySoftmax<16> softmax(scale_log2);
  Accumulator<16, kDim> out;
  Accumulator<16, kKeys> scores;
  Fragment<16, kKeys> weights;
  tile::RingReader<kStages> ring(full, empty, threadIdx.x % tile::kWarpgroup == 0);
  const tile::Turns<kConsumers, kFirstTurn, kDim == 64> turn(warpgroup);
  const auto hide_some = [&](int tile) {
    if (tile >= visited.whole_first && tile < visited.whole_last) return;
    hide(scores, mask, warp_row, tile * kKeys);
  };
  const auto weigh_all = [&] {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) softmax.weigh(scores, n);
  };
  if (first < last) {
    mbarrier_wait(&queries_full, 0);
    const int first_keys = ring.next();
    wgmma_fence();
    tile::start_product_of_rows<T, QueryBoxes, KeyBoxes>(scores, q_smem, first_row,
                                                         stage(first_keys));
    wgmma_commit();
    wgmma_wait<0>(registers_of(scores));
    ring.release(first_keys);
    hide_some(first);
    softmax.look_at(scores, out);
    weigh_all();
    weights = tile::as_fragment<T>(scores);
    for (int tile = first + 1; tile < last; ++tile) {
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
    const int values = ring.next();
    // Rows past this entry's length may hold anything, and 0 times that may be NaN.
    if (const int rows = mask.keys - (last - 1) * kKeys; rows < kKeys && mask.keys < masks.keys) {
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
  float lse[2];
  softmax.finish(out, lse);
  parts.store(split, out, lse, warp_row, (work.batch * tiles.heads << tiles.log2_pack) + first_head,
              1 << tiles.log2_pack);
}

}  // namespace

tile::Status takes_split_tiles(const AttentionForward& p, const tile::Device&) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  if (p.keys == 0) return tile::unsupported("keys", "there are none");
  TILE_TRY(tile::check_boxes(p, false, false));
  return tile::check_workspace(split_tiles_bytes(p), p.workspace_bytes);
}

tile::Status split_tiles(const AttentionForward& p, void* stream) {
  const std::int64_t all_rows = p.batch * p.heads * p.queries, splits = tile_splits(p);
  auto* part_o = static_cast<float*>(p.workspace);
  const Parts parts{part_o, part_o + all_rows * splits * p.head_dim, static_cast<int>(p.queries),
                    static_cast<int>(splits), static_cast<int>(p.head_dim)};
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value == 128 ? 128 : 64;
        using Plan = TilePlan<kDim>;
        using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
        QueryTiles tiles{};
        unsigned blocks = 0, rows = 0;
        TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, 1, &rows));
        tiles.log2_pack = log2_pack_of(p, Plan::kQueries, 1);
        TILE_TRY(tile::queue_of(p, Plan::kQueries, &tiles, &blocks));
        tile::TensorMap q_map, k_map, v_map;
        TILE_TRY(make_query_map<tile::HeadBoxes<T, Plan::kQueries, kDim>>("q", p, p.q,
                                                                          tiles.log2_pack, &q_map));
        TILE_TRY(make_map<KeyBoxes>("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k_map));
        TILE_TRY(make_map<KeyBoxes>("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v_map));
        TILE_TRY(tile::launch(attention_split_tiles<T, kDim>, "attention_split_tiles",
                              tiles.all * static_cast<unsigned>(parts.count), Plan::kThreads,
                              Plan::kBytes, stream, q_map, k_map, v_map, parts, tiles, masks_of(p),
                              group_of(p), p.scale * kLog2E));
        return tile::launch(attention_merge_parts<T>, "attention_merge_parts", rows, kDim, 0,
                            stream, parts, heads_of<T>(p.o), p.lse, p.heads);
      });
}

}  // namespace flash_attention
