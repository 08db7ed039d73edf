// Attention of e4m3: the kernel of steps 13 and 14, which differ in how the output is added up.
#pragma once

#include "eight_bits.cuh"
#include "launch.hpp"
#include "query_queue.cuh"
#include "tile/host/query_queue.hpp"
#include "tile/host/stream_memory.hpp"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace flash_attention {
namespace {

using namespace tile::ptx;
using tile::Accumulator, tile::QueryTiles, tile::RingPlace;

constexpr int kRows = 64;                              // of a consumer: those of one wgmma
constexpr int kFirstTransposer = 2, kTransposers = 2;  // warps of the first warpgroup

template <int kDim>
struct TilePlan {
  // Scores, weights, and sums of the output are 144 registers of 232, or 112; with those of a tile
  // besides, 208 or 144.
  static constexpr int kKeys = 128;  // of a tile
  static constexpr int kConsumers = 2;
  static constexpr int kQueries = kConsumers * kRows;
  static constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
  // 65,536 registers are 168 for each of 384 threads, in steps of 8.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (1 + kConsumers) * (65536 / kThreads / 8 * 8));
  static constexpr int kQueryStages = 2, kStages = 4;  // of queries, keys and transposed values
  static constexpr int kLoadedStages = 2;              // of values before that

  using QueryBoxes = tile::HeadBoxes<E4m3, kQueries, kDim>;
  using KeyBoxes = tile::HeadBoxes<E4m3, kKeys, kDim>;
  using ValueBoxes = tile::HeadBoxes<E4m3, kDim, kKeys>;  // transposed
  static constexpr int kKeysAt = kQueryStages * QueryBoxes::kBytes;
  static constexpr int kLoadedAt = kKeysAt + kStages * KeyBoxes::kBytes;
  static constexpr int kValuesAt = kLoadedAt + kLoadedStages * KeyBoxes::kBytes;
  static constexpr int kBytes = kValuesAt + kStages * ValueBoxes::kBytes;
};

/// What the warps of a block tell each other: of queries and keys, and of values.
template <class Plan>
struct Mailboxes : Mailbox<Plan> {
  Mbarrier loaded_full[Plan::kLoadedStages], loaded_empty[Plan::kLoadedStages];
  Mbarrier values_full[Plan::kStages], values_empty[Plan::kStages];

