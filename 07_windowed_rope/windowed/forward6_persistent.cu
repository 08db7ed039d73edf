// Forward, step 6: two visits by persistent blocks.
// Idea: chapter 05's step 12, with a loop around its loop that goes from part to part. Warpgroups
//       take turns at the tensor cores also where far keys end and near ones begin. Q2 of a block's
//       next tile comes while near keys are visited, and Q1 when the output, which leaves by TMA
//       from Q1's place, is gone: while far keys of the next tile are visited.
// Change: chapter 05's step `persistent`. The values of a part's last tile are multiplied beside
//         the next part's first scores. An entry's keys may end in a far tile, so values are
//         cleared between parts, too. Q1 and Q2 have one place each, and each comes with the first
//         keys of its part.
// Limit: as in that step; and mixed tiles, which are visited twice.
#include <string>

#include "tile/host/query_queue.hpp"
#include "tile/host/stream_memory.hpp"
#include "tile/lazy_softmax.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "windowed/launch.hpp"
#include "windowed/visits.cuh"

namespace windowed_rope {
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
  static constexpr int kStages = kDim == 64 ? 11 : 5;
  static constexpr int kBytes = (2 * kQueries + kStages * kKeys) * kDim * 2;  // 224 KiB
};

// snippet-begin kernel
template <class T, int kDim>
__global__ void __launch_bounds__(TilePlan<kDim>::kThreads, 1) windowed_persistent(
    const __grid_constant__ ForwardMaps maps,  // q1, q2 and o [batch][heads][queries][kDim], k1, k2
                                               // and v [batch][heads / group][keys][kDim]
    float* lse,                                // [batch][heads][queries], or null
    unsigned* taken,                           // 0 at first: tiles that blocks have taken
    QueryTiles tiles, BatchMasks masks, Window window, int group, float scale_log2) {
  using namespace tile::ptx;
  using Plan = TilePlan<kDim>;
  constexpr int kConsumers = Plan::kConsumers, kKeys = Plan::kKeys;
  using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
  using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
  // {q2, {q1, then output}, [kStages]{keys or values}}
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ Mail<Plan> mail;
  const SharedAddress queries(smem), outputs = queries + QueryBoxes::kBytes;
  const SharedAddress stages = outputs + QueryBoxes::kBytes;
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) mail.init();
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  if (warpgroup == 0) {
    setmaxnreg_dec<Plan::kProducerRegisters>();
    if (threadIdx.x == 0) {
      load_tiles<Plan, QueryBoxes, KeyBoxes>(mail, queries, stages, maps, tiles, masks, window,
                                             group, taken);
    } else if (threadIdx.x == tile::kWarp) {
      store_tiles<Plan, QueryBoxes>(mail, outputs, maps.o);
    }
    return;
  }
  setmaxnreg_inc<Plan::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * kRows;  // in the tile of queries
  const auto stage = [&](int i) { return stages + i * KeyBoxes::kBytes; };
  const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
  tile::RingReader<Plan::kStages> ring(mail.full, mail.empty, is_leader);
  const tile::Turns<kConsumers, kFirstTurn, kDim == 64> turn(warpgroup);
  int n = 0;
  for (;; ++n) {
    const int i = n % 2;
    mbarrier_wait(&mail.work_full[i], n / 2 % 2);
    const BlockWork work = tile::read_by_first_lane(mail.work[i]);
    if (work.is_none()) break;
    const int block_row = work.tile * Plan::kQueries;
    const int warp_row = first_row + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
    LazySoftmax<16> softmax(scale_log2);
    Accumulator<16, kDim> out;
    Accumulator<16, kKeys> scores;
    Fragment<16, kKeys> weights;
    Visits<Plan::kQueries, kRows, kKeys> visits{masks, window, work, first_row};
    const auto start_scores = [&](SharedAddress q_smem, int keys) {  // S = Q K^T
      wgmma_fence();
      tile::start_product_of_rows<T, QueryBoxes, KeyBoxes>(scores, q_smem, first_row, stage(keys));
      wgmma_commit();
    };
    const auto weigh_all = [&] {
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) softmax.weigh(scores, j);
    };
    const auto clear_some = [&](int values, int rows) {
      if (rows == kKeys) return;
      KeyBoxes::template clear<kConsumers * tile::kWarpgroup>(stage(values), rows);
      fence_async_proxy();  // wgmma sees what this thread has cleared, and what all others have
      barrier_sync(kAllConsumers, kConsumers * tile::kWarpgroup);
    };
    const auto end_far = [&] {
      if (is_leader) mbarrier_arrive(&mail.far_empty);
    };
    if (visits.next(end_far)) {
      const int first_keys = ring.next();
      start_scores(queries + visits.is_near() * QueryBoxes::kBytes, first_keys);
      wgmma_wait<0>(registers_of(scores));
      ring.release(first_keys);
      visits.hide(scores, block_row + warp_row, visits.visited.first);
      softmax.look_at(scores, out);
      weigh_all();
      weights = tile::as_fragment<T>(scores);
      int rows;  // of a part's last tile
      for (int tile = visits.visited.first + 1;; tile = visits.visited.first) {
        const SharedAddress q_smem = queries + visits.is_near() * QueryBoxes::kBytes;
        for (; tile < visits.visited.last; ++tile) {
          const int keys = ring.next();
          turn.take();
          start_scores(q_smem, keys);
          const int values = ring.next();
          tile::start_product_with_columns<T, KeyBoxes>(out, weights, stage(values));  // O += P V
          wgmma_commit();
          turn.pass();
          wgmma_wait<1>(registers_of(scores));  // the output is still under way
          ring.release(keys);
          visits.hide(scores, block_row + warp_row, tile);
          tile::Corrections<16> later;
          const bool is_raised = softmax.look_at(scores, later);
          weigh_all();
          wgmma_wait<0>(registers_of(out));
          ring.release(values);
          for (int r = 0; is_raised && r < 2; ++r) out.scale_row(r, later.of[r]);
          weights = tile::as_fragment<T>(scores);
        }
        rows = visits.last_rows();
        if (!visits.next(end_far)) break;
        auto ahead = ring;  // to the last tile's values, which come after the next keys
        ahead.next();
        clear_some(ahead.next(), rows);
      }
      if (visits.is_early) turn.take(), turn.pass(), ring.drop();  // the others' last keys
      const int values = ring.next();
      clear_some(values, rows);
      wgmma_fence();
      tile::start_product_with_columns<T, KeyBoxes>(out, weights, stage(values));
      wgmma_commit();
      wgmma_wait<0>(registers_of(out));
      ring.release(values);
      if (visits.is_early) ring.drop();  // and their last values
    }
    float row_lse[2];
    softmax.finish(out, row_lse);
    mbarrier_wait(&mail.near_empty, n % 2 ^ 1);  // the output before this one has left
    QueryBoxes::store_warp(tile::as_fragment<T>(out), outputs, warp_row);
    fence_async_proxy();                  // TMA sees what this lane has stored
    const BlockWork same = mail.work[i];  // read again: kept, it would take the loop's registers
    __syncwarp();                         // and what the others have stored; all have read
    mail.end_tile(n);
    tile::store_lse(row_lse, lse, tiles, same, same.tile * Plan::kQueries + warp_row,
                    masks.queries);
  }
  mail.end_tile(n);
  turn.end();
}
// snippet-end kernel

}  // namespace

