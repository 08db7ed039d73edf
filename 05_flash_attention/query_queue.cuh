// What persistent blocks of attention share, which take tiles of queries from a queue: what the
// warps of a block tell each other, and the threads that load and store.
#pragma once

#include "launch.hpp"
#include "tile/accumulator.cuh"
#include "tile/ptx/tma.cuh"
#include "tile/ring.cuh"

namespace flash_attention {

/// What the warps of a block tell each other.
template <class Plan>
struct Mailbox {
  tile::ptx::Mbarrier queries_full[Plan::kQueryStages], queries_empty[Plan::kQueryStages];
  tile::ptx::Mbarrier outputs_full[Plan::kQueryStages];
  tile::ptx::Mbarrier full[Plan::kStages], empty[Plan::kStages];
  tile::BlockWork work[Plan::kQueryStages];  // of the queries

  /// By one thread, before a barrier of all. So many threads say that queries' rows are free: the
  /// one that stores, or one of each warp that reads them.
  __device__ void init(unsigned readers = 1) {
    tile::init_ring(queries_full, queries_empty, readers);
    for (tile::ptx::Mbarrier& output_full : outputs_full) {
      tile::ptx::mbarrier_init(&output_full, Plan::kConsumers * 4);
    }
    tile::init_ring(full, empty, Plan::kConsumers);  // a thread of each
  }
};

// snippet-begin pack
/// The mask of the rows of a pack: row r is of query r >> log2_pack.
struct PackMask : Mask {
  int log2_pack;

  /// The tensor has `stored` queries. Rows past these are not stored: nothing need be hidden there.
  __device__ Tiles tiles_of_rows(int first_row, int rows, int tile, int stored) const {
    const int first = first_row >> log2_pack;
    return tiles(first, min(rows >> log2_pack, stored - first), tile);
  }
};
/// Hides the scores of the rows from first_row on.
template <int kCols>
__device__ __forceinline__ void hide(tile::Accumulator<16, kCols>& scores, const PackMask& mask,
                                     int first_row, int first_key) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    hide_row(scores, r, mask, (first_row + scores.row(r)) >> mask.log2_pack, first_key);
  }
}
// snippet-end pack

// snippet-begin load
/// One thread loads: the queries of a tile, and the keys and values that they see.
template <class Plan, class QueryBoxes, class KeyBoxes>
__device__ __forceinline__ void load_tiles(
    Mailbox<Plan>& mail, tile::ptx::SharedAddress queries, tile::ptx::SharedAddress stages,
    const tile::TensorMap& q_map, const tile::TensorMap& k_map, const tile::TensorMap& v_map,
    const tile::QueryTiles& tiles, const BatchMasks& masks, int group, unsigned* taken) {
  using namespace tile::ptx;
  tile::RingPlace<Plan::kStages> place;
  tile::RingPlace<Plan::kQueryStages> tile_place;
  unsigned at = blockIdx.x;  // the first tiles are those of the grid
  const auto load_queries = [&]() -> BlockWork {
    // Four divisions: by this thread and not by all that want to know, and before the wait.
    const BlockWork work = tiles.work(at);
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_empty[i], tile_place.parity ^ 1);
    tile_place.advance();
    mail.work[i] = work;
    if (work.is_none()) return mbarrier_arrive(&mail.queries_full[i]), work;  // tells all to end
    mbarrier_arrive_expect(&mail.queries_full[i], QueryBoxes::kBytes);
    QueryBoxes::load(queries + i * QueryBoxes::kBytes, q_map, work.head << tiles.log2_pack,
                     work.tile * Plan::kQueries >> tiles.log2_pack, work.batch,
                     &mail.queries_full[i]);
    return work;
  };
  for (BlockWork work, next = load_queries(); !next.is_none();) {
    work = next;
    const auto copy = [&](const tile::TensorMap& map, int tile) {
      const int stage = place.stage;
      mbarrier_wait(&mail.empty[stage], place.parity ^ 1);
      mbarrier_arrive_expect(&mail.full[stage], KeyBoxes::kBytes);
      KeyBoxes::load(stages + stage * KeyBoxes::kBytes, map, tile * Plan::kKeys,
                     (work.head << tiles.log2_pack) / group, work.batch, &mail.full[stage]);
      place.advance();
    };
    const PackMask mask{masks.of(work.batch), tiles.log2_pack};
    const auto visited =
        mask.tiles_of_rows(work.tile * Plan::kQueries, Plan::kQueries, Plan::kKeys, masks.queries);
    for (int tile = visited.first; tile < visited.last; ++tile) {
      copy(k_map, tile);
      if (tile > visited.first) copy(v_map, tile - 1);  // values come after the next keys
    }
    at = gridDim.x + atomicAdd(taken, 1u);  // no sooner, so that all blocks end at the same time
    // The next queries come before these last values, if there is a place for them.
    if constexpr (Plan::kQueryStages > 1) next = load_queries();
    if (visited.first < visited.last) copy(v_map, visited.last - 1);
    if constexpr (Plan::kQueryStages == 1) {
      for (int i = 0; i < Plan::kConsumers; ++i) {  // a stage for each consumer's output
        mbarrier_wait(&mail.empty[place.stage], place.parity ^ 1);
        mbarrier_arrive(&mail.full[place.advance()]);
      }
      next = load_queries();
    }
  }
}
// snippet-end load

// snippet-begin store
/// One thread stores: the output of a tile, which lies where its queries were, the first of
/// stage_bytes bytes.
template <class Plan, class QueryBoxes>
__device__ __forceinline__ void store_tiles(Mailbox<Plan>& mail, tile::ptx::SharedAddress queries,
                                            int stage_bytes, const tile::TensorMap& o_map,
                                            int log2_pack) {
  using namespace tile::ptx;
  for (tile::RingPlace<Plan::kQueryStages> tile_place;; tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_full[i], tile_place.parity);
    const BlockWork work = mail.work[i];
    if (work.is_none()) return;
    mbarrier_wait(&mail.outputs_full[i], tile_place.parity);
    QueryBoxes::store(o_map, work.head << log2_pack, work.tile * Plan::kQueries >> log2_pack,
                      work.batch, queries + i * stage_bytes);
    bulk_commit();
    bulk_wait_read<0>();  // then the next queries may come there
    mbarrier_arrive(&mail.queries_empty[i]);
  }
}
// snippet-end store

}  // namespace flash_attention
