// Forward, step 13: 8 bits.
// Idea: tensor cores multiply twice as many e4m3 as bf16, and these are half of the bytes. wgmma
//       reads 8 bits along the sum only, so two warps transpose the values on their way.
// Change: from step 12: values come into a ring of their own, and transposed into another. Keys are
//         permuted within a tile, so that sums of the scores become weights without a shuffle.
//         Weights are up to 448, since e4m3 has few exponents, and are made before it is known
//         whether they fit. Consumers store the output themselves. Scales.
// Limit: tensor cores keep 14 bits of a sum, and cut the rest off: with 100,000 keys an eighth of
//        the output may be missing.
#include <string>

#include "eight_bits.cuh"
#include "launch.hpp"
#include "queue_e4m3.cuh"
#include "tile/host/stream_memory.hpp"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace flash_attention {
namespace {

using tile::Accumulator, tile::QueryTiles;

constexpr int kRows = 64;  // of a consumer: those of one wgmma

template <int kDim>
struct TilePlan {
  // Scores, weights, and sums of the output are 144 registers of 232, or 112.
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

/// Warps that transpose values. Rows past an entry's length may hold anything, and 0 times that may
/// be NaN: they become zeros here.
template <class Plan>
__device__ __forceinline__ void transpose(MailE4m3<Plan>& mail, tile::ptx::SharedAddress smem,
                                          const BatchMasks& masks) {
  using namespace tile::ptx;
  using KeyBoxes = typename Plan::KeyBoxes;
  using ValueBoxes = typename Plan::ValueBoxes;
  const int warp = static_cast<int>(threadIdx.x / tile::kWarp) - kFirstTransposer;
  const bool is_leader = threadIdx.x % tile::kWarp == 0;
  // Counted, where a RingPlace has two registers: these warps have few.
  unsigned count = 0;  // of tiles of values
  for (unsigned tile_count = 0;; ++tile_count) {
    const int i = tile_count % Plan::kQueryStages;
    mbarrier_wait(&mail.queries_full[i], tile_count / Plan::kQueryStages % 2);
    const BlockWork work = mail.work[i];
    if (work.is_none()) return;
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

template <int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1)
    attention_e4m3(const __grid_constant__ tile::TensorMap q_map,  // [batch][heads][queries][kDim]
                   const __grid_constant__ tile::TensorMap k_map,  // … [heads / group][keys] …
                   const __grid_constant__ tile::TensorMap v_map,  // as k
                   Heads<__nv_bfloat16> o,                         // [batch][queries][heads][kDim]
                   float* lse,            // [batch][heads][queries], or null
                   const float* q_scale,  // [batch][heads / group], or null
                   const float* k_scale,  // as q_scale
                   const float* v_scale,  // as q_scale
                   unsigned* taken,       // 0 at first: tiles that blocks have taken
                   QueryTiles tiles, BatchMasks masks, int group, float scale_log2) {
  using namespace tile::ptx;
  using Plan = TilePlan<kDim>;
  constexpr int kKeys = Plan::kKeys;
  using QueryBoxes = typename Plan::QueryBoxes;
  using KeyBoxes = typename Plan::KeyBoxes;
  using ValueBoxes = typename Plan::ValueBoxes;
  // {[kQueryStages]{queries}, [kStages]{keys}, [kLoadedStages]{values}, [kStages]{transposed}}
  extern __shared__ __align__(1024) unsigned char dynamic_smem[];
  __shared__ MailE4m3<Plan> mail;
  const SharedAddress smem(dynamic_smem);
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) mail.init();
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x == 0) {
      load_e4m3<Plan>(mail, smem, q_map, k_map, v_map, tiles, masks, group, taken);
    } else if (threadIdx.x >= kFirstTransposer * tile::kWarp) {
      transpose<Plan>(mail, smem, masks);
    }
    return;
  }
  setmaxnreg_inc<Plan::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * kRows;  // in the tile of queries
  const auto keys_of = [&](int i) { return smem + (Plan::kKeysAt + i * KeyBoxes::kBytes); };
  const auto values_of = [&](int i) { return smem + (Plan::kValuesAt + i * ValueBoxes::kBytes); };
  const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;
  tile::RingReader<Plan::kStages> key_ring(mail.keys_full, mail.keys_empty, is_leader);
  tile::RingReader<Plan::kStages> value_ring(mail.values_full, mail.values_empty, is_leader);
  for (tile::RingPlace<Plan::kQueryStages> tile_place;; tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_full[i], tile_place.parity);
    // As step 11: the lane that reads is the one that later gives the queries back.
    const BlockWork work = tile::read_by_first_lane(mail.work[i]);
    if (work.is_none()) break;
    const Mask mask = masks.of(work.batch);
    const int block_query = work.tile * Plan::kQueries;
    const int warp_row = first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
    const Mask::Tiles visited = mask.tiles(block_query, Plan::kQueries, kKeys);
    const Mask::Tiles seen = mask.tiles(block_query + first_row, kRows, kKeys);
    const int head = (work.batch * tiles.heads + work.head) / group;  // of k and v
    const float of_q = q_scale ? q_scale[head] : 1, of_k = k_scale ? k_scale[head] : 1;
    SoftmaxE4m3 softmax(scale_log2 * (of_q * of_k));
    Accumulator<16, kDim> out;
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
        start_product_with_values<ValueBoxes>(out, weights, values_of(values), true);
        wgmma_commit();
        wgmma_wait<1>(registers_of(scores));
        key_ring.release(keys);
        hide_some(tile);
        wgmma_wait<0>(registers_of(out));  // which read the weights: they may change now
        value_ring.release(values);
#pragma unroll
        for (int part = 0; part < kKeys / 32; ++part) softmax.weigh(scores, part, weights);
        softmax.take(scores, weights, out);
      }
      if (is_early) key_ring.drop();  // the others' last keys
      const int values = value_ring.next();
      wgmma_fence();
      start_product_with_values<ValueBoxes>(out, weights, values_of(values), true);
      wgmma_commit();
      wgmma_wait<0>(registers_of(out));
      value_ring.release(values);
      if (is_early) value_ring.drop();  // and their last values
    }
    // These queries have been read; those of the tile after the next one come there. The work is
    // read again: kept, it would take the loop's registers.
    const BlockWork same = tile::read_by_first_lane(mail.work[i]);
    if (threadIdx.x % tile::kWarp == 0) mbarrier_arrive(&mail.queries_empty[i]);
    float row_lse[2];
    softmax.finish(out, row_lse);
    if (v_scale) out.scale(v_scale[(same.batch * tiles.heads + same.head) / group]);
    store_permuted(out, o.rows(same.batch, same.head), same.tile * Plan::kQueries + warp_row,
                   masks.queries);
    tile::store_lse(row_lse, lse, tiles, same, same.tile * Plan::kQueries + warp_row,
                    masks.queries);
  }
}

}  // namespace

