// Backward, step 10: dQ added in the same order each time.
// Idea: for each half of a tile's dQ there is a counter of the blocks that have added to it, and a
//       block waits for its turn. Blocks begin with the last keys, whose first tile of queries has
//       no keys after them under a causal mask: so each block finds that the one before has just
//       left.
// Change: two threads beside the one that loads wait and send, so that no consumer does: each has
//         dQ of one consumer. A block takes its number when it begins: it waits only for blocks
//         that began before, whatever the order in which the card starts them.
// Limit: short blocks begin first, so that the long ones leave gaps at the end; without a mask the
//        blocks of a head that begin together wait for one another once.
#include <type_traits>

#include "launch.hpp"
#include "load_key_block.cuh"
#include "tile/host/key_blocks.hpp"
#include "tile/key_block.cuh"
#include "tile/ptx/compute_now.cuh"
#include "tile/ptx/semaphore.cuh"

namespace flash_attention {
namespace {

using tile::Accumulator, tile::ColumnStats, tile::Hides;

constexpr int kAllConsumers = 1, kFirstTurn = 2;  // barriers

/// Under a causal mask the last keys are seen by the fewest queries.
__device__ BlockWork keys_shortest_first(unsigned at, unsigned together, int batch, int heads,
                                         int tiles) {
  const BlockWork work = tile::longest_first(at, together, batch, heads, tiles);
  return {work.batch, work.head, tiles - 1 - work.tile};
}

// snippet-begin order
/// One thread adds what a consumer has staged of each tile's dQ, when it is the block's turn.
template <class T, int kDim>
__device__ void send_sums(tile::ptx::Mbarrier* full, tile::ptx::Mbarrier* empty,
                          tile::KeyBlock<T, kDim> block, const tile::KeyWork& work, int rows,
                          int heads, int group, float* dq_sums, unsigned* counters) {
  using namespace tile::ptx;
  using Block = tile::KeyBlock<T, kDim>;
  int i = 0;
  for (int head = work.kv_head * group; head < (work.kv_head + 1) * group; ++head) {
    for (int tile = work.visited.first; tile < work.visited.last; ++tile, ++i) {
      const int query = tile * Block::kQueries;
      const int row = (work.batch * heads + head) * (rows / Block::kQueries) + tile;
      unsigned* const counter = counters + row * Block::kConsumers + block.consumer;
      // So many blocks add before this one: those of later keys.
      const int end = work.mask.transposed().tiles(query, Block::kQueries, Block::kKeys).last;
      semaphore_wait(counter, end - 1 - work.first_key / Block::kKeys);
      mbarrier_wait(&full[block.consumer], i % 2);
      for (block.warp = 0; block.warp < 4; ++block.warp) {
        block.send_dq(block.warp_sums(dq_sums, std::int64_t{row} * Block::kQueries));
      }
      bulk_wait_read<0>();
      mbarrier_arrive(&empty[block.consumer]);
      bulk_wait<0>();  // the sums are there
      semaphore_add(counter);
    }
  }
}
// snippet-end order

// snippet-begin kernel
template <class T, int kDim, Hides kHides>
__global__ void __launch_bounds__(tile::KeyBlock<T, kDim>::kThreads, 1) attention_backward_in_order(
    const __grid_constant__ tile::TensorMap q_map,     // [batch][heads][queries][kDim]
    const __grid_constant__ tile::TensorMap k_map,     // … [heads / group][keys] …
    const __grid_constant__ tile::TensorMap v_map,     // as k
    const __grid_constant__ tile::TensorMap dout_map,  // as q
    const ColumnStats* stats,                          // [batch][heads][rows]
    float* dq_sums,                                    // … [rows / 16][kDim / 8][lane][4]
    Heads<T> dk,                                       // [batch][keys][heads / group][kDim]
    Heads<T> dv,                                       // as dk
    BatchMasks masks, int batch, int heads, int group, unsigned together, float scale,
    unsigned* counters) {
  using namespace tile::ptx;
  using Block = tile::KeyBlock<T, kDim>;
  constexpr int kQueries = Block::kQueries;
  constexpr bool kHasLengths = kHides == Hides::rows;
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ typename Block::Mail mail;
  __shared__ Mbarrier sums_full[2], sums_empty[2];  // what each consumer stages of dQ
  __shared__ unsigned number;                       // of the block
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    mail.init(Block::kWarps), number = atomicAdd(counters, 1u);
    for (Mbarrier& full : sums_full) mbarrier_init(&full, Block::kWarps / 2);
    for (Mbarrier& empty : sums_empty) mbarrier_init(&empty, 1);
  }
  __syncthreads();  // the mbarriers are initialised before any thread uses them

  const Block block(smem, warpgroup);
  const auto work =
      tile::work_of_keys<Block>(keys_shortest_first(number, together, batch, heads / group,
                                                    (masks.keys + Block::kKeys - 1) / Block::kKeys),
                                masks, group);
  if (warpgroup == 0) {
    setmaxnreg_dec<Block::kProducerRegisters>();
    if (threadIdx.x == 0) {
      load_tiles(mail, block, q_map, k_map, v_map, dout_map, stats, masks, work, heads, group);
    } else if (threadIdx.x % tile::kWarp == 0 && threadIdx.x / tile::kWarp <= Block::kConsumers) {
      const int rows = (masks.queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;
      send_sums<T, kDim>(sums_full, sums_empty,
                         Block(smem, static_cast<int>(threadIdx.x) / tile::kWarp), work, rows,
                         heads, group, dq_sums, counters + 1);
    }
    return;
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
    mbarrier_wait(&sums_empty[block.consumer], i % 2 ^ 1);
    block.stage_dq(dq);
    if (is_leader) mbarrier_arrive(&sums_full[block.consumer]);
  };
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
}
// snippet-end kernel

}  // namespace

tile::Status takes_in_order(const AttentionBackward& p, const tile::Device&) {
  TILE_TRY(check_chunks(p));
  TILE_TRY(tile::check_key_blocks(p));
  return tile::check_workspace(ordered_sums_bytes(p), p.workspace_bytes);
}

tile::Status in_order(const AttentionBackward& p, void* stream) {
  // After the sums, of which each half of a tile has a counter; the first one is that of blocks.
  auto* counters = reinterpret_cast<unsigned*>(reinterpret_cast<float*>(tile::sums_of(p)) +
                                               tile::rows_of_dq_sums(p) * p.head_dim);
  const std::int64_t bytes = ordered_sums_bytes(p) - column_stats_and_sums_bytes(p);
  TILE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(counters, 0, bytes, static_cast<cudaStream_t>(stream)));
  TILE_TRY(compute_column_stats(p, stream));
  TILE_TRY(with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    // Without a mask, too, 8 heads begin together: of one head more than 16 blocks of 132 would
    // wait for one another.
    using Block = tile::KeyBlock<T, kDim>;
    return tile::with_hides<Block>(p, [&](auto hides) {
      return tile::launch_key_blocks<T, Block, 8>(p,
                                                  attention_backward_in_order<T, kDim, hides.value>,
                                                  "attention_backward_in_order", stream, counters);
    });
  }));
  return round_dq(p, tile::sums_of(p), p.dq, stream);
}

}  // namespace flash_attention
