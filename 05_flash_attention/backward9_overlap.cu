// Backward, step 9: products under all that a thread computes.
// Idea: the next tile's S^T is started after dQ, and lies under dQ's way out; its dP^T lies under
//       the exponentials. The consumers compute those in turns, so that one's lie under the
//       other's products.
// Change: the order of an iteration. A stage's number follows from the tile's. With 128 columns, 16
//         of the values stay in registers. The first tile, without a dQ, has an iteration of its
//         own, as an `if` in the loop would have ptxas wait for all products. A kernel has no code
//         for what a call does not hide.
// Limit: shared memory. The five products and dQ's way out take it as long as the tensor cores.
#include <type_traits>

#include "launch.hpp"
#include "load_key_block.cuh"
#include "tile/host/key_blocks.hpp"
#include "tile/key_block.cuh"
#include "tile/ptx/compute_now.cuh"

namespace flash_attention {
namespace {

using tile::Accumulator, tile::ColumnStats, tile::Hides;

constexpr int kAllConsumers = 1, kFirstTurn = 2;  // barriers

// snippet-begin kernel
template <class T, int kDim, Hides kHides>
__global__ void __launch_bounds__(tile::KeyBlock<T, kDim>::kThreads, 1) attention_backward_overlap(
    const __grid_constant__ tile::TensorMap q_map,     // [batch][heads][queries][kDim]
    const __grid_constant__ tile::TensorMap k_map,     // … [heads / group][keys] …
    const __grid_constant__ tile::TensorMap v_map,     // as k
    const __grid_constant__ tile::TensorMap dout_map,  // as q
    const ColumnStats* stats,                          // [batch][heads][rows]
    float* dq_sums,                                    // … [rows / 16][kDim / 8][lane][4]
    Heads<T> dk,                                       // [batch][keys][heads / group][kDim]
    Heads<T> dv,                                       // as dk
    BatchMasks masks, int batch, int heads, int group, unsigned together, float scale) {
  using namespace tile::ptx;
  using Block = tile::KeyBlock<T, kDim>;
  constexpr int kQueries = Block::kQueries;
  constexpr bool kHasLengths = kHides == Hides::rows;
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ typename Block::Mail mail;
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) mail.init(Block::kWarps);
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  const Block block(smem, warpgroup);
  const auto work =
      tile::work_of_keys<Block>(tile::longest_first(blockIdx.x, together, batch, heads / group,
                                                    (masks.keys + Block::kKeys - 1) / Block::kKeys),
                                masks, group);
  if (warpgroup == 0) {
    setmaxnreg_dec<Block::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    return load_tiles(mail, block, q_map, k_map, v_map, dout_map, stats, masks, work, heads, group);
  }
  setmaxnreg_inc<Block::kConsumerRegisters>();
  const bool is_leader = threadIdx.x % tile::kWarp == 0;  // for its warp
  const tile::Turns<Block::kConsumers, kFirstTurn, true> turn(warpgroup);
  Accumulator<16, kDim> dk_sums, dv_sums;
  Accumulator<16, kQueries> weights, dscores;
  tile::Fragment<16, 16> first_values;
  const auto start_scores = [&](int i) { block.start_scores(weights, i, mail.stats[i % 2]); };
  const auto start_dweights = [&](int i) {
    block.start_dweights(dscores, i, mail.stats[i % 2], first_values);
    wgmma_wait<1>(registers_of(weights));
  };
  const auto start_dq = [&](Accumulator<16, Block::kDqCols>& dq, int i) {
    mbarrier_wait(&mail.ds_full[i % 2], i / 2 % 2);
    block.start_dq(dq, i);
  };
  const auto add_dq = [&](const Accumulator<16, Block::kDqCols>& dq, int i) {
    if (is_leader) bulk_wait_read<0>();
    block.stage_dq(dq);
    if (is_leader) block.send_dq(block.warp_sums(dq_sums, mail.tiles[i % 4].sum_row));
  };
  // snippet-begin visit
  // When S^T of the i-th tile is there, and dP^T under way.
  const auto visit = [&](int i, auto is_first) {
    const auto& tile = mail.tiles[i % 4];
    turn.take();
    if ((kHides != Hides::first || is_first.value) && tile.is_border) {
      hide(weights, mail.mask, work.first_key + block.warp_key(), tile.query);
    }
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
  // snippet-end visit
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
  dk_sums.scale(scale);
  store(dk_sums, dk.rows(work.batch, work.kv_head), work.first_key + block.warp_key(), masks.keys);
  store(dv_sums, dv.rows(work.batch, work.kv_head), work.first_key + block.warp_key(), masks.keys);
  // The block's memory is another's next.
  if (is_leader) bulk_wait_read<0>();
}
// snippet-end kernel

}  // namespace

tile::Status overlap(const AttentionBackward& p, void* stream) {
  TILE_TRY(compute_column_stats(p, stream));
  TILE_TRY(with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    using Block = tile::KeyBlock<T, kDim>;
    return tile::with_hides<Block>(p, [&](auto hides) {
      return tile::launch_key_blocks<T, Block>(p, attention_backward_overlap<T, kDim, hides.value>,
                                               "attention_backward_overlap", stream);
    });
  }));
  return round_dq(p, tile::sums_of(p), p.dq, stream);
}

}  // namespace flash_attention
