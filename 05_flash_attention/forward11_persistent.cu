// Forward, step 11: persistent blocks.
// Idea: a multiprocessor keeps its block, which takes one tile of queries after another. The next
//       tile's queries and first keys come while this one's output is finished and stored, and a
//       block with little to do takes more tiles.
// Change: a thread takes tiles from a queue, a counter in global memory, longest first, and puts
//         each tile's number beside its queries. The output leaves by way of the queries' rows in
//         shared memory, from where another warp stores it by TMA. Head dimension 256.
// Limit: power. At 64 columns the arithmetic of the softmax, which takes as long as the products.
#include <algorithm>
#include <string>
#include <tuple>

#include "flash_attention.cuh"
#include "tile/head_boxes.cuh"
#include "tile/host/stream_memory.hpp"
#include "tile/lazy_softmax.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace flash_attention {
namespace {

using tile::Fragment, tile::LazySoftmax, tile::Accumulator;

constexpr int kRows = 64;                         // of a consumer: those of one wgmma
constexpr int kAllConsumers = 1, kFirstTurn = 2;  // barriers

template <int kDim>
struct TilePlan {
  // A thread holds a score and half a weight for each two keys, and kDim / 2 sums of the output: of
  // its registers 128 of 160, 160 of 232, or 188 of 232.
  static constexpr int kKeys = kDim == 256 ? 80 : 128;  // of a tile
  static constexpr int kConsumers = kDim == 64 ? 3 : 2;
  static constexpr bool kTakesTurns = kDim == 64;
  static constexpr int kQueries = kConsumers * kRows;
  static constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
  // 65,536 registers are 128 for each of 512 threads, or 168 of 384, in steps of 8.
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 40;
  static constexpr int kConsumerRegisters = kDim == 64 ? 160 : 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (1 + kConsumers) * (65536 / kThreads / 8 * 8));
  // 224 KiB at most: with 256 columns there is room for the queries of one tile only.
  static constexpr int kQueryStages = kDim == 256 ? 1 : 2;
  static constexpr int kStages = kDim == 64 ? 8 : 4;
  static constexpr int kBytes = (kQueryStages * kQueries + kStages * kKeys) * kDim * 2;
};

/// How many heads' tiles are taken together. Where the last queries see the most keys, those whose
/// keys and values fill 32 MiB of the L2 (of an H100: 50): the more tiles there are, the better do
/// short ones fill gaps. Otherwise few, which find each other's keys in the L2.
unsigned heads_together(const AttentionForward& p) {
  const std::int64_t head_bytes = p.keys * p.head_dim * 4;  // of k and v
  const std::int64_t heads = p.right < p.keys ? (32 << 20) / head_bytes * group_of(p) : 8;
  return static_cast<unsigned>(std::clamp<std::int64_t>(heads, 1, p.batch * p.heads));
}

/// What the warps of a block tell each other.
template <class Plan>
struct Mailbox {
  tile::ptx::Mbarrier queries_full[Plan::kQueryStages], queries_empty[Plan::kQueryStages];
  tile::ptx::Mbarrier outputs_full[Plan::kQueryStages];
  tile::ptx::Mbarrier full[Plan::kStages], empty[Plan::kStages];
  unsigned work_at[Plan::kQueryStages];  // the number of the queries' tile
};

/// Of all heads: tiles of queries, numbered so that the ones with the most keys come first.
struct QueryTiles {
  int batch, heads, of_head;
  unsigned together;  // heads

  __device__ unsigned all() const { return static_cast<unsigned>(batch * heads) * of_head; }
  __device__ BlockWork work(unsigned at) const {
    const BlockWork work = tile::longest_first(at, together, batch, heads, of_head);
    return {work.batch, work.head, of_head - 1 - work.tile};  // the last queries see the most keys
  }
};

// snippet-begin load
/// One thread loads: the queries of a tile, and the keys and values that they see.
template <class Plan, class QueryBoxes, class KeyBoxes>
__device__ __forceinline__ void load_tiles(Mailbox<Plan>& mail, tile::ptx::SharedAddress queries,
                                           tile::ptx::SharedAddress stages,
                                           const tile::TensorMap& q_map,
                                           const tile::TensorMap& k_map,
                                           const tile::TensorMap& v_map, const QueryTiles& tiles,
                                           const BatchMasks& masks, int group, unsigned* taken) {
  using namespace tile::ptx;
  tile::RingPlace<Plan::kStages> place;
  tile::RingPlace<Plan::kQueryStages> tile_place;
  for (unsigned at = blockIdx.x, next = 0;; at = next, tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_empty[i], tile_place.parity ^ 1);
    mail.work_at[i] = at;
    if (at >= tiles.all()) return mbarrier_arrive(&mail.queries_full[i]);  // tells all to end
    next = gridDim.x + atomicAdd(taken, 1u);  // the first ones are those of the grid
    const BlockWork work = tiles.work(at);
    const int first_query = work.tile * Plan::kQueries;
    mbarrier_arrive_expect(&mail.queries_full[i], QueryBoxes::kBytes);
    QueryBoxes::load(queries + i * QueryBoxes::kBytes, q_map, first_query, work.head, work.batch,
                     &mail.queries_full[i]);
    const auto copy = [&](const tile::TensorMap& map, int tile) {
      const int stage = place.stage;
      mbarrier_wait(&mail.empty[stage], place.parity ^ 1);
      mbarrier_arrive_expect(&mail.full[stage], KeyBoxes::kBytes);
      KeyBoxes::load(stages + stage * KeyBoxes::kBytes, map, tile * Plan::kKeys, work.head / group,
                     work.batch, &mail.full[stage]);
      place.advance();
    };
    const auto visited = masks.of(work.batch).tiles(first_query, Plan::kQueries, Plan::kKeys);
    for (int tile = visited.first; tile <= visited.last; ++tile) {
      if (tile < visited.last) copy(k_map, tile);
      if (tile > visited.first) copy(v_map, tile - 1);  // values come after the next keys
    }
  }
}
// snippet-end load

