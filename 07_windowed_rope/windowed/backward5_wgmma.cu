// Backward, step 5: both parts by TMA and wgmma.
// Idea: a block keeps K1 and K2, and its loop goes from far queries to near ones without a pause: a
//       tile of queries says which keys it belongs to. dK2 and dK1 are one sum after the other in
//       the same registers.
// Change: chapter 05's backward step 9 (`overlap`), with both keys in shared memory and queries of
//         two tensors. dK2 is stored before the first near tile; the sums of dQ2 lie after those of
//         dQ1, so that a row's number says where its products go.
// Limit: as in that step; and mixed tiles, which are visited twice.
#include <type_traits>

#include "tile/host/key_blocks.hpp"
#include "tile/ptx/compute_now.cuh"
#include "windowed/key_parts.cuh"
#include "windowed/launch.hpp"

namespace windowed_rope {
namespace {

using tile::Accumulator, tile::ColumnStats;

constexpr int kAllConsumers = 1, kFirstTurn = 2;  // barriers

template <class T, int kDim>
using KeyBlock = tile::KeyBlock<T, kDim, 2>;

// snippet-begin kernel
template <class T, int kDim, bool kHasLengths>
__global__ void __launch_bounds__(KeyBlock<T, kDim>::kThreads, 1) windowed_backward_wgmma(
    const __grid_constant__ Maps maps,  // q1, q2 and dout [batch][heads][queries][kDim], k1, k2 and
                                        // v [batch][heads / group][keys][kDim]
    const ColumnStats* stats,           // [batch][heads][rows]
    float* dq_sums,  // [2][batch][heads][rows / 16][kDim / 8][lane][4]: of dq1 and of dq2
    Heads<T> dk1,    // [batch][keys][heads / group][kDim]
    Heads<T> dk2,    // as dk1
    Heads<T> dv,     // as dk1
    BatchMasks masks, Window window, int batch, int heads, int group, unsigned together,
    float scale) {
  using namespace tile::ptx;
  using Block = KeyBlock<T, kDim>;
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
    return load_parts(mail, block, maps, stats, masks, window, work, batch, heads, group);
  }
  setmaxnreg_inc<Block::kConsumerRegisters>();
  const int far_tiles = tiles_before<Block>(Window::kParts - 1, work, window, group);
  const bool is_leader = threadIdx.x % tile::kWarp == 0;  // for its warp
  const tile::Turns<Block::kConsumers, kFirstTurn, true> turn(warpgroup);
  Accumulator<16, kDim> dk_sums, dv_sums;
  Accumulator<16, kQueries> weights, dscores;
  tile::Fragment<16, 16> first_values;
  const auto start_scores = [&](int i) {
    block.start_scores(weights, i, mail.stats[i % 2], i >= far_tiles);
  };
  const auto start_dweights = [&](int i) {
    block.start_dweights(dscores, i, mail.stats[i % 2], first_values);
    wgmma_wait<1>(registers_of(weights));
  };
  const auto start_dq = [&](Accumulator<16, Block::kDqCols>& dq, int i) {
    mbarrier_wait(&mail.ds_full[i % 2], i / 2 % 2);
    block.start_dq(dq, i, i >= far_tiles);
  };
  const auto add_dq = [&](const Accumulator<16, Block::kDqCols>& dq, int i) {
    if (is_leader) bulk_wait_read<0>();
    block.stage_dq(dq);
    if (is_leader) block.send_dq(block.warp_sums(dq_sums, mail.tiles[i % 4].sum_row));
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
      hide(weights, window.part(mail.mask, tile.part), work.first_key + block.warp_key(),
           tile.query);
    }
    // snippet-end visit
    weigh(weights, scale * kLog2E);
    compute_now<kQueries / 4>(registers_of(weights), block.staging());
    mbarrier_wait(&mail.ds_empty[i % 2], i / 2 % 2 ^ 1);  // dQ of the tile before last is computed
    wgmma_wait<0>(registers_of(dscores));
    to_dscores(dscores, weights);
    const auto p = tile::as_fragment<T>(weights), ds = tile::as_fragment<T>(dscores);
    block.store_ds(ds, i);
    fence_async_proxy();  // wgmma sees what this lane has stored
    __syncwarp();         // and what the others have
    if (is_leader) mbarrier_arrive(&mail.ds_full[i % 2]);
    turn.pass();
    // At 128 columns registers are scarce, and dQ has those of dP^T.
    Accumulator<16, Block::kDqCols> own;
    auto& dq = tile::either<kQueries == Block::kDqCols>(dscores, own);
    block.start_sums(dv_sums, dk_sums, p, ds, i);
    const auto release = [&] {  // what dV and dK have read
      wgmma_wait<1>(registers_of(dv_sums));
      wgmma_wait<1>(registers_of(dk_sums));
      if (is_leader) mail.release(i);
    };
    if constexpr (!is_first.value) start_dq(dq, i - 1), release();
    // After the last tile the two products that follow are of what is there, and are not used.
    const int next = i + 1 < work.tiles ? i + 1 : i;
    if (next > i) block.template await<kHasLengths>(mail, mail.queries(next), next, kAllConsumers);
    start_scores(next);
    if constexpr (is_first.value) {
      release();
    } else {
      wgmma_wait<1>(registers_of(dq));
      if (is_leader) mbarrier_arrive(&mail.ds_empty[(i - 1) % 2]);
      add_dq(dq, i - 1);
    }
    if (next > i) block.template await<kHasLengths>(mail, mail.douts(next), next, kAllConsumers);
    start_dweights(next);
  };
  if (work.tiles > 0) {
    block.await_keys(mail, work, masks, kAllConsumers);
    block.load_values(first_values);
    block.template await<kHasLengths>(mail, mail.queries(0), 0, kAllConsumers);
    start_scores(0);
    block.template await<kHasLengths>(mail, mail.douts(0), 0, kAllConsumers);
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
  if (is_leader) bulk_wait_read<0>();  // the block's memory is another's next
}
// snippet-end kernel

template <class T, int kDim>
tile::Status launch_parts(const AttentionBackward& p, void* stream) {
  using Block = KeyBlock<T, kDim>;
  using QueryBoxes = typename Block::QueryBoxes;
  using KeyBoxes = typename Block::KeyBoxes;
  Maps maps;
  TILE_TRY(make_map<QueryBoxes>("q", p.type, p.q, p.batch, p.heads, p.queries, &maps.q1));
  TILE_TRY(make_map<KeyBoxes>("k", p.type, p.k, p.batch, p.kv_heads, p.keys, &maps.k1));
  TILE_TRY(make_map<QueryBoxes>("q_far", p.type, p.q_far, p.batch, p.heads, p.queries, &maps.q2));
  TILE_TRY(make_map<KeyBoxes>("k_far", p.type, p.k_far, p.batch, p.kv_heads, p.keys, &maps.k2));
  TILE_TRY(make_map<KeyBoxes>("v", p.type, p.v, p.batch, p.kv_heads, p.keys, &maps.v));
  TILE_TRY(make_map<QueryBoxes>("dout", p.type, p.dout, p.batch, p.heads, p.queries, &maps.dout));
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, Block::kKeys, &blocks));
  // Of an element of a head's queries: Q1, Q2, dO, and two sums.
  const unsigned together = tile::key_heads_together(p, Block::kKeys, 3 * 2 + 2 * 4);
  const auto launch = [&](auto* kernel) {
    return tile::launch(kernel, "windowed_backward_wgmma", blocks, Block::kThreads, Block::kBytes,
                        stream, maps, tile::column_stats_of(p),
                        reinterpret_cast<float*>(dq_sums_of(p).near), heads_of<T>(p.dk),
                        heads_of<T>(p.dk_far), heads_of<T>(p.dv), masks_of(p), window_of(p),
                        p.batch, p.heads, group_of(p), together, p.scale);
  };
  return p.query_lengths ? launch(windowed_backward_wgmma<T, kDim, true>)
                         : launch(windowed_backward_wgmma<T, kDim, false>);
}

}  // namespace

tile::Status takes_wgmma(const AttentionBackward& p, const tile::Device&) {
  TILE_TRY(check_chunks(p));
  TILE_TRY(tile::check_key_blocks(p, true));
  return tile::check_workspace(stats_and_sums_bytes(p), p.workspace_bytes);
}

tile::Status wgmma(const AttentionBackward& p, void* stream) {
  TILE_TRY(compute_column_stats(p, stream));
  TILE_TRY(with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    return launch_parts<decltype(element), kDim>(p, stream);
  }));
  if (!p.dq.data) return {};  // the caller makes something else of the sums
  TILE_TRY(round_dq(p, dq_sums_of(p).near, p.dq, stream));
  return round_dq(p, dq_sums_of(p).far, p.dq_far, stream);
}

}  // namespace windowed_rope
