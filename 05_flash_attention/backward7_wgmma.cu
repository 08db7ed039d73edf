// Backward, step 7: TMA and wgmma.
// Idea: the five products run on tensor cores that read shared memory themselves. A consumer has 64
//       keys, and P^T and dS^T of a tile of queries as wgmma leaves them in its registers: there
//       they are the left factors of dV += P^T dO and dK += dS^T Q. Only dS goes through shared
//       memory, since dQ = dS K sums over the keys of both consumers.
// Change: a thread loads keys, values, queries and dO by TMA. A warp's part of dQ, 4 KB as its
//         fragments lie, is added to the sums by one bulk reduction.
// Limit: the tensor cores wait for the exponentials, and the threads for the products: twice in
//        each iteration.
#include <string>
#include <tuple>

#include "flash_attention.cuh"
#include "tile/head_boxes.cuh"
#include "tile/host/dq_sums.hpp"
#include "tile/key_blocks.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace flash_attention {
namespace {

using tile::Accumulator, tile::ColumnStats;

constexpr int kRows = 64;  // of a consumer's scores, and of its part of dQ: those of one wgmma
constexpr int kDqCols = 64;
constexpr int kConsumers = 2, kKeys = kConsumers * kRows;  // of a block
constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
// 65,536 registers are 168 for each of 384 threads, in steps of 8.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * 168);
constexpr int kAllConsumers = 1;  // a barrier

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
__global__ void __launch_bounds__(kThreads, 1) attention_backward_wgmma(
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
  const SharedAddress keys(smem), values = keys + KeyBoxes::kBytes;
  const SharedAddress stages = values + KeyBoxes::kBytes;
  const SharedAddress scores = stages + tile::kQueryStages * QueryBoxes::kBytes;
  const SharedAddress dq_smem = scores + 2 * ScoreBoxes::kBytes;
  const auto stage = [&](int i) { return stages + i * QueryBoxes::kBytes; };
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    mbarrier_init(&mail.keys_full, 1);
    tile::init_ring(mail.full, mail.empty, kConsumers);  // a thread of each
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
  tile::RingReader<tile::kQueryStages> ring(mail.full, mail.empty,
                                            threadIdx.x % tile::kWarpgroup == 0);
  // Rows past the entry's lengths may hold anything, and 0 times that may be NaN.
  const auto clear = [&](auto boxes, SharedAddress one, SharedAddress other, int rows) {
    boxes.template clear<kConsumers * tile::kWarpgroup>(one, rows);
    boxes.template clear<kConsumers * tile::kWarpgroup>(other, rows);
    fence_async_proxy();  // wgmma sees what this thread has cleared
    barrier_sync(kAllConsumers, kConsumers * tile::kWarpgroup);  // and what all others have
  };
  if (tiles > 0) {
    mbarrier_wait(&mail.keys_full, 0);
    const int rows = transposed.queries - block_key;
    if (rows < kKeys && transposed.queries < masks.keys) clear(KeyBoxes{}, keys, values, rows);
  }
  Accumulator<16, kDim> dk_sums, dv_sums;
  Accumulator<16, kQueries> weights, dscores;
  Accumulator<16, kDqCols> dq;
  const SharedAddress staging = dq_smem + (consumer * 4 + warp) * Plan::kWarpDqBytes;
  for (int i = 0; i < tiles * group; ++i) {
    const int queries = ring.next(), douts = ring.next();
    const auto& tile = mail.tiles[queries / 2];
    if (tile.is_border) {
      const int rows = masks.of(work.batch).queries - tile.query;
      if (rows < kQueries && rows < masks.queries - tile.query) {
        clear(QueryBoxes{}, stage(queries), stage(douts), rows);
      }
    }
    wgmma_fence();  // S^T = K Q^T and dP^T = V dO^T
    tile::start_product_of_rows<T, KeyBoxes, QueryBoxes>(weights, keys, first_row, stage(queries));
    tile::start_product_of_rows<T, KeyBoxes, QueryBoxes>(dscores, values, first_row, stage(douts));
    wgmma_commit();
    wgmma_wait<0>(registers_of(weights));
    wgmma_wait<0>(registers_of(dscores));
    if (tile.is_border) {
      hide(weights, masks.of(work.batch).transposed(), block_key + warp_row, tile.query);
    }
    const ColumnStats* of_tile = mail.stats[queries / 2];
    weigh(weights, tile::load_stats<kQueries>(of_tile, &ColumnStats::lse2), scale * kLog2E);
    to_dscores(dscores, weights, tile::load_stats<kQueries>(of_tile, &ColumnStats::delta));
    const auto p = tile::as_fragment<T>(weights), ds = tile::as_fragment<T>(dscores);
    const std::int64_t sum_row = tile.sum_row + dq_row * kRows + warp * 16;
    const SharedAddress ds_smem = scores + i % 2 * ScoreBoxes::kBytes;
    ScoreBoxes::store_warp(ds, ds_smem, warp_row);
    fence_async_proxy();  // wgmma sees what this thread has stored, and what all others have; and
                          // both consumers are done with dQ of the tile before last
    barrier_sync(kAllConsumers, kConsumers * tile::kWarpgroup);
    wgmma_fence();  // dV += P^T dO, dK += dS^T Q and dQ = dS K
    tile::start_product_with_columns<T, QueryBoxes>(dv_sums, p, stage(douts));
    tile::start_product_with_columns<T, QueryBoxes>(dk_sums, ds, stage(queries));
#pragma unroll
    for (int key = 0; key < kKeys; key += 16) {
      wgmma<T, kDqCols, Major::mn, Major::mn>(
          registers_of(dq), ScoreBoxes::along_rows(ds_smem + dq_row * ScoreBoxes::kBoxBytes, key),
          KeyBoxes::along_rows(keys + dq_col * KeyBoxes::kBoxBytes, key), key != 0);
    }
    wgmma_commit();
    wgmma_wait<0>(registers_of(dv_sums));
    wgmma_wait<0>(registers_of(dk_sums));
    wgmma_wait<0>(registers_of(dq));
    ring.release(queries);
    ring.release(douts);
    add_dq(dq, dq_sums + sum_row * kDim + dq_col * kDqCols * 16, staging);
  }
  dk_sums.scale(scale);
  store(dk_sums, dk.rows(work.batch, work.head), block_key + warp_row, masks.keys);
  store(dv_sums, dv.rows(work.batch, work.head), block_key + warp_row, masks.keys);
  if (threadIdx.x % tile::kWarp == 0)
    bulk_wait_read<0>();  // before the block's memory is another's
}
// snippet-end kernel

}  // namespace