tile::Status takes_persistent(const AttentionForward& p, const tile::Device&) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  if (p.keys == 0) return tile::unsupported("keys", "there are none");
  TILE_TRY(check_chunks(p));
  return tile::check_boxes(p, true);
}

tile::Status persistent(const AttentionForward& p, void* stream) {
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    using Plan = TilePlan<kDim>;
    using QueryBoxes = tile::HeadBoxes<T, Plan::kQueries, kDim>;
    using KeyBoxes = tile::HeadBoxes<T, Plan::kKeys, kDim>;
    ForwardMaps maps;
    TILE_TRY(make_map<QueryBoxes>("q", p.type, p.q, p.batch, p.heads, p.queries, &maps.q1));
    TILE_TRY(make_map<KeyBoxes>("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &maps.k1));
    TILE_TRY(make_map<QueryBoxes>("q_far", p.type, p.q_far, p.batch, p.heads, p.queries, &maps.q2));
    TILE_TRY(make_map<KeyBoxes>("k_far", p.type, p.k_far, p.batch, p.kv_heads, p.keys, &maps.k2));
    TILE_TRY(make_map<KeyBoxes>("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &maps.v));
    TILE_TRY(make_map<QueryBoxes>("o", p.type, p.o, p.batch, p.heads, p.queries, &maps.o));
    QueryTiles tiles{};
    unsigned blocks = 0;
    TILE_TRY(tile::queue_of(p, Plan::kQueries, &tiles, &blocks));
    tile::StreamMemory taken;
    TILE_TRY(taken.allocate(sizeof(unsigned), stream));
    return tile::launch(windowed_persistent<T, kDim>, "windowed_persistent", blocks, Plan::kThreads,
                        Plan::kBytes, stream, maps, p.lse, static_cast<unsigned*>(taken.data()),
                        tiles, masks_of(p), window_of(p), group_of(p), p.scale * kLog2E);
  });
}

}  // namespace windowed_rope