tile::Status takes_e4m3(const AttentionForward& p, const tile::Device&) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  return tile::check_boxes(p, false);
}

tile::Status e4m3(const AttentionForward& p, void* stream) {
  const auto launch = [&](auto head_dim) -> tile::Status {
    using Plan = TilePlan<head_dim.value>;
    using KeyBoxes = typename Plan::KeyBoxes;
    tile::TensorMap q_map, k_map{}, v_map{};
    TILE_TRY(
        make_map<typename Plan::QueryBoxes>("q", p.type, p.q, p.batch, p.heads, p.queries, &q_map));
    if (p.keys > 0) {  // otherwise nothing is loaded by these maps
      TILE_TRY(make_map<KeyBoxes>("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k_map));
      TILE_TRY(make_map<KeyBoxes>("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v_map));
    }
    QueryTiles tiles{};
    unsigned blocks = 0;
    TILE_TRY(tile::queue_of(p, Plan::kQueries, &tiles, &blocks));
    tile::StreamMemory taken;
    TILE_TRY(taken.allocate(sizeof(unsigned), stream));
    return tile::launch(attention_e4m3<head_dim.value>, "attention_e4m3", blocks, Plan::kThreads,
                        Plan::kBytes, stream, q_map, k_map, v_map,
                        tile::heads_of<__nv_bfloat16>(p.o), p.lse, p.q_scale, p.k_scale, p.v_scale,
                        static_cast<unsigned*>(taken.data()), tiles, masks_of(p), group_of(p),
                        p.scale * kLog2E);
  };
  return p.head_dim == 64 ? launch(std::integral_constant<int, 64>{})
                          : launch(std::integral_constant<int, 128>{});
}

}  // namespace flash_attention
