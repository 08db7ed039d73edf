// Backward, step 8: dQ a tile late.
// Idea: a consumer does not wait for the other one's dS of the same tile. dQ of a tile is computed
//       with dV and dK of the next one, when the other's dS has long been there.
// Change: mbarriers for the two tiles of dS^T, at which warps arrive, in the place of a barrier of
//         all consumers.
// Limit: as before, a consumer has no product under way while it computes exponentials.
#include <type_traits>

#include "launch.hpp"
#include "load_key_block.cuh"
#include "tile/host/key_blocks.hpp"
#include "tile/key_block.cuh"

namespace flash_attention {
namespace {

using tile::Accumulator, tile::ColumnStats;

constexpr int kAllConsumers = 1;  // a barrier

// snippet-begin kernel
template <class T, int kDim>
__global__ void __launch_bounds__(tile::KeyBlock<T, kDim>::kThreads, 1) attention_backward_late_dq(
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
  Accumulator<16, kDim> dk_sums, dv_sums;
  Accumulator<16, kQueries> weights, dscores;
  Accumulator<16, Block::kDqCols> dq;
  const auto start_dq = [&](int i) {  // of the i-th tile
    mbarrier_wait(&mail.ds_full[i % 2], i / 2 % 2);
    block.start_dq(dq, i);
  };
  const auto add_dq = [&](int i) {
    if (is_leader) bulk_wait_read<0>();
    block.stage_dq(dq);
    if (is_leader) block.send_dq(block.warp_sums(dq_sums, mail.tiles[i % 4].sum_row));
  };
  // An `if` in the loop would have ptxas wait for each product: so the first tile, without a dQ, is
  // visited by code of its own.
  const auto visit = [&](int i, auto is_first) {
    constexpr bool kIsFirst = decltype(is_first)::value;
    block.await(mail, mail.queries(i), i, kAllConsumers);
    block.await(mail, mail.douts(i), i, kAllConsumers);
    const auto& tile = mail.tiles[i % 4];
    block.start_scores(weights, i, mail.stats[i % 2]);
    block.start_dweights(dscores, i, mail.stats[i % 2]);
    wgmma_wait<0>(registers_of(weights));
    wgmma_wait<0>(registers_of(dscores));
    if (tile.is_border) {
      hide(weights, mail.mask, work.first_key + block.warp_key(), tile.query);
    }
    weigh(weights, scale * kLog2E);
    to_dscores(dscores, weights);
    const auto p = tile::as_fragment<T>(weights), ds = tile::as_fragment<T>(dscores);
    mbarrier_wait(&mail.ds_empty[i % 2], i / 2 % 2 ^ 1);  // dQ of the tile before last is computed
    block.store_ds(ds, i);
    fence_async_proxy();  // wgmma sees what this lane has stored
    __syncwarp();         // and what the others have
    if (is_leader) mbarrier_arrive(&mail.ds_full[i % 2]);
    block.start_sums(dv_sums, dk_sums, p, ds, i);
    if constexpr (!kIsFirst) start_dq(i - 1);
    wgmma_wait<0>(registers_of(dv_sums));
    wgmma_wait<0>(registers_of(dk_sums));
    wgmma_wait<0>(registers_of(dq));
    if (is_leader) mail.release(i);
    if constexpr (kIsFirst) return;
    if (is_leader) mbarrier_arrive(&mail.ds_empty[(i - 1) % 2]);
    add_dq(i - 1);
  };
  if (work.tiles > 0) {
    block.await_keys(mail, work, masks, kAllConsumers);
    visit(0, std::true_type{});
    for (int i = 1; i < work.tiles; ++i) visit(i, std::false_type{});
    start_dq(work.tiles - 1);
    wgmma_wait<0>(registers_of(dq));
    add_dq(work.tiles - 1);
  }
  dk_sums.scale(scale);
  store(dk_sums, dk.rows(work.batch, work.kv_head), work.first_key + block.warp_key(), masks.keys);
  store(dv_sums, dv.rows(work.batch, work.kv_head), work.first_key + block.warp_key(), masks.keys);
  // The block's memory is another's next.
  if (is_leader) bulk_wait_read<0>();
}
// snippet-end kernel

}  // namespace

tile::Status late_dq(const AttentionBackward& p, void* stream) {
  TILE_TRY(compute_column_stats(p, stream));
  TILE_TRY(with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    return tile::launch_key_blocks<T, tile::KeyBlock<T, kDim>>(
        p, attention_backward_late_dq<T, kDim>, "attention_backward_late_dq", stream);
  }));
  return round_dq(p, tile::sums_of(p), p.dq, stream);
}

}  // namespace flash_attention
