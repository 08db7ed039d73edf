// Forward, by persistent blocks: a queue of tiles of queries, and the thread that takes them from
// it and loads them.
#pragma once

#include <algorithm>

#include "flash_attention.cuh"
#include "tile/head_boxes.cuh"
#include "tile/ring.cuh"

namespace flash_attention {

/// Of all heads: tiles of queries, numbered so that the ones with the most keys come first.
struct QueryTiles {
  int batch, heads, of_head;
  unsigned together;  // heads, whose tiles are taken in turn

  __device__ unsigned all() const { return static_cast<unsigned>(batch * heads) * of_head; }
  __device__ BlockWork work(unsigned at) const {
    const BlockWork work = tile::longest_first(at, together, batch, heads, of_head);
    return {work.batch, work.head, of_head - 1 - work.tile};  // the last queries see the most keys
  }
};

/// The tiles of `rows` queries, and the blocks for them: one a multiprocessor at most.
inline tile::Status queue_of(const AttentionForward& p, int rows, QueryTiles* tiles,
                             unsigned* blocks) {
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, rows, blocks));
  *blocks = std::min(*blocks, static_cast<unsigned>(tile::device().multiprocessors));
  // Where the last queries see the most keys, tiles of as many heads are taken together as have
  // 32 MiB of keys and values in the L2 (of an H100: 50): the more tiles there are, the better do
  // short ones fill gaps. Otherwise of few heads, which find each other's keys in the L2.
  const std::int64_t head_bytes = p.keys * p.head_dim * 4;
  const std::int64_t heads = p.right < p.keys ? (32 << 20) / head_bytes * group_of(p) : 8;
  *tiles = {static_cast<int>(p.batch), static_cast<int>(p.heads), tiles_of(p.queries, rows),
            static_cast<unsigned>(std::clamp<std::int64_t>(heads, 1, p.batch * p.heads))};
  return {};
}

/// What the warps of a block tell each other.
template <class Plan>
struct Mailbox {
  tile::ptx::Mbarrier queries_full[Plan::kQueryStages], queries_empty[Plan::kQueryStages];
  tile::ptx::Mbarrier full[Plan::kStages], empty[Plan::kStages];
  unsigned work_at[Plan::kQueryStages];  // the number of the queries' tile
};

// snippet-begin load
/// One thread loads: the queries of a tile, and the keys and values that they see.
template <class Plan, class QueryBoxes, class KeyBoxes>
__device__ __forceinline__ void load_tiles(Mailbox<Plan>& mail, tile::ptx::SharedAddress queries,
                                           tile::ptx::SharedAddress stages,
                                           const tile::TensorMap& q_map,
                                           const tile::TensorMap& k_map,
                                           const tile::TensorMap& v_map, const QueryTiles& tiles,
                                           const BatchMasks& masks, int group, unsigned* taken) {
  using namespace tile::ptx;
  tile::RingPlace<Plan::kStages> place;
  tile::RingPlace<Plan::kQueryStages> tile_place;
  for (unsigned at = blockIdx.x, next = 0;; at = next, tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_empty[i], tile_place.parity ^ 1);
    mail.work_at[i] = at;
    if (at >= tiles.all()) return mbarrier_arrive(&mail.queries_full[i]);  // tells all to end
    next = gridDim.x + atomicAdd(taken, 1u);  // the first ones are those of the grid
    const BlockWork work = tiles.work(at);
    const int first_query = work.tile * Plan::kQueries;
    mbarrier_arrive_expect(&mail.queries_full[i], QueryBoxes::kBytes);
    QueryBoxes::load(queries + i * QueryBoxes::kBytes, q_map, first_query, work.head, work.batch,
                     &mail.queries_full[i]);
    const auto copy = [&](const tile::TensorMap& map, int tile) {
      const int stage = place.stage;
      mbarrier_wait(&mail.empty[stage], place.parity ^ 1);
      mbarrier_arrive_expect(&mail.full[stage], KeyBoxes::kBytes);
      KeyBoxes::load(stages + stage * KeyBoxes::kBytes, map, tile * Plan::kKeys, work.head / group,
                     work.batch, &mail.full[stage]);
      place.advance();
    };
    const auto visited = masks.of(work.batch).tiles(first_query, Plan::kQueries, Plan::kKeys);
    for (int tile = visited.first; tile <= visited.last; ++tile) {
      if (tile < visited.last) copy(k_map, tile);
      if (tile > visited.first) copy(v_map, tile - 1);  // values come after the next keys
    }
  }
}
// snippet-end load

}  // namespace flash_attention
