// Backward, step 11: 256 columns.
// Idea: 64 keys have 64 x 256 sums of dK and as many of dV, more than a consumer has registers for.
//       So both consumers have the same keys, and each half of the columns: of dK, dV and dQ. Of
//       the scores each computes those of half of the queries. All of P^T and dS^T then are what
//       each needs for its columns, so both lie in shared memory.
// Change: from step 9: P^T goes through shared memory, too, and a barrier of both consumers stands
//         between scores and sums. dQ has no room to be staged: a lane adds its sums from
//         registers, 16 bytes an instruction, in two parts.
// Limit: shared memory. The products read 352 KB of it for each 64 x 64 scores.
#include <string>

#include "launch.hpp"
#include "load_key_block.cuh"
#include "tile/host/key_blocks.hpp"
#include "wide_key_block.cuh"

namespace flash_attention {
namespace {

using tile::Accumulator, tile::ColumnStats;

constexpr int kAllConsumers = 1;  // a barrier

// snippet-begin kernel
template <class T>
__global__ void __launch_bounds__(WideKeyBlock<T>::kThreads, 1) attention_backward_wide(
    const __grid_constant__ tile::TensorMap q_map,     // [batch][heads][queries][256]
    const __grid_constant__ tile::TensorMap k_map,     // … [heads / group][keys] …
    const __grid_constant__ tile::TensorMap v_map,     // as k
    const __grid_constant__ tile::TensorMap dout_map,  // as q
    const ColumnStats* stats,                          // [batch][heads][rows]
    float* dq_sums,                                    // … [rows / 16][256 / 8][lane][4]
    Heads<T> dk,                                       // [batch][keys][heads / group][256]
    Heads<T> dv,                                       // as dk
    BatchMasks masks, int batch, int heads, int group, unsigned together, float scale) {
  using namespace tile::ptx;
  using Block = WideKeyBlock<T>;
  constexpr int kHalf = Block::kHalfQueries;
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
  const int first_query = block.first_query();
  Accumulator<16, Block::kHalfCols> dk_sums, dv_sums;
  Accumulator<16, kHalf> weights, dscores;
  Accumulator<16, Block::kDqCols> dq;
  if (work.tiles > 0) {
    block.await_keys(mail, work, masks, kAllConsumers);
    block.await(mail, mail.queries(0), 0, kAllConsumers);
    block.start_scores(weights, 0, mail.stats[0]);
    block.await(mail, mail.douts(0), 0, kAllConsumers);
    block.start_dweights(dscores, 0, mail.stats[0]);
  }
  for (int i = 0; i < work.tiles; ++i) {
    const auto& tile = mail.tiles[i % 4];
    wgmma_wait<1>(registers_of(weights));
    if (tile.is_border) {
      hide(weights, mail.mask, work.first_key + block.warp_key(), tile.query + first_query);
    }
    weigh(weights, scale * kLog2E);
    Block::ScoreBoxes::store_warp(tile::as_fragment<T>(weights), block.weights(i), block.warp_key(),
                                  first_query);
    wgmma_wait<0>(registers_of(dscores));
    to_dscores(dscores, weights);
    Block::ScoreBoxes::store_warp(tile::as_fragment<T>(dscores), block.ds(i), block.warp_key(),
                                  first_query);
    const std::int64_t row = tile.sum_row;
    // snippet-begin products
    fence_async_proxy();  // wgmma sees what this thread has stored, and what all others have; and
                          // both consumers are done with the products of the tile before
    barrier_sync(kAllConsumers, Block::kConsumers * tile::kWarpgroup);
    block.start_sums(dv_sums, dk_sums, i);
    block.start_dq(dq, 0, i);
    // After the last tile the two products that follow are of what is there, and are not used.
    const int next = i + 1 < work.tiles ? i + 1 : i;
    if (next > i) block.await(mail, mail.queries(next), next, kAllConsumers);
    block.start_scores(weights, next, mail.stats[next % 2]);
    wgmma_wait<2>(registers_of(dv_sums));
    wgmma_wait<2>(registers_of(dk_sums));
    if (is_leader) mail.release(i);
    wgmma_wait<1>(registers_of(dq));
    block.add_dq(dq_sums, row, dq, 0);
    block.start_dq(dq, 1, i);
    if (next > i) block.await(mail, mail.douts(next), next, kAllConsumers);
    block.start_dweights(dscores, next, mail.stats[next % 2]);
    wgmma_wait<1>(registers_of(dq));
    block.add_dq(dq_sums, row, dq, 1);
    // snippet-end products
  }
  wgmma_wait<0>(registers_of(dscores));
  dk_sums.scale(scale);
  const int key = work.first_key + block.warp_key(), col = block.consumer * Block::kHalfCols;
  store(dk_sums, dk.rows(work.batch, work.kv_head), key, masks.keys, col);
  store(dv_sums, dv.rows(work.batch, work.kv_head), key, masks.keys, col);
}
// snippet-end kernel

}  // namespace

tile::Status takes_wide(const AttentionBackward& p, const tile::Device&) {
  if (p.head_dim != 256) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is not 256");
  }
  TILE_TRY(check_chunks(p));
  TILE_TRY(tile::check_tensor_maps(p));
  return tile::check_workspace(column_stats_and_sums_bytes(p), p.workspace_bytes);
}

tile::Status wide(const AttentionBackward& p, void* stream) {
  TILE_TRY(compute_column_stats(p, stream));
  const auto launch = [&](auto element) {
    using T = decltype(element);
    return tile::launch_key_blocks<T, WideKeyBlock<T>>(p, attention_backward_wide<T>,
                                                       "attention_backward_wide", stream);
  };
  TILE_TRY(p.type == tile::DType::fp16 ? launch(__half{}) : launch(__nv_bfloat16{}));
  return round_dq(p, tile::sums_of(p), p.dq, stream);
}

}  // namespace flash_attention
