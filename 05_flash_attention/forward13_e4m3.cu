// Forward, step 13: 8 bits.
// Idea: tensor cores multiply twice as many e4m3 as bf16, and these are half of the bytes. wgmma
//       reads 8 bits along the sum only, so two warps transpose the values on their way.
// Change: from step 12: values come into a ring of their own, and transposed into another. Keys are
//         permuted within a tile, so that sums of the scores become weights without a shuffle.
//         Queries are held in registers. Weights are up to 2^8.75, since e4m3 has few exponents.
//         Consumers take turns at 128 columns, too, and store the output themselves. Scales.
// Limit: the exponentials, which take as long as the products; and the bits that weights keep.
#include <string>

#include "eight_bits.cuh"
#include "flash_attention.cuh"
#include "tile/host/attention_argument.hpp"
#include "tile/host/query_queue.hpp"
#include "tile/host/stream_memory.hpp"
#include "tile/lazy_softmax.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace flash_attention {
namespace {

using namespace tile::ptx;
using tile::Accumulator, tile::QueryTiles, tile::RingPlace;

constexpr int kRows = 64;      // of a consumer: those of one wgmma
constexpr int kFirstTurn = 1;  // barrier
constexpr int kTop = 7;        // the greatest weight of a row is 2^7 to 2^8.75
constexpr int kFirstTransposer = 2, kTransposers = 2;  // warps of the first warpgroup

template <int kDim>
struct TilePlan {
  // Scores, weights, queries, and sums of the output are 160 registers of 232, or 120; with those
  // of a tile besides, and at 128 columns without the queries, 208 or 152.
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
struct Mailboxes : tile::Mailbox<Plan> {
  Mbarrier loaded_full[Plan::kLoadedStages], loaded_empty[Plan::kLoadedStages];
  Mbarrier values_full[Plan::kStages], values_empty[Plan::kStages];