  __device__ void init() {
    Mailbox<Plan>::init(kTransposers + Plan::kConsumers * 4);  // a lane of each warp
    tile::init_ring(loaded_full, loaded_empty, kTransposers);
    for (int stage = 0; stage < Plan::kStages; ++stage) {
      mbarrier_init(&values_full[stage], kTransposers);
      mbarrier_init(&values_empty[stage], Plan::kConsumers);
    }
  }
};

/// What a call gives its kernel.
struct CallE4m3 {
  tile::TensorMap q_map;                     // [batch][heads][queries][kDim]
  tile::TensorMap k_map, v_map;              // [batch][heads / group][keys][kDim]
  Heads<__nv_bfloat16> o;                    // [batch][queries][heads][kDim]
  float* lse;                                // [batch][heads][queries], or null
  unsigned* taken;                           // 0 at first: tiles that blocks have taken
  const float *q_scale, *k_scale, *v_scale;  // [batch][heads / group], or null
  QueryTiles tiles;
  BatchMasks masks;
  int group;
  float scale_log2;
};

/// One thread loads: the queries of a tile, and the keys and values that they see.
template <class Plan>
__device__ __forceinline__ void load(Mailboxes<Plan>& mail, SharedAddress smem,
                                     const CallE4m3& call) {
  using QueryBoxes = typename Plan::QueryBoxes;
  using KeyBoxes = typename Plan::KeyBoxes;
  RingPlace<Plan::kStages> key_place;
  RingPlace<Plan::kLoadedStages> value_place;
  RingPlace<Plan::kQueryStages> tile_place;
  for (unsigned at = blockIdx.x, next = 0;; at = next, tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_empty[i], tile_place.parity ^ 1);
    mail.work_at[i] = at;
    if (at >= call.tiles.all) return mbarrier_arrive(&mail.queries_full[i]);  // tells all to end
    next = gridDim.x + atomicAdd(call.taken, 1u);  // the first ones are those of the grid
    const BlockWork work = call.tiles.work(at);
    const int first_query = work.tile * Plan::kQueries;
    mbarrier_arrive_expect(&mail.queries_full[i], QueryBoxes::kBytes);
    QueryBoxes::load(smem + i * QueryBoxes::kBytes, call.q_map, first_query, work.head, work.batch,
                     &mail.queries_full[i]);
    const auto copy = [&](auto& place, Mbarrier* full, Mbarrier* empty, int stages_at,
                          const tile::TensorMap& map, int tile) {
      const int stage = place.stage;
      mbarrier_wait(&empty[stage], place.parity ^ 1);
      mbarrier_arrive_expect(&full[stage], KeyBoxes::kBytes);
      KeyBoxes::load(smem + stages_at + stage * KeyBoxes::kBytes, map, tile * Plan::kKeys,
                     work.head / call.group, work.batch, &full[stage]);
      place.advance();
    };
    const auto visited = call.masks.of(work.batch).tiles(first_query, Plan::kQueries, Plan::kKeys);
    for (int tile = visited.first; tile < visited.last; ++tile) {
      copy(key_place, mail.full, mail.empty, Plan::kKeysAt, call.k_map, tile);
      copy(value_place, mail.loaded_full, mail.loaded_empty, Plan::kLoadedAt, call.v_map, tile);
    }
  }
}

/// Warps that transpose values. Rows past an entry's length may hold anything, and 0 times that may
/// be NaN: they become zeros here.
template <class Plan>
__device__ __forceinline__ void transpose(Mailboxes<Plan>& mail, SharedAddress smem,
                                          const QueryTiles& tiles, const BatchMasks& masks) {
  using KeyBoxes = typename Plan::KeyBoxes;
  using ValueBoxes = typename Plan::ValueBoxes;
  const int warp = static_cast<int>(threadIdx.x / tile::kWarp) - kFirstTransposer;
  const bool is_leader = threadIdx.x % tile::kWarp == 0;
  // Counted, where a RingPlace has two registers: these warps have few.
  unsigned count = 0;  // of tiles of values
  for (unsigned tile_count = 0;; ++tile_count) {
    const int i = tile_count % Plan::kQueryStages;
    mbarrier_wait(&mail.queries_full[i], tile_count / Plan::kQueryStages % 2);
    const unsigned at = mail.work_at[i];
    if (at >= tiles.all) return;
    const BlockWork work = tiles.work(at);
    const Mask mask = masks.of(work.batch);
    const auto visited = mask.tiles(work.tile * Plan::kQueries, Plan::kQueries, Plan::kKeys);
    for (int tile = visited.first; tile < visited.last; ++tile, ++count) {
      const int from = count % Plan::kLoadedStages, to = count % Plan::kStages;
      mbarrier_wait(&mail.loaded_full[from], count / Plan::kLoadedStages % 2);
      mbarrier_wait(&mail.values_empty[to], count / Plan::kStages % 2 ^ 1);
      transpose_values<KeyBoxes, ValueBoxes>(smem + (Plan::kLoadedAt + from * KeyBoxes::kBytes),
                                             smem + (Plan::kValuesAt + to * ValueBoxes::kBytes),
                                             warp, mask.keys - tile * Plan::kKeys);
      fence_async_proxy();  // wgmma sees what this lane has stored
      __syncwarp();         // and what the others have; and all have read what was loaded
      if (is_leader) mbarrier_arrive(&mail.values_full[to]);
      if (is_leader) mbarrier_arrive(&mail.loaded_empty[from]);
    }
    __syncwarp();  // all have read the tile's number
    if (is_leader) mbarrier_arrive(&mail.queries_empty[i]);
  }
}

