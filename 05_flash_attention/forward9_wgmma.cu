// Forward, step 9: TMA and wgmma.
// Idea: one warpgroup copies, the others multiply, as in chapter 02's step 16. The scores of the
//       next keys and the output of the current ones are multiplied together, and the tensor cores
//       are still busy with the output while the next weights are computed.
// Change: wgmma instead of mma, 64 queries for a warpgroup; one ring for keys and values. Head
//         dimensions 64 and 128.
// Limit: all consumers need the tensor cores at the same time, and then all need the unit of the
//        exponentials. A block has one tile of queries, and waits at its beginning and its end.
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

template <int kDim>
struct TilePlan {
  // A thread holds 64 scores, 128 / 4 registers of weights and kDim / 2 sums of the output: of its
  // registers 128 of 160, or 160 of 232.
  static constexpr int kConsumers = kDim == 64 ? 3 : 2;
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
    attention_wgmma(const __grid_constant__ tile::TensorMap q_map,  // [batch][heads][queries][kDim]
                    const __grid_constant__ tile::TensorMap k_map,  // … [heads / group][keys] …
                    const __grid_constant__ tile::TensorMap v_map,  // as k
                    Heads<T> o,                                     // [batch][queries][heads][kDim]
                    float* lse,  // [batch][heads][queries], or null
                    BatchMasks masks, int batch, int heads, int group, float scale_log2) {
  using namespace tile::ptx;
  using Plan = TilePlan<kDim>;
  constexpr int kConsumers = Plan::kConsumers, kQueries = Plan::kQueries;
  constexpr int kStages = Plan::kStages;
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

  // snippet-begin producer
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
  // snippet-end producer

  setmaxnreg_inc<Plan::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * kRows;  // in the tile of queries
  const int warp_query = block_query + first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
  LazySoftmax<16> softmax(scale_log2);
  Accumulator<16, kDim> out;
  Accumulator<16, kKeys> scores;
  Fragment<16, kKeys> weights;
  const auto release = [&](int at) {
    if (is_leader) mbarrier_arrive(&empty[at]);
  };
  // Both start a product without waiting, and return the stage that it reads.
  // snippet-begin products
  const auto next_stage = [&] {  // the ring's wait_next() made the kernel 2 % slower on an H200
    const int at = place.stage;
    mbarrier_wait(&full[at], place.parity);
    place.advance();
    return at;
  };
  const auto start_output = [&](int at, int tile) {  // O += P V
    // Rows past this entry's length may hold anything, and 0 times that may be NaN.
    if (const int rows = mask.keys - tile * kKeys; rows < kKeys && mask.keys < masks.keys) {
      KeyBoxes::template clear<kConsumers * tile::kWarpgroup>(stage(at), rows);
      fence_async_proxy();                             // wgmma sees what this thread has cleared
      barrier_sync(1, kConsumers * tile::kWarpgroup);  // and what all others have
    }
    wgmma_fence();
    tile::start_product_with_columns<T, KeyBoxes>(out, weights, stage(at));
  };
  // snippet-end products
  int before = kNoTile;  // the tile whose weights are in registers
  // snippet-begin visit
  const auto visit = [&](int tile, auto is_border) {
    const int keys = next_stage();
    wgmma_fence();  // S = Q K^T
    tile::start_product_of_rows<T, QueryBoxes, KeyBoxes>(scores, q_smem, first_row, stage(keys));
    wgmma_commit();
    const int values = before == kNoTile ? kNoTile : next_stage();
    if (before != kNoTile) start_output(values, before);
    wgmma_commit();                       // an empty group for the first tile
    wgmma_wait<1>(registers_of(scores));  // the output is still under way
    release(keys);
    if constexpr (decltype(is_border)::value) hide(scores, mask, warp_query, tile * kKeys);
    tile::Corrections<16> later;
    const bool is_raised = softmax.look_at(scores, later);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) softmax.weigh(scores, n);
    wgmma_wait<0>(registers_of(out));
    if (before != kNoTile) release(values);
    for (int r = 0; is_raised && r < 2; ++r) out.scale_row(r, later.of[r]);
    weights = tile::as_fragment<T>(scores);
    before = tile;
  };
  // snippet-end visit
  if (visited.first < visited.last) {
    mbarrier_wait(&queries_full, 0);
    int tile = visited.first;
    for (; tile < visited.whole_first; ++tile) visit(tile, std::true_type{});
    for (; tile < visited.whole_last; ++tile) visit(tile, std::false_type{});
    for (; tile < visited.last; ++tile) visit(tile, std::true_type{});
    start_output(next_stage(), before);
    wgmma_commit();
    wgmma_wait<0>(registers_of(out));
  }
  float row_lse[2];
  softmax.finish(out, row_lse);
  store(out, o.rows(work.batch, work.head), warp_query, masks.queries);
  tile::store_lse(row_lse, lse_of_head(lse, work, heads, masks.queries), warp_query, masks.queries);
}

/// The descriptions of q, k and v for TMA.
struct Boxed {
  tile::BoxedTensor q, k, v;
};
template <int kDim>
Boxed boxed(const AttentionForward& p) {
  using QueryBoxes = tile::HeadBoxes<__half, TilePlan<kDim>::kQueries, kDim>;  // as of bf16
  using KeyBoxes = tile::HeadBoxes<__half, kKeys, kDim>;
  return {tile::boxed_heads<QueryBoxes>(p.type, p.q, p.batch, p.heads, p.queries),
          tile::boxed_heads<KeyBoxes>(p.type, p.k, p.batch, p.kv_heads, p.keys),
          tile::boxed_heads<KeyBoxes>(p.type, p.v, p.batch, p.kv_heads, p.keys)};
}

}  // namespace

tile::Status takes_wgmma(const AttentionForward& p, const tile::Device& device) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  TILE_TRY(takes_many_queries(p, device));
  const Boxed tensors = p.head_dim == 64 ? boxed<64>(p) : boxed<128>(p);
  TILE_TRY(tile::check_tensor_map("q", tensors.q));
  TILE_TRY(tile::check_tensor_map("k", tensors.k));
  return tile::check_tensor_map("v", tensors.v);
}

tile::Status wgmma(const AttentionForward& p, void* stream) {
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value == 128 ? 128 : 64;
        using Plan = TilePlan<kDim>;
        const Boxed tensors = boxed<kDim>(p);
        tile::TensorMap q_map, k_map, v_map;
        TILE_TRY(tile::make_tensor_map("q", tensors.q, &q_map));
        TILE_TRY(tile::make_tensor_map("k", tensors.k, &k_map));
        TILE_TRY(tile::make_tensor_map("v", tensors.v, &v_map));
        unsigned blocks = 0;
        TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, Plan::kQueries, &blocks));
        return tile::launch(attention_wgmma<T, kDim>, "attention_wgmma", blocks, Plan::kThreads,
                            Plan::kBytes, stream, q_map, k_map, v_map, heads_of<T>(p.o), p.lse,
                            masks_of(p), p.batch, p.heads, group_of(p), p.scale * kLog2E);
      });
}

}  // namespace flash_attention
