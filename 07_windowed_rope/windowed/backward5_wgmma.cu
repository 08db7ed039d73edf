// Backward, step 5: both parts by TMA and wgmma.
// Idea: a block keeps K1 and K2, and its loop goes from far queries to near ones without a pause: a
//       tile of queries says which keys it belongs to. dK2 and dK1 are one sum after the other in
//       the same registers.
// Change: chapter 05's backward step 9 (`overlap`), with both keys in shared memory and queries of
//         two tensors. dK2 is stored before the first near tile; the sums of dQ2 lie after those of
//         dQ1, so that a row's number says where its products go.
// Limit: as in that step; and mixed tiles, which are visited twice.
#include <type_traits>

#include "tile/column_stats.cuh"
#include "tile/host/key_blocks.hpp"
#include "tile/ptx/compute_now.cuh"
#include "windowed/windowed_rope.cuh"

namespace windowed_rope {
namespace {

using tile::Accumulator, tile::ColumnStats, tile::KeyWork, tile::TensorMap;

constexpr int kAllConsumers = 1, kFirstTurn = 2;  // barriers

static_assert(sizeof(ColumnStats) == ColumnStats::kQueries * sizeof(RowStats));  // dq_sums_of()

template <class T, int kDim>
using Block = tile::KeyBlock<T, kDim, 2>;

// snippet-begin parts
/// Tiles of queries that see the block's keys.
template <class Block>
__device__ Mask::Tiles visited_in(int part, const KeyWork& work, const Window& window) {
  return window.part(work.mask, part).tiles(work.first_key, Block::kKeys, Block::kQueries);
}
/// How many there are in the parts before `end`, of all heads that share the keys.
template <class Block>
__device__ int tiles_before(int end, const KeyWork& work, const Window& window, int group) {
  int tiles = 0;
  for (int part = 0; part < end; ++part) {
    const Mask::Tiles visited = visited_in<Block>(part, work, window);
    tiles += (visited.last - visited.first) * group;
  }
  return tiles;
}

/// One thread loads K2, K1 and the values, and the tiles of queries, part after part.
template <class Block>
__device__ __forceinline__ void load_parts(typename Block::Mail& mail, const Block& block,
                                           const TensorMap& q1_map, const TensorMap& k1_map,
                                           const TensorMap& q2_map, const TensorMap& k2_map,
                                           const TensorMap& v_map, const TensorMap& dout_map,
                                           const ColumnStats* stats, const BatchMasks& masks,
                                           const Window& window, const KeyWork& work, int batch,
                                           int heads, int group) {
  using KeyBoxes = typename Block::KeyBoxes;
  if (work.tiles == 0) return;
  tile::ptx::mbarrier_arrive_expect(&mail.keys_full, Block::kKeyBytes);
  const auto load = [&](const TensorMap& map, tile::ptx::SharedAddress to) {
    KeyBoxes::load(to, map, work.first_key, work.kv_head, work.batch, &mail.keys_full);
  };
  load(k2_map, block.keys(0)), load(k1_map, block.keys(1)), load(v_map, block.values());
  const int rows = (masks.queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;  // of a head
  // TMA clears what is past the tensor's end itself.
  const int length = work.mask.keys < masks.queries ? work.mask.keys : rows;
  int i = 0;
#pragma unroll 1
  for (int part = 0; part < Window::kParts; ++part) {
    const Mask::Tiles visited = visited_in<Block>(part, work, window);
    const bool near = Window::is_near(part);
    for (int head = work.kv_head * group; head < (work.kv_head + 1) * group; ++head) {
      for (int tile = visited.first; tile < visited.last; ++tile, ++i) {
        const int query = tile * Block::kQueries;
        const std::int64_t row = (std::int64_t{work.batch} * heads + head) * rows + query;
        const bool is_border = tile < visited.whole_first || tile >= visited.whole_last;
        load_tile(mail, block, i,
                  {near ? row : row + std::int64_t{batch} * heads * rows, query,
                   min(Block::kQueries, length - query), 0, is_border, part},
                  work.batch, head, near ? q1_map : q2_map, dout_map,
                  stats + row / ColumnStats::kQueries);
      }
    }
  }
}
// snippet-end parts

// snippet-begin kernel
template <class T, int kDim>
__global__ void __launch_bounds__(Block<T, kDim>::kThreads, 1) windowed_backward_wgmma(
    const __grid_constant__ TensorMap q1_map,    // [batch][heads][queries][kDim]
    const __grid_constant__ TensorMap k1_map,    // … [heads / group][keys] …
    const __grid_constant__ TensorMap q2_map,    // as q1
    const __grid_constant__ TensorMap k2_map,    // as k1
    const __grid_constant__ TensorMap v_map,     // as k1
    const __grid_constant__ TensorMap dout_map,  // as q1
    const ColumnStats* stats,                    // [batch][heads][rows / 16]
    float* dq_sums,  // [2][batch][heads][rows / 16][kDim / 8][lane][4]: of dq1 and of dq2
    Heads<T> dk1,    // [batch][keys][heads / group][kDim]
    Heads<T> dk2,    // as dk1
    Heads<T> dv,     // as dk1
    BatchMasks masks, Window window, int batch, int heads, int group, unsigned together,
    float scale) {
  using namespace tile::ptx;
  using Block = Block<T, kDim>;
  constexpr int kQueries = Block::kQueries;
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ typename Block::Mail mail;
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) mail.init(Block::kWarps);
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  const Block block(smem, warpgroup);
  auto work =
      tile::work_of_keys<Block>(tile::longest_first(blockIdx.x, together, batch, heads / group,
                                                    (masks.keys + Block::kKeys - 1) / Block::kKeys),
                                masks, group);
  work.tiles = tiles_before<Block>(Window::kParts, work, window, group);
  if (warpgroup == 0) {
    setmaxnreg_dec<Block::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    return load_parts(mail, block, q1_map, k1_map, q2_map, k2_map, v_map, dout_map, stats, masks,
                      window, work, batch, heads, group);
  }
  setmaxnreg_inc<Block::kConsumerRegisters>();
  const int far_tiles = tiles_before<Block>(Window::kParts - 1, work, window, group);
  const bool speaks = threadIdx.x % tile::kWarp == 0;  // for its warp
  const tile::Turns<Block::kConsumers, kFirstTurn, true> turn(warpgroup);
  Accumulator<16, kDim> dk_sums, dv_sums;
  Accumulator<16, kQueries> weights, dscores;
  float lse2[kQueries / 4];
  const auto start_scores = [&](int i) { block.start_scores(weights, i, i >= far_tiles); };
  const auto start_dweights = [&](int i) {
    block.start_dweights(dscores, i);
    load_stats(lse2, mail.stats[i % 2], &ColumnStats::lse2);
    wgmma_wait<1>(registers_of(weights));
  };
  const auto start_dq = [&](Accumulator<16, Block::kDqCols>& dq, int i) {
    mbarrier_wait(&mail.ds_full[i % 2], i / 2 % 2);
    block.start_dq(dq, i, i >= far_tiles);
  };
  const auto add_dq = [&](const Accumulator<16, Block::kDqCols>& dq, int i) {
    if (speaks) bulk_wait_read<0>();
    block.stage_dq(dq);
    if (speaks) block.send_dq(block.warp_sums(dq_sums, mail.tiles[i % 4].sum_row));
  };
  const auto store_rows = [&](const Accumulator<16, kDim>& sums, const Heads<T>& to) {
    store(sums, to.rows(work.batch, work.kv_head), work.first_key + block.warp_key(), masks.keys);
  };
  const auto finish_dk = [&](const Heads<T>& dk) {
    dk_sums.scale(scale);
    store_rows(dk_sums, dk);
    dk_sums = {};
  };
  // snippet-begin visit
  // When S^T of the i-th tile is there, and dP^T under way.
  const auto visit = [&](int i, auto is_first) {
    const auto& tile = mail.tiles[i % 4];
    if (i == far_tiles) finish_dk(dk2);  // the first near tile
    turn.take();
    if (tile.is_border) {
      hide(weights, window.part(masks.of(work.batch).transposed(), tile.part),
           work.first_key + block.warp_key(), tile.query);
    }
    // snippet-end visit
    weigh(weights, lse2, scale * kLog2E);
    compute_now<kQueries / 4>(registers_of(weights), block.staging());
    mbarrier_wait(&mail.ds_empty[i % 2], i / 2 % 2 ^ 1);  // dQ of the tile before last is computed
    wgmma_wait<0>(registers_of(dscores));
    const int rows = tile.rows;
    to_dscores(dscores, weights, mail.stats[i % 2], rows);
    const auto p = tile::as_fragment<T>(weights), ds = tile::as_fragment<T>(dscores);
    block.store_ds(ds, i);
    fence_async_proxy();  // wgmma sees what this lane has stored
    __syncwarp();         // and what the others have
    if (speaks) mbarrier_arrive(&mail.ds_full[i % 2]);
    turn.pass();
    if (rows < kQueries) block.clear_queries(i, rows, kAllConsumers);
    // At 128 columns registers are scarce, and dQ has those of dP^T.
    Accumulator<16, Block::kDqCols> own;
    auto& dq = tile::either<kQueries == Block::kDqCols>(dscores, own);
    block.start_sums(dv_sums, dk_sums, p, ds, i);
    const auto release = [&] {  // what dV and dK have read
      wgmma_wait<1>(registers_of(dv_sums));
      wgmma_wait<1>(registers_of(dk_sums));
      if (speaks) mail.release(i);
    };
    if constexpr (!is_first.value) start_dq(dq, i - 1), release();
    // After the last tile the two products that follow are of what is there, and are not used.
    const int next = i + 1 < work.tiles ? i + 1 : i;
    if (next > i) mail.await(mail.queries(next), next);
    start_scores(next);
    if constexpr (is_first.value) {
      release();
    } else {
      wgmma_wait<1>(registers_of(dq));
      if (speaks) mbarrier_arrive(&mail.ds_empty[(i - 1) % 2]);
      add_dq(dq, i - 1);
    }
    if (next > i) mail.await(mail.douts(next), next);
    start_dweights(next);
  };
  if (work.tiles > 0) {
    block.await_keys(mail, work, masks, kAllConsumers);
    mail.await(mail.queries(0), 0);
    start_scores(0);
    mail.await(mail.douts(0), 0);
    start_dweights(0);
    visit(0, std::true_type{});
    for (int i = 1; i < work.tiles; ++i) visit(i, std::false_type{});
    Accumulator<16, Block::kDqCols> dq;
    start_dq(dq, work.tiles - 1);
    wgmma_wait<0>(registers_of(dscores));
    wgmma_wait<0>(registers_of(dq));
    add_dq(dq, work.tiles - 1);
  }
  turn.end();
  if (far_tiles == work.tiles) finish_dk(dk2);  // nothing is near
  finish_dk(dk1);
  store_rows(dv_sums, dv);
  // The block's memory is another's next.
  if (speaks) bulk_wait_read<0>();
}
// snippet-end kernel

}  // namespace

tile::Status takes_wgmma(const AttentionBackward& p, const tile::Device&) {
  TILE_TRY(check_chunks(p));
  TILE_TRY(tile::check_key_blocks(p, true));
  return tile::check_workspace(stats_and_sums_bytes(p), p.workspace_bytes);
}

tile::Status wgmma(const AttentionBackward& p, void* stream) {
  TILE_TRY(with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    using Block = Block<T, kDim>;
    using QueryBoxes = typename Block::QueryBoxes;
    using KeyBoxes = typename Block::KeyBoxes;
    TILE_TRY((tile::launch_column_stats<T, kDim, 2>(p, stream)));
    TensorMap q1, k1, q2, k2, v, dout;
    TILE_TRY(QueryBoxes::make_map("q", p.type, p.q, p.batch, p.heads, p.queries, &q1));
    TILE_TRY(KeyBoxes::make_map("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &k1));
    TILE_TRY(QueryBoxes::make_map("q_far", p.type, p.q_far, p.batch, p.heads, p.queries, &q2));
    TILE_TRY(KeyBoxes::make_map("k_far", p.type, p.k_far, p.batch, p.kv_heads, p.keys, &k2));
    TILE_TRY(KeyBoxes::make_map("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &v));
    TILE_TRY(QueryBoxes::make_map("dout", p.type, p.dout, p.batch, p.heads, p.queries, &dout));
    unsigned blocks = 0;
    TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, Block::kKeys, &blocks));
    // Of an element of a head's queries: Q1, Q2, dO, and two sums.
    const unsigned together = tile::key_heads_together(p, 3 * 2 + 2 * 4);
    return tile::launch(windowed_backward_wgmma<T, kDim>, "windowed_backward_wgmma", blocks,
                        Block::kThreads, Block::kBytes, stream, q1, k1, q2, k2, v, dout,
                        tile::column_stats_of(p), reinterpret_cast<float*>(dq_sums_of(p).near),
                        heads_of<T>(p.dk), heads_of<T>(p.dk_far), heads_of<T>(p.dv), masks_of(p),
                        window_of(p), p.batch, p.heads, group_of(p), together, p.scale);
  }));
  if (!p.dq.data) return {};  // the caller makes something else of the sums
  TILE_TRY(round_dq(p, dq_sums_of(p).near, p.dq, stream));
  return round_dq(p, dq_sums_of(p).far, p.dq_far, stream);
}

}  // namespace windowed_rope
