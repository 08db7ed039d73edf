// Forward, step 5: two visits by TMA and wgmma.
// Idea: as step 4, with chapter 05's step 9. Both Q1 and Q2 stay in shared memory, so that no
//       thread waits where the parts of the mask meet: the near keys are copied while the far ones
//       are multiplied.
// Change: chapter 05's step 9 (`wgmma`), with a loop over the parts on both sides of its ring.
// Limit: as in that step.
#include "tile/head_boxes.cuh"
#include "tile/host/head_boxes.hpp"
#include "tile/lazy_softmax.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"
#include "windowed/launch.hpp"

namespace windowed_rope {
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
  static constexpr int kBytes = (2 * kQueries + kStages * kKeys) * kDim * 2;
};

// snippet-begin kernel
template <class T, int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1)
    windowed_wgmma(const __grid_constant__ tile::TensorMap q1_map,  // [batch][heads][queries][kDim]
                   const __grid_constant__ tile::TensorMap k1_map,  // … [heads / group][keys] …
                   const __grid_constant__ tile::TensorMap q2_map,  // as q1
                   const __grid_constant__ tile::TensorMap k2_map,  // as k1
                   const __grid_constant__ tile::TensorMap v_map,   // as k1
                   Heads<T> o,                                      // [batch][queries][heads][kDim]
                   float* lse,  // [batch][heads][queries], or null
                   BatchMasks masks, Window window, int batch, int heads, int group,
                   float scale_log2) {
  using namespace tile::ptx;
  using Plan = TilePlan<kDim>;
  constexpr int kConsumers = Plan::kConsumers, kQueries = Plan::kQueries;
  constexpr int kStages = Plan::kStages;
  using QueryBoxes = tile::HeadBoxes<T, kQueries, kDim>;
  using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {q2, q1, [kStages]{keys or values}}
  __shared__ Mbarrier queries_full, full[kStages], empty[kStages];
  const SharedAddress q_smem(smem), stages = q_smem + 2 * QueryBoxes::kBytes;
  const auto stage = [&](int i) { return stages + i * KeyBoxes::kBytes; };
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    mbarrier_init(&queries_full, 1);
    tile::init_ring(full, empty, kConsumers);  // a thread of each
  }
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  const auto work = work_longest_first(batch, heads, (masks.queries + kQueries - 1) / kQueries);
  const int block_query = work.tile * kQueries, entry_keys = masks.of(work.batch).keys;
  // First the far keys, with Q2 and K2, then the near ones, with Q1 and K1
  const auto part_of = [&](int part) { return window.part(masks.of(work.batch), part); };
  tile::RingPlace<kStages> place;

  // snippet-begin producer
  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    const auto copy = [&](const tile::TensorMap& map, int tile) {
      mbarrier_wait(&empty[place.stage], place.parity ^ 1);
      mbarrier_arrive_expect(&full[place.stage], KeyBoxes::kBytes);
      KeyBoxes::load(stage(place.stage), map, tile * kKeys, work.head / group, work.batch,
                     &full[place.stage]);
      place.advance();
    };
    int before = kNoTile;  // tile of the last keys; its values are loaded after the next keys
    for (int part = 0; part < Window::kParts; ++part) {
      const Mask::Tiles visited = part_of(part).tiles(block_query, kQueries, kKeys);
      for (int tile = visited.first; tile < visited.last; before = tile++) {
        if (before == kNoTile) {
          mbarrier_arrive_expect(&queries_full, 2 * QueryBoxes::kBytes);
          QueryBoxes::load(q_smem, q2_map, block_query, work.head, work.batch, &queries_full);
          QueryBoxes::load(q_smem + QueryBoxes::kBytes, q1_map, block_query, work.head, work.batch,
                           &queries_full);
        }
        copy(Window::is_near(part) ? k1_map : k2_map, tile);
        if (before != kNoTile) copy(v_map, before);
      }
    }
    if (before != kNoTile) copy(v_map, before);
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
  const auto start_output = [&](int at, int tile) {  // O += P V
    // Rows past this entry's length may hold anything, and 0 times that may be NaN.
    if (const int rows = entry_keys - tile * kKeys; rows < kKeys && entry_keys < masks.keys) {
      KeyBoxes::template clear<kConsumers * tile::kWarpgroup>(stage(at), rows);
      fence_async_proxy();                             // wgmma sees what this thread has cleared
      barrier_sync(1, kConsumers * tile::kWarpgroup);  // and what all others have
    }
    wgmma_fence();
    tile::start_product_with_columns<T, KeyBoxes>(out, weights, stage(at));
  };
  int before = kNoTile;  // the tile whose weights are in registers
  const auto visit = [&](const Mask& mask, bool near, int tile, auto is_border) {
    const int keys = place.wait_next(full);
    if (before == kNoTile) mbarrier_wait(&queries_full, 0);
    wgmma_fence();  // S = Q K^T
    tile::start_product_of_rows<T, QueryBoxes, KeyBoxes>(scores, q_smem + near * QueryBoxes::kBytes,
                                                         first_row, stage(keys));
    wgmma_commit();
    const int values = before == kNoTile ? kNoTile : place.wait_next(full);
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
  // snippet-begin parts
  for (int part = 0; part < Window::kParts; ++part) {
    const Mask mask = part_of(part);
    const Mask::Tiles visited = mask.tiles(block_query, kQueries, kKeys);
    const bool near = Window::is_near(part);
    int tile = visited.first;
    for (; tile < visited.whole_first; ++tile) visit(mask, near, tile, std::true_type{});
    for (; tile < visited.whole_last; ++tile) visit(mask, near, tile, std::false_type{});
    for (; tile < visited.last; ++tile) visit(mask, near, tile, std::true_type{});
  }
  // snippet-end parts
  if (before != kNoTile) {
    start_output(place.wait_next(full), before);
    wgmma_commit();
    wgmma_wait<0>(registers_of(out));
  }
  float row_lse[2];
  softmax.finish(out, row_lse);
  store(out, o.rows(work.batch, work.head), warp_query, masks.queries);
  tile::store_lse(row_lse, lse_of_head(lse, work, heads, masks.queries), warp_query, masks.queries);
}
// snippet-end kernel

}  // namespace

tile::Status takes_wgmma(const AttentionForward& p, const tile::Device&) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  if (p.keys == 0) return tile::unsupported("keys", "there are none");
  TILE_TRY(check_chunks(p));
  return tile::check_boxes(p, true, false);
}

tile::Status wgmma(const AttentionForward& p, void* stream) {
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    using Plan = TilePlan<kDim>;
    using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
    using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
    tile::TensorMap q1, k1, q2, k2, v;
    TILE_TRY(make_map<QueryBoxes>("q", p.type, p.q, p.batch, p.heads, p.queries, &q1));
    TILE_TRY(make_map<KeyBoxes>("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k1));
    TILE_TRY(make_map<QueryBoxes>("q_far", p.type, p.q_far, p.batch, p.heads, p.queries, &q2));
    TILE_TRY(make_map<KeyBoxes>("k_far", p.type, p.k_far, p.batch, p.kv_heads, p.keys, &k2));
    TILE_TRY(make_map<KeyBoxes>("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v));
    unsigned blocks = 0;
    TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, Plan::kQueries, &blocks));
    return tile::launch(windowed_wgmma<T, kDim>, "windowed_wgmma", blocks, Plan::kThreads,
                        Plan::kBytes, stream, q1, k1, q2, k2, v, heads_of<T>(p.o), p.lse,
                        masks_of(p), window_of(p), p.batch, p.heads, group_of(p), p.scale * kLog2E);
  });
}

}  // namespace windowed_rope