  __device__ void init() {
    tile::Mailbox<Plan>::init(kTransposers + Plan::kConsumers * 4);  // a lane of each warp
    tile::init_ring(loaded_full, loaded_empty, kTransposers);
    for (int stage = 0; stage < Plan::kStages; ++stage) {
      mbarrier_init(&values_full[stage], kTransposers);
      mbarrier_init(&values_empty[stage], Plan::kConsumers);
    }
  }
};

// snippet-begin load
/// One thread loads: the queries of a tile, and the keys and values that they see.
template <class Plan>
__device__ __forceinline__ void load(Mailboxes<Plan>& mail, SharedAddress smem,
                                     const tile::TensorMap& q_map, const tile::TensorMap& k_map,
                                     const tile::TensorMap& v_map, const QueryTiles& tiles,
                                     const BatchMasks& masks, int group, unsigned* taken) {
  using QueryBoxes = typename Plan::QueryBoxes;
  using KeyBoxes = typename Plan::KeyBoxes;
  RingPlace<Plan::kStages> key_place;
  RingPlace<Plan::kLoadedStages> value_place;
  RingPlace<Plan::kQueryStages> tile_place;
  for (unsigned at = blockIdx.x, next = 0;; at = next, tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_empty[i], tile_place.parity ^ 1);
    mail.work_at[i] = at;
    if (at >= tiles.all) return mbarrier_arrive(&mail.queries_full[i]);  // tells all to end
    next = gridDim.x + atomicAdd(taken, 1u);  // the first ones are those of the grid
    const BlockWork work = tiles.work(at);
    const int first_query = work.tile * Plan::kQueries;
    mbarrier_arrive_expect(&mail.queries_full[i], QueryBoxes::kBytes);
    QueryBoxes::load(smem + i * QueryBoxes::kBytes, q_map, first_query, work.head, work.batch,
                     &mail.queries_full[i]);
    const auto copy = [&](auto& place, Mbarrier* full, Mbarrier* empty, int stages_at,
                          const tile::TensorMap& map, int tile) {
      const int stage = place.stage;
      mbarrier_wait(&empty[stage], place.parity ^ 1);
      mbarrier_arrive_expect(&full[stage], KeyBoxes::kBytes);
      KeyBoxes::load(smem + stages_at + stage * KeyBoxes::kBytes, map, tile * Plan::kKeys,
                     work.head / group, work.batch, &full[stage]);
      place.advance();
    };
    const auto visited = masks.of(work.batch).tiles(first_query, Plan::kQueries, Plan::kKeys);
    for (int tile = visited.first; tile < visited.last; ++tile) {
      copy(key_place, mail.full, mail.empty, Plan::kKeysAt, k_map, tile);
      copy(value_place, mail.loaded_full, mail.loaded_empty, Plan::kLoadedAt, v_map, tile);
    }
  }
}
// snippet-end load

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

/// If kAddsTiles, tensor cores add up the products of one tile of keys, and the threads add these
/// sums in fp32.
template <int kDim, bool kAddsTiles>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1)
    attention_e4m3(const __grid_constant__ tile::TensorMap q_map,  // [batch][heads][queries][kDim]
                   const __grid_constant__ tile::TensorMap k_map,  // … [heads / group][keys] …
                   const __grid_constant__ tile::TensorMap v_map,  // as k
                   Heads<__nv_bfloat16> o,                         // [batch][queries][heads][kDim]
                   float* lse,       // [batch][heads][queries], or null
                   unsigned* taken,  // 0 at first: tiles that blocks have taken
                   const float* q_scale, const float* k_scale,  // [batch][heads / group], or null
                   const float* v_scale,                        // the same
                   QueryTiles tiles, BatchMasks masks, int group, float scale_log2) {
  using Plan = TilePlan<kDim>;
  constexpr int kConsumers = Plan::kConsumers, kKeys = Plan::kKeys;
  constexpr bool kHoldsQueries = kDim == 64 || !kAddsTiles;  // in registers, if there are enough
  using QueryBoxes = typename Plan::QueryBoxes;
  using KeyBoxes = typename Plan::KeyBoxes;
  using ValueBoxes = typename Plan::ValueBoxes;
  // {[kQueryStages]{queries}, [kStages]{keys}, [kLoadedStages]{values}, [kStages]{transposed}}
  extern __shared__ __align__(1024) unsigned char dynamic_smem[];
  __shared__ Mailboxes<Plan> mail;
  const SharedAddress smem(dynamic_smem);
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) mail.init();
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x == 0) {
      load<Plan>(mail, smem, q_map, k_map, v_map, tiles, masks, group, taken);
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
  const tile::Turns<kConsumers, kFirstTurn, true> turn(warpgroup);
  for (RingPlace<Plan::kQueryStages> tile_place;; tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_full[i], tile_place.parity);
    // Shuffled, so that ptxas knows that the warp stays together, as wgmma must have it.
    const unsigned at = __shfl_sync(tile::kAllLanes, mail.work_at[i], 0);
    if (at >= tiles.all) break;
    const BlockWork work = tiles.work(at);
    const Mask mask = masks.of(work.batch);
    const int block_query = work.tile * Plan::kQueries;
    const int warp_row = first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
    const Mask::Tiles visited = mask.tiles(block_query, Plan::kQueries, kKeys);
    const Mask::Tiles seen = mask.tiles(block_query + first_row, kRows, kKeys);
    const int head = (work.batch * tiles.heads + work.head) / group;  // of k and v
    const float of_q = q_scale ? q_scale[head] : 1, of_k = k_scale ? k_scale[head] : 1;
    tile::LazySoftmax<16, kTop> softmax(scale_log2 * (of_q * of_k));
    Accumulator<16, kDim> out, of_tile;
    Accumulator<16, kDim>& sums = kAddsTiles ? of_tile : out;  // of the tensor cores
    Accumulator<16, kKeys> scores;
    WeightsE4m3<kKeys> weights;
    const auto hide_some = [&](int tile) {
      if (tile >= seen.whole_first && tile < seen.whole_last) return;
      hide(scores, mask, block_query + warp_row, tile * kKeys);
    };
    const auto weigh_all = [&] {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) softmax.weigh(scores, n);
    };
    if (visited.first < visited.last) {
      const QueryOperand<QueryBoxes, KeyBoxes, kHoldsQueries> queries(smem + i * QueryBoxes::kBytes,
                                                                      first_row, warp_row);
      if (kHoldsQueries) __syncwarp();  // all lanes have read them
      const int first_keys = key_ring.next();
      wgmma_fence();
      queries.start_product(scores, keys_of(first_keys));
      wgmma_commit();
      wgmma_wait<0>(registers_of(scores));
      key_ring.release(first_keys);
      hide_some(visited.first);
      softmax.look_at(scores, out);
      weigh_all();
      weights = as_e4m3(scores);
      const bool is_early = seen.last < visited.last && visited.first + 1 < visited.last;
      const int end = is_early ? visited.last - 1 : visited.last;
      for (int tile = visited.first + 1; tile < end; ++tile) {
        const int keys = key_ring.next();
        turn.take();
        wgmma_fence();  // S = Q K^T
        queries.start_product(scores, keys_of(keys));
        wgmma_commit();
        const int values = value_ring.next();  // O += P V, of the tile before
        start_product_with_values<ValueBoxes>(sums, weights, values_of(values), !kAddsTiles);
        wgmma_commit();
        turn.pass();
        wgmma_wait<1>(registers_of(scores));  // the output is still under way
        key_ring.release(keys);
        hide_some(tile);
        tile::Corrections<16> later;
        const bool is_raised = softmax.look_at(scores, later);
        weigh_all();
        wgmma_wait<0>(registers_of(sums));
        value_ring.release(values);
        if (kAddsTiles) add(out, of_tile);
        for (int r = 0; is_raised && r < 2; ++r) out.scale_row(r, later.of[r]);
        weights = as_e4m3(scores);
      }
      if (is_early) turn.take(), turn.pass(), key_ring.drop();  // the others' last keys
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
    if (threadIdx.x % tile::kWarp == 0) mbarrier_arrive(&mail.queries_empty[i]);
    float row_lse[2];
    softmax.finish(out, row_lse);
    if (v_scale) out.scale(v_scale[head]);
    store_permuted(out, o.rows(work.batch, work.head), block_query + warp_row, masks.queries);
    tile::store_lse(row_lse, lse_of_head(lse, work, tiles.heads, masks.queries),
                    block_query + warp_row, masks.queries);
  }
  turn.end();
}

}  // namespace