/// The kernel, of a block with `mail` and kBytes from `smem` on:
///     {[kQueryStages]{queries}, [kStages]{keys}, [kLoadedStages]{values}, [kStages]{transposed}}
/// If kAddsTiles, tensor cores add up the products of one tile of keys, and the threads add these
/// sums in fp32.
template <int kDim, bool kAddsTiles>
__device__ __forceinline__ void attend_e4m3(const CallE4m3& call, Mailboxes<TilePlan<kDim>>& mail,
                                            SharedAddress smem) {
  using Plan = TilePlan<kDim>;
  constexpr int kKeys = Plan::kKeys;
  using QueryBoxes = typename Plan::QueryBoxes;
  using KeyBoxes = typename Plan::KeyBoxes;
  using ValueBoxes = typename Plan::ValueBoxes;
  const QueryTiles& tiles = call.tiles;
  const BatchMasks& masks = call.masks;
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) mail.init();
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x == 0) {
      load<Plan>(mail, smem, call);
    } else if (threadIdx.x >= kFirstTransposer * tile::kWarp) {
      transpose<Plan>(mail, smem, tiles, masks);
    }
    return;
  }
  setmaxnreg_inc<Plan::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * kRows;  // in the tile of queries
  const auto keys_of = [&](int i) { return smem + (Plan::kKeysAt + i * KeyBoxes::kBytes); };
  const auto values_of = [&](int i) { return smem + (Plan::kValuesAt + i * ValueBoxes::kBytes); };
  const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;
  tile::RingReader<Plan::kStages> key_ring(mail.full, mail.empty, is_leader);
  tile::RingReader<Plan::kStages> value_ring(mail.values_full, mail.values_empty, is_leader);
  for (RingPlace<Plan::kQueryStages> tile_place;; tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_full[i], tile_place.parity);
    // As step 11: one lane of the warp reads, and later gives the queries back.
    const bool is_first_lane = threadIdx.x % tile::kWarp == 0;
    const unsigned at = __shfl_sync(tile::kAllLanes, is_first_lane ? mail.work_at[i] : 0, 0);
    if (at >= tiles.all) break;
    const BlockWork work = tiles.work(at);
    const Mask mask = masks.of(work.batch);
    const int block_query = work.tile * Plan::kQueries;
    const int warp_row = first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
    const Mask::Tiles visited = mask.tiles(block_query, Plan::kQueries, kKeys);
    const Mask::Tiles seen = mask.tiles(block_query + first_row, kRows, kKeys);
    const int head = (work.batch * tiles.heads + work.head) / call.group;  // of k and v
    const float of_q = call.q_scale ? call.q_scale[head] : 1;
    const float of_k = call.k_scale ? call.k_scale[head] : 1;
    SoftmaxE4m3 softmax(call.scale_log2 * (of_q * of_k));
    Accumulator<16, kDim> out, of_tile;
    Accumulator<16, kDim>& sums = kAddsTiles ? of_tile : out;  // of the tensor cores
    Accumulator<16, kKeys> scores;
    WeightsE4m3<kKeys> weights;
    const auto hide_some = [&](int tile) {
      if (tile >= seen.whole_first && tile < seen.whole_last) return;
      hide(scores, mask, block_query + warp_row, tile * kKeys);
    };
    if (visited.first < visited.last) {
      const auto queries = smem + i * QueryBoxes::kBytes;
      const int first_keys = key_ring.next();
      wgmma_fence();
      tile::start_product_of_rows<E4m3, QueryBoxes, KeyBoxes>(scores, queries, first_row,
                                                              keys_of(first_keys));
      wgmma_commit();
      wgmma_wait<0>(registers_of(scores));
      key_ring.release(first_keys);
      hide_some(visited.first);
#pragma unroll
      for (int part = 0; part < kKeys / 32; ++part) softmax.weigh(scores, part, weights);
      softmax.take(scores, weights, out);
      const bool is_early = seen.last < visited.last && visited.first + 1 < visited.last;
      const int end = is_early ? visited.last - 1 : visited.last;
      for (int tile = visited.first + 1; tile < end; ++tile) {
        const int keys = key_ring.next();
        wgmma_fence();  // S = Q K^T
        tile::start_product_of_rows<E4m3, QueryBoxes, KeyBoxes>(scores, queries, first_row,
                                                                keys_of(keys));
        wgmma_commit();
        const int values = value_ring.next();  // O += P V, of the tile before
        start_product_with_values<ValueBoxes>(sums, weights, values_of(values), !kAddsTiles);
        wgmma_commit();
        wgmma_wait<1>(registers_of(scores));
        key_ring.release(keys);
        hide_some(tile);
        wgmma_wait<0>(registers_of(sums));  // which read the weights: they may change now
        value_ring.release(values);
        if (kAddsTiles) add(out, of_tile);
#pragma unroll
        for (int part = 0; part < kKeys / 32; ++part) softmax.weigh(scores, part, weights);
        softmax.take(scores, weights, out);
      }
      if (is_early) key_ring.drop();  // the others' last keys
      const int values = value_ring.next();
      wgmma_fence();
      start_product_with_values<ValueBoxes>(sums, weights, values_of(values), !kAddsTiles);
      wgmma_commit();
      wgmma_wait<0>(registers_of(sums));
      value_ring.release(values);
      if (kAddsTiles) add(out, of_tile);
      if (is_early) value_ring.drop();  // and their last values
    }
    // These queries have been read; those of the tile after the next one come there.
    if (is_first_lane) mbarrier_arrive(&mail.queries_empty[i]);
    float row_lse[2];
    softmax.finish(out, row_lse);
    if (call.v_scale) out.scale(call.v_scale[head]);
    store_permuted(out, call.o.rows(work.batch, work.head), block_query + warp_row, masks.queries);
    tile::store_lse(row_lse, call.lse, tiles, work, block_query + warp_row, masks.queries);
  }
}

