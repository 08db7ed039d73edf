// Backward, step 7: TMA and wgmma.
// Idea: the five products run on tensor cores that read shared memory themselves. A consumer has 64
//       keys, and P^T and dS^T of a tile of queries as wgmma leaves them in its registers: there
//       they are the left factors of dV += P^T dO and dK += dS^T Q. Only dS goes through shared
//       memory, since dQ = dS K sums over the keys of both consumers.
// Change: a thread loads keys, values, queries and dO by TMA. A warp's part of dQ, 4 KB as its
//         fragments lie, is added to the sums by one bulk reduction.
// Limit: the tensor cores wait for the exponentials, and the threads for the products: twice in
//        each iteration.
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
__global__ void __launch_bounds__(tile::KeyBlock<T, kDim>::kThreads, 1) attention_backward_wgmma(
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
  if (work.tiles > 0) {
    block.await_keys(mail, work, masks, kAllConsumers);
  }
  // snippet-begin iterate
  for (int i = 0; i < work.tiles; ++i) {
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
    block.store_ds(ds, i);
    fence_async_proxy();  // wgmma sees what this thread has stored, and what all others have; and
                          // both consumers are done with dQ of the tile before last
    const std::int64_t row = tile.sum_row;
    barrier_sync(kAllConsumers, Block::kConsumers * tile::kWarpgroup);
    block.start_sums(dv_sums, dk_sums, p, ds, i);
    block.start_dq(dq, i);
    wgmma_wait<0>(registers_of(dv_sums));
    wgmma_wait<0>(registers_of(dk_sums));
    wgmma_wait<0>(registers_of(dq));
    if (is_leader) mail.release(i);
    if (is_leader) bulk_wait_read<0>();
    block.stage_dq(dq);
    if (is_leader) block.send_dq(block.warp_sums(dq_sums, row));
  }
  // snippet-end iterate
  dk_sums.scale(scale);
  store(dk_sums, dk.rows(work.batch, work.kv_head), work.first_key + block.warp_key(), masks.keys);
  store(dv_sums, dv.rows(work.batch, work.kv_head), work.first_key + block.warp_key(), masks.keys);
  // The block's memory is another's next.
  if (is_leader) bulk_wait_read<0>();
}
// snippet-end kernel

}  // namespace

tile::Status takes_wgmma(const AttentionBackward& p, const tile::Device&) {
  TILE_TRY(check_chunks(p));
  TILE_TRY(tile::check_key_blocks(p));
  return tile::check_workspace(column_stats_and_sums_bytes(p), p.workspace_bytes);
}

tile::Status wgmma(const AttentionBackward& p, void* stream) {
  TILE_TRY(compute_column_stats(p, stream));
  TILE_TRY(with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    return tile::launch_key_blocks<T, tile::KeyBlock<T, kDim>>(p, attention_backward_wgmma<T, kDim>,
                                                               "attention_backward_wgmma", stream);
  }));
  return round_dq(p, tile::sums_of(p), p.dq, stream);
}

}  // namespace flash_attention
