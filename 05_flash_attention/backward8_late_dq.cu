// Backward, step 8: dQ an iteration late.
// Idea: a consumer never waits for the other one's dS of the same tile: dQ of a tile is computed
//       with dV and dK of the next one. And products of the next tile are started before what is
//       left of this one: a product is under way while a thread computes.
// Change: mbarriers for two tiles of dS^T. The next tile's S^T is started after dQ, and lies under
//         its way out; the next dP^T lies under the exponentials, which the two consumers compute
//         in turns. The lse of the next tile comes a tile ahead.
// Limit: shared memory, of which a tile's five products and dQ take as long as the tensor cores.
#include <type_traits>

#include "flash_attention.cuh"
#include "tile/head_boxes.cuh"
#include "tile/host/dq_sums.hpp"
#include "tile/key_blocks.cuh"
#include "tile/ptx/compute_now.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace flash_attention {
namespace {

using tile::Accumulator, tile::ColumnStats;

constexpr int kRows = 64;  // of a consumer's scores, and of its part of dQ: those of one wgmma
constexpr int kDqCols = 64;
constexpr int kConsumers = 2, kKeys = kConsumers * kRows;  // of a block
constexpr int kWarps = kConsumers * 4;                     // of the consumers
constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
// 65,536 registers are 168 for each of 384 threads, in steps of 8.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * 168);
constexpr int kAllConsumers = 1, kFirstTurn = 2;  // barriers

template <int kDim>
struct TilePlan {
  // A thread has kDim sums of dK and dV, and kQueries of scores and their gradients: 192 of 240.
  static constexpr int kQueries = kDim == 64 ? 128 : 64;  // of a tile
  // The consumers divide a tile's dQ by rows, or by columns.
  static constexpr int kDqRowParts = kQueries / kRows;
  static_assert(kDqRowParts * (kDim / kDqCols) == kConsumers);
  static constexpr int kWarpDqBytes = 16 * kDqCols * 4;
  // Keys, values, the stages, two tiles of dS^T, and dQ.
  static constexpr int kBytes = 2 * kKeys * kDim * 2 + tile::kQueryStages * kQueries * kDim * 2 +
                                2 * kKeys * kQueries * 2 + 4 * kConsumers * kWarpDqBytes;
};

// snippet-begin kernel
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, 1) attention_backward_late_dq(
    const __grid_constant__ tile::TensorMap q_map,     // [batch][heads][queries][kDim]
    const __grid_constant__ tile::TensorMap k_map,     // … [heads / group][keys] …
    const __grid_constant__ tile::TensorMap v_map,     // as k
    const __grid_constant__ tile::TensorMap dout_map,  // as q
    const ColumnStats* stats,                          // [batch][heads][rows / 16]
    float* dq_sums,                                    // … [rows / 16][kDim / 8][lane][4]
    Heads<T> dk,                                       // [batch][keys][heads / group][kDim]
    Heads<T> dv,                                       // as dk
    BatchMasks masks, int batch, int heads, int group, float scale) {
  using namespace tile::ptx;
  using Plan = TilePlan<kDim>;
  constexpr int kQueries = Plan::kQueries;
  using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
  using QueryBoxes = tile::HeadBoxes<T, kQueries, kDim>;
  using ScoreBoxes = tile::HeadBoxes<T, kKeys, kQueries>;
  // {keys, values, [kQueryStages]{queries or dO}, [2]{dS^T}, [warps]{dQ}}
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ tile::KeyBlockMail<kQueries> mail;
  __shared__ Mbarrier ds_full[2], ds_empty[2];
  const SharedAddress keys(smem), values = keys + KeyBoxes::kBytes;
  const SharedAddress stages = values + KeyBoxes::kBytes;
  const SharedAddress scores = stages + tile::kQueryStages * QueryBoxes::kBytes;
  const SharedAddress dq_smem = scores + 2 * ScoreBoxes::kBytes;
  const auto stage = [&](int i) { return stages + i * QueryBoxes::kBytes; };
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    mbarrier_init(&mail.keys_full, 1);
    tile::init_ring(mail.full, mail.empty, kWarps);
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(&ds_full[i], kWarps);
      mbarrier_init(&ds_empty[i], kWarps);
    }
  }
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  const auto work = keys_longest_first(batch, heads / group, (masks.keys + kKeys - 1) / kKeys);
  const Mask transposed = masks.of(work.batch).transposed();
  const int block_key = work.tile * kKeys;
  // Tiles of queries that see these keys, of each of the heads that share the keys.
  const Mask::Tiles visited = transposed.tiles(block_key, kKeys, kQueries);
  const int tiles = visited.last - visited.first;

  if (warpgroup == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x != 0 || tiles == 0) return;
    mbarrier_arrive_expect(&mail.keys_full, 2 * KeyBoxes::kBytes);
    KeyBoxes::load(keys, k_map, block_key, work.head, work.batch, &mail.keys_full);
    KeyBoxes::load(values, v_map, block_key, work.head, work.batch, &mail.keys_full);
    tile::load_queries<QueryBoxes>(mail, stages, q_map, dout_map, stats, masks, work, visited,
                                   heads, group);
    return;
  }

  setmaxnreg_inc<kConsumerRegisters>();
  const int consumer = warpgroup - 1, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int first_row = consumer * kRows, warp_row = first_row + warp * 16;  // in the tile of keys
  // This consumer's part of a tile's dQ, in parts of 64 x 64.
  const int dq_row = consumer % Plan::kDqRowParts, dq_col = consumer / Plan::kDqRowParts;
  const bool speaks = threadIdx.x % tile::kWarp == 0;  // for its warp
  tile::RingReader<tile::kQueryStages> ring(mail.full, mail.empty, speaks);
  const tile::Turns<kConsumers, kFirstTurn, true> turn(warpgroup);
  // Rows past the entry's lengths may hold anything, and 0 times that may be NaN. All consumers are
  // done with the products that read the tiles so far.
  const auto clear = [&](auto boxes, SharedAddress one, SharedAddress other, int rows) {
    barrier_sync(kAllConsumers, kConsumers * tile::kWarpgroup);
    boxes.template clear<kConsumers * tile::kWarpgroup>(one, rows);
    boxes.template clear<kConsumers * tile::kWarpgroup>(other, rows);
    fence_async_proxy();  // wgmma sees what this thread has cleared
    barrier_sync(kAllConsumers, kConsumers * tile::kWarpgroup);  // and what all others have
  };
  Accumulator<16, kDim> dk_sums, dv_sums;
  Accumulator<16, kQueries> weights, dscores;
  tile::LaneStats<kQueries> lse2;
  const SharedAddress staging = dq_smem + (consumer * 4 + warp) * Plan::kWarpDqBytes;
  int queries = 0, douts = 0;      // stages
  float* to = nullptr;             // the warp's sums of dQ, of the tile before
  const auto start_scores = [&] {  // S^T = K Q^T
    wgmma_fence();
    tile::start_product_of_rows<T, KeyBoxes, QueryBoxes>(weights, keys, first_row, stage(queries));
    wgmma_commit();
  };
  const auto start_dscores = [&] {  // dP^T = V dO^T
    wgmma_fence();
    tile::start_product_of_rows<T, KeyBoxes, QueryBoxes>(dscores, values, first_row, stage(douts));
    wgmma_commit();
  };
  const auto start_dq = [&](Accumulator<16, kDqCols>& dq, int i) {  // dQ = dS K, of the i-th tile
    mbarrier_wait(&ds_full[i % 2], i / 2 % 2);
    const SharedAddress ds = scores + i % 2 * ScoreBoxes::kBytes + dq_row * ScoreBoxes::kBoxBytes;
    wgmma_fence();
#pragma unroll
    for (int key = 0; key < kKeys; key += 16) {
      wgmma<T, kDqCols, Major::mn, Major::mn>(
          registers_of(dq), ScoreBoxes::along_rows(ds, key),
          KeyBoxes::along_rows(keys + dq_col * KeyBoxes::kBoxBytes, key), key != 0);
    }
    wgmma_commit();
  };
  const int count = tiles * group;
  // Where S^T is there and dP^T under way.
  const auto visit = [&](int i, auto is_first) {
    constexpr bool kIsFirst = decltype(is_first)::value;
    const bool is_last = i + 1 == count;
    const auto& tile = mail.tiles[queries / 2];
    const int rows = tile.rows;
    turn.take();
    if (tile.is_border) {
      hide(weights, masks.of(work.batch).transposed(), block_key + warp_row, tile.query);
    }
    weigh(weights, lse2, scale * kLog2E);
    compute_now<kQueries / 4>(registers_of(weights), staging);
    mbarrier_wait(&ds_empty[i % 2], i / 2 % 2 ^ 1);
    wgmma_wait<0>(registers_of(dscores));
    to_dscores(dscores, weights,
               tile::load_stats<kQueries>(mail.stats[queries / 2], &ColumnStats::delta));
    if (rows < kQueries) clear_columns(dscores, rows);
    const auto p = tile::as_fragment<T>(weights), ds = tile::as_fragment<T>(dscores);
    ScoreBoxes::store_warp(ds, scores + i % 2 * ScoreBoxes::kBytes, warp_row);
    fence_async_proxy();  // wgmma sees what this lane has stored
    __syncwarp();         // and what the others have
    if (speaks) mbarrier_arrive(&ds_full[i % 2]);
    turn.pass();
    float* const to_this =
        dq_sums + (tile.sum_row + dq_row * kRows + warp * 16) * kDim + dq_col * kDqCols * 16;
    if (rows < kQueries) clear(QueryBoxes{}, stage(queries), stage(douts), rows);
    Accumulator<16, kDqCols> own;  // at 128 columns dQ has the registers of dP^T
    auto& dq = [&]() -> Accumulator<16, kDqCols>& {
      if constexpr (kQueries == kDqCols)
        return dscores;
      else
        return own;
    }();
    wgmma_fence();  // dV += P^T dO and dK += dS^T Q
    tile::start_product_with_columns<T, QueryBoxes>(dv_sums, p, stage(douts));
    tile::start_product_with_columns<T, QueryBoxes>(dk_sums, ds, stage(queries));
    wgmma_commit();
    if constexpr (!kIsFirst) {
      start_dq(dq, i - 1);
      wgmma_wait<1>(registers_of(dv_sums));
      wgmma_wait<1>(registers_of(dk_sums));
      ring.release(queries);
      ring.release(douts);
    }
    // After the last tile the products that follow are of what is there, and are not used: a branch
    // around them would cost more.
    const int left_queries = queries, left_douts = douts;
    if (!is_last) queries = ring.next();
    start_scores();
    if constexpr (kIsFirst) {
      wgmma_wait<1>(registers_of(dv_sums));
      wgmma_wait<1>(registers_of(dk_sums));
      ring.release(left_queries);
      ring.release(left_douts);
    } else {
      wgmma_wait<1>(registers_of(dq));
      if (speaks) mbarrier_arrive(&ds_empty[(i - 1) % 2]);
      add_dq(dq, to, staging);
    }
    to = to_this;
    if (!is_last) douts = ring.next();
    start_dscores();
    lse2 = tile::load_stats<kQueries>(mail.stats[queries / 2], &ColumnStats::lse2);
    wgmma_wait<1>(registers_of(weights));
  };
  if (count > 0) {
    mbarrier_wait(&mail.keys_full, 0);
    const int rows = transposed.queries - block_key;
    if (rows < kKeys && transposed.queries < masks.keys) clear(KeyBoxes{}, keys, values, rows);
    queries = ring.next();
    start_scores();
    douts = ring.next();
    start_dscores();
    lse2 = tile::load_stats<kQueries>(mail.stats[queries / 2], &ColumnStats::lse2);
    wgmma_wait<1>(registers_of(weights));
    visit(0, std::true_type{});
    for (int i = 1; i < count; ++i) visit(i, std::false_type{});
    Accumulator<16, kDqCols> dq;
    start_dq(dq, count - 1);
    wgmma_wait<0>(registers_of(weights));
    wgmma_wait<0>(registers_of(dscores));
    wgmma_wait<0>(registers_of(dq));
    add_dq(dq, to, staging);
  }
  turn.end();
  dk_sums.scale(scale);
  store(dk_sums, dk.rows(work.batch, work.head), block_key + warp_row, masks.keys);
  store(dv_sums, dv.rows(work.batch, work.head), block_key + warp_row, masks.keys);
  if (threadIdx.x % tile::kWarp == 0)
    bulk_wait_read<0>();  // before the block's memory is another's
}
// snippet-end kernel

}  // namespace