tile::Status takes_e4m3(const AttentionForward& p, const tile::Device&) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  TILE_TRY(tile::check_boxes(p, false, false));
  return tile::check_row_chunks(tile::output_type(p), {tile::output_rows(p, "o", p.o)});
}

tile::Status e4m3(const AttentionForward& p, void* stream) {
  const auto launch = [&](auto head_dim, auto adds_tiles) -> tile::Status {
    constexpr int kDim = head_dim.value;
    using Plan = TilePlan<kDim>;
    using QueryBoxes = typename Plan::QueryBoxes;
    using KeyBoxes = typename Plan::KeyBoxes;
    tile::TensorMap q_map{}, k_map{}, v_map{};
    TILE_TRY(QueryBoxes::make_map("q", p.type, p.q, p.batch, p.heads, p.queries, &q_map));
    if (p.keys > 0) {  // otherwise nothing is loaded by these maps
      TILE_TRY(KeyBoxes::make_map("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k_map));
      TILE_TRY(KeyBoxes::make_map("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v_map));
    }
    QueryTiles tiles{};
    unsigned blocks = 0;
    TILE_TRY(tile::queue_of(p, Plan::kQueries, &tiles, &blocks));
    tile::StreamMemory taken;
    TILE_TRY(taken.allocate(sizeof(unsigned), stream));
    return tile::launch(attention_e4m3<kDim, adds_tiles.value>, "attention_e4m3", blocks,
                        Plan::kThreads, Plan::kBytes, stream, q_map, k_map, v_map,
                        tile::heads_of<__nv_bfloat16>(p.o), p.lse,
                        static_cast<unsigned*>(taken.data()), p.q_scale, p.k_scale, p.v_scale,
                        tiles, masks_of(p), group_of(p), p.scale * kLog2E);
  };
  const auto with_dim = [&](auto adds_tiles) {
    return p.head_dim == 64 ? launch(std::integral_constant<int, 64>{}, adds_tiles)
                            : launch(std::integral_constant<int, 128>{}, adds_tiles);
  };
  return p.keys > kMostKeysOfSums ? with_dim(std::true_type{}) : with_dim(std::false_type{});
}

}  // namespace flash_attention