tile::Status takes_wgmma(const AttentionBackward& p, const tile::Device&) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  TILE_TRY(check_chunks(p));
  using Boxes = tile::HeadBoxes<__half, 64, 64>;  // strides are asked for, whatever the extents
  for (const auto& [name, x, heads, rows] : {std::tuple{"q", &p.q, p.heads, p.queries},
                                             {"k", &p.k, p.kv_heads, p.keys},
                                             {"v", &p.v, p.kv_heads, p.keys},
                                             {"o", &p.o, p.heads, p.queries},
                                             {"dout", &p.dout, p.heads, p.queries}}) {
    TILE_TRY(tile::check_tensor_map(
        name, Boxes::boxed(p.type, x->data, p.batch, heads, rows, x->stride)));
  }
  return tile::check_workspace(stats_and_sums_bytes(p), p.workspace_bytes);
}

tile::Status wgmma(const AttentionBackward& p, void* stream) {
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
        TILE_TRY(tile::launch(attention_backward_wgmma<T, kDim>, "attention_backward_wgmma", blocks,
                              kThreads, TilePlan<kDim>::kBytes, stream, q_map, k_map, v_map,
                              dout_map, stats, reinterpret_cast<float*>(sums), heads_of<T>(p.dk),
                              heads_of<T>(p.dv), masks_of(p), p.batch, p.heads, group_of(p),
                              p.scale));
        return round_dq(p, sums, p.dq, stream);
      });
}

}  // namespace flash_attention