// snippet-begin store
/// One thread stores: the output of a tile, which lies where its queries were.
template <class Plan, class QueryBoxes>
__device__ __forceinline__ void store_tiles(Mailbox<Plan>& mail, tile::ptx::SharedAddress queries,
                                            const tile::TensorMap& o_map, const QueryTiles& tiles) {
  using namespace tile::ptx;
  for (tile::RingPlace<Plan::kQueryStages> tile_place;; tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_full[i], tile_place.parity);
    const unsigned at = mail.work_at[i];
    if (at >= tiles.all()) return;
    mbarrier_wait(&mail.outputs_full[i], tile_place.parity);
    const BlockWork work = tiles.work(at);
    QueryBoxes::store(o_map, work.tile * Plan::kQueries, work.head, work.batch,
                      queries + i * QueryBoxes::kBytes);
    bulk_commit();
    bulk_wait_read<0>();  // then the next queries may come there
    mbarrier_arrive(&mail.queries_empty[i]);
  }
}
// snippet-end store

// snippet-begin kernel
template <class T, int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1) attention_persistent(
    const __grid_constant__ tile::TensorMap q_map,  // [batch][heads][queries][kDim]
    const __grid_constant__ tile::TensorMap k_map,  // … [heads / group][keys] …
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
  if (threadIdx.x == 0) {
    tile::init_ring(mail.queries_full, mail.queries_empty, 1);  // the thread that stores
    for (auto& outputs_full : mail.outputs_full) mbarrier_init(&outputs_full, kConsumers * 4);
    tile::init_ring(mail.full, mail.empty, kConsumers);  // a thread of each
  }
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x == 0) {
      load_tiles<Plan, QueryBoxes, KeyBoxes>(mail, queries, stages, q_map, k_map, v_map, tiles,
                                             masks, group, taken);
    } else if (threadIdx.x == tile::kWarp) {
      store_tiles<Plan, QueryBoxes>(mail, queries, o_map, tiles);
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
    if (at >= tiles.all()) break;
    const BlockWork work = tiles.work(at);
    const Mask mask = masks.of(work.batch);
    const int block_query = work.tile * Plan::kQueries;
    const int warp_row = first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
    const Mask::Tiles visited = mask.tiles(block_query, Plan::kQueries, kKeys);
    const Mask::Tiles seen = mask.tiles(block_query + first_row, kRows, kKeys);
    const SharedAddress q_smem = queries + i * QueryBoxes::kBytes;
    LazySoftmax<16> softmax(scale_log2);
    Accumulator<16, kDim> out;
    Accumulator<16, kKeys> scores;
    Fragment<16, kKeys> weights;
    const auto hide_some = [&](int tile) {
      if (tile >= seen.whole_first && tile < seen.whole_last) return;
      hide(scores, mask, block_query + warp_row, tile * kKeys);
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

tile::Status takes_persistent(const AttentionForward& p, const tile::Device& device) {
  if (p.head_dim != 64 && p.head_dim != 128 && p.head_dim != 256) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is not 64, 128 or 256");
  }
  if (p.keys == 0) return tile::unsupported("keys", "there are none");
  if (takes_split_keys(p, device).ok()) {
    return tile::unsupported("queries",
                             std::to_string(p.queries) + " are few: split_keys is faster");
  }
  TILE_TRY(takes_chunks(p, device));
  using Boxes = tile::HeadBoxes<__half, 64, 64>;  // strides are asked for, whatever the extents
  for (const auto& [name, x, heads, rows] : {std::tuple{"q", &p.q, p.heads, p.queries},
                                             {"k", &p.k, p.kv_heads, p.keys},
                                             {"v", &p.v, p.kv_heads, p.keys},
                                             {"o", &p.o, p.heads, p.queries}}) {
    TILE_TRY(tile::check_tensor_map(
        name, Boxes::boxed(p.type, x->data, p.batch, heads, rows, x->stride)));
  }
  return {};
}

tile::Status persistent(const AttentionForward& p, void* stream) {
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value < 64 ? 64 : head_dim.value;
        using Plan = TilePlan<kDim>;
        using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
        using KeyBoxes = tile::HeadBoxes<T, Plan::kKeys, kDim>;
        tile::TensorMap q_map, k_map, v_map, o_map;
        TILE_TRY(QueryBoxes::make_map("q", p.type, p.q, p.batch, p.heads, p.queries, &q_map));
        TILE_TRY(KeyBoxes::make_map("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k_map));
        TILE_TRY(KeyBoxes::make_map("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v_map));
        TILE_TRY(QueryBoxes::make_map("o", p.type, p.o, p.batch, p.heads, p.queries, &o_map));
        unsigned all_tiles = 0;
        TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, Plan::kQueries, &all_tiles));
        const QueryTiles tiles{static_cast<int>(p.batch), static_cast<int>(p.heads),
                               tiles_of(p.queries, Plan::kQueries), heads_together(p)};
        const auto most = static_cast<unsigned>(tile::device().multiprocessors);
        tile::StreamMemory taken;
        TILE_TRY(taken.allocate(sizeof(unsigned), stream));
        return tile::launch(attention_persistent<T, kDim>, "attention_persistent",
                            std::min(all_tiles, most), Plan::kThreads, Plan::kBytes, stream, q_map,
                            k_map, v_map, o_map, p.lse, static_cast<unsigned*>(taken.data()), tiles,
                            masks_of(p), group_of(p), p.scale * kLog2E);
      });
}

}  // namespace flash_attention
