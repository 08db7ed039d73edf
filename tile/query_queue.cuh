// What persistent blocks of attention share: the tiles of queries that they take from a queue, what
// the warps of a block tell each other, and the thread that stores outputs.
#pragma once

#include "tile/heads.cuh"
#include "tile/ptx/tma.cuh"
#include "tile/ring.cuh"

namespace tile {

/// Of all heads: tiles of queries, numbered so that the ones with the most keys come first.
struct QueryTiles {
  int batch, heads, of_head;
  unsigned all, together;  // tiles; and heads, whose tiles are taken in turn

  __device__ BlockWork work(unsigned at) const {
    const BlockWork work = longest_first(at, together, batch, heads, of_head);
    return {work.batch, work.head, of_head - 1 - work.tile};  // the last queries see the most keys
  }
};

/// What the warps of a block tell each other.
template <class Plan>
struct Mailbox {
  ptx::Mbarrier queries_full[Plan::kQueryStages], queries_empty[Plan::kQueryStages];
  ptx::Mbarrier outputs_full[Plan::kQueryStages];
  ptx::Mbarrier full[Plan::kStages], empty[Plan::kStages];
  unsigned work_at[Plan::kQueryStages];  // the number of the queries' tile

  /// By one thread, before a barrier of all.
  __device__ void init() {
    init_ring(queries_full, queries_empty, 1);  // the thread that stores
    for (ptx::Mbarrier& output_full : outputs_full) {
      ptx::mbarrier_init(&output_full, Plan::kConsumers * 4);
    }
    init_ring(full, empty, Plan::kConsumers);  // a thread of each
  }
};

/// One thread stores: the output of a tile, which lies where its queries were, the first of
/// stage_bytes bytes.
template <class Plan, class QueryBoxes>
__device__ __forceinline__ void store_tiles(Mailbox<Plan>& mail, ptx::SharedAddress queries,
                                            int stage_bytes, const TensorMap& o_map,
                                            const QueryTiles& tiles) {
  using namespace ptx;
  for (RingPlace<Plan::kQueryStages> tile_place;; tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_full[i], tile_place.parity);
    const unsigned at = mail.work_at[i];
    if (at >= tiles.all) return;
    mbarrier_wait(&mail.outputs_full[i], tile_place.parity);
    const BlockWork work = tiles.work(at);
    QueryBoxes::store(o_map, work.tile * Plan::kQueries, work.head, work.batch,
                      queries + i * stage_bytes);
    bulk_commit();
    bulk_wait_read<0>();  // then the next queries may come there
    mbarrier_arrive(&mail.queries_empty[i]);
  }
}

}  // namespace tile