/// Computes a call's attention by the kernels for 64 and 128 columns.
inline tile::Status launch_e4m3(const AttentionForward& p, void (*kernel_64)(CallE4m3),
                                void (*kernel_128)(CallE4m3), const char* name, void* stream) {
  const auto launch = [&](auto head_dim, auto kernel) -> tile::Status {
    using Plan = TilePlan<head_dim.value>;
    using QueryBoxes = typename Plan::QueryBoxes;
    using KeyBoxes = typename Plan::KeyBoxes;
    CallE4m3 call{};
    TILE_TRY(make_map<QueryBoxes>("q", p.type, p.q, p.batch, p.heads, p.queries, &call.q_map));
    if (p.keys > 0) {  // otherwise nothing is loaded by these maps
      TILE_TRY(make_map<KeyBoxes>("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &call.k_map));
      TILE_TRY(make_map<KeyBoxes>("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &call.v_map));
    }
    unsigned blocks = 0;
    TILE_TRY(tile::queue_of(p, Plan::kQueries, &call.tiles, &blocks));
    tile::StreamMemory taken;
    TILE_TRY(taken.allocate(sizeof(unsigned), stream));
    call.taken = static_cast<unsigned*>(taken.data());
    call.o = tile::heads_of<__nv_bfloat16>(p.o);
    call.lse = p.lse;
    call.q_scale = p.q_scale, call.k_scale = p.k_scale, call.v_scale = p.v_scale;
    call.masks = masks_of(p);
    call.group = group_of(p);
    call.scale_log2 = p.scale * kLog2E;
    return tile::launch(kernel, name, blocks, Plan::kThreads, Plan::kBytes, stream, call);
  };
  return p.head_dim == 64 ? launch(std::integral_constant<int, 64>{}, kernel_64)
                          : launch(std::integral_constant<int, 128>{}, kernel_128);
}

}  // namespace
}  // namespace flash_attention