tile::Status late_dq(const AttentionBackward& p, void* stream) {
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value == 128 ? 128 : 64;
        using QueryBoxes = tile::HeadBoxes<T, TilePlan<kDim>::kQueries, kDim>;
        using KeyBoxes = tile::HeadBoxes<T, kKeys, kDim>;
        tile::TensorMap q_map, k_map, v_map, dout_map;
        TILE_TRY(QueryBoxes::make_map("q", p.type, p.q, p.batch, p.heads, p.queries, &q_map));
        TILE_TRY(KeyBoxes::make_map("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k_map));
        TILE_TRY(KeyBoxes::make_map("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v_map));
        TILE_TRY(
            QueryBoxes::make_map("dout", p.type, p.dout, p.batch, p.heads, p.queries, &dout_map));
        unsigned blocks = 0;
        TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, kKeys, &blocks));
        auto* stats = static_cast<ColumnStats*>(p.workspace);
        auto* sums =
            reinterpret_cast<float4*>(stats + tile::rows_of_dq_sums(p) / ColumnStats::kQueries);
        TILE_TRY(compute_column_stats(p, stats, sums, stream));
        TILE_TRY(tile::launch(attention_backward_late_dq<T, kDim>, "attention_backward_late_dq",
                              blocks, kThreads, TilePlan<kDim>::kBytes, stream, q_map, k_map, v_map,
                              dout_map, stats, reinterpret_cast<float*>(sums), heads_of<T>(p.dk),
                              heads_of<T>(p.dv), masks_of(p), p.batch, p.heads, group_of(p),
                              p.scale));
        return round_dq(p, sums, p.dq, stream);
      });
}

}  // namespace flash_attention
