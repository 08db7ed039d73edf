// Which tiles of keys persistent blocks visit, by consumers and by the thread that loads.
#pragma once

#include "tile/head_boxes.cuh"
#include "tile/query_queue.cuh"
#include "windowed/windowed_rope.cuh"

namespace windowed_rope {

// snippet-begin visits
/// Goes through the tiles of kKeys keys that a block's tile of kQueries queries visits, part after
/// part, for a consumer that has kRows of these queries.
template <int kQueries, int kRows, int kKeys>
struct Visits {
  int part = -1, tile = 0;
  // Of the part: its mask, and the tiles that the block's and the consumer's queries visit.
  Mask mask{};
  Mask::Tiles visited{}, seen{};
  bool is_early = false;  // the consumer leaves out the block's last tile

  /// Goes on to the part's next tile, or to the first one of the next part that has any. Returns
  /// whether there is one.
  __device__ __forceinline__ bool next(const BatchMasks& masks, const Window& window,
                                       const BlockWork& work, int first_row) {
    const int block_query = work.tile * kQueries;
    for (++tile; tile >= visited.last && part + 1 < Window::kParts; tile = visited.first) {
      mask = window.part(masks.of(work.batch), ++part);
      visited = mask.tiles(block_query, kQueries, kKeys);
      seen = mask.tiles(block_query + first_row, kRows, kKeys);
      is_early = Window::is_near(part) && seen.last < visited.last &&
                 visited.first + 1 < visited.last && !lacks_rows(masks, visited.last - 1);
      visited.last -= is_early;
    }
    return tile < visited.last;
  }
  /// Whether the entry's keys end within a tile and rows of memory follow, which may hold anything.
  __device__ bool lacks_rows(const BatchMasks& masks, int of_tile) const {
    return mask.keys < masks.keys && mask.keys - of_tile * kKeys < kKeys;
  }
  /// Whether all of the consumer's queries see all keys of this tile.
  __device__ bool is_whole() const { return tile >= seen.whole_first && tile < seen.whole_last; }
};
// snippet-end visits

// snippet-begin load
/// One thread loads: both queries of a tile, then far keys and near ones, and the values of both.
template <class Plan, class QueryBoxes, class KeyBoxes>
__device__ __forceinline__ void load_tiles(
    tile::Mailbox<Plan>& mail, tile::ptx::SharedAddress queries, tile::ptx::SharedAddress stages,
    const tile::TensorMap& q1_map, const tile::TensorMap& k1_map, const tile::TensorMap& q2_map,
    const tile::TensorMap& k2_map, const tile::TensorMap& v_map, const tile::QueryTiles& tiles,
    const BatchMasks& masks, const Window& window, int group, unsigned* taken) {
  using namespace tile::ptx;
  constexpr int kNoTile = -1;
  tile::RingPlace<Plan::kStages> place;
  tile::RingPlace<Plan::kQueryStages> tile_place;
  for (unsigned at = atomicAdd(taken, 1u);; at = atomicAdd(taken, 1u), tile_place.advance()) {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_empty[i], tile_place.parity ^ 1);
    mail.work_at[i] = at;
    if (at >= tiles.all) return mbarrier_arrive(&mail.queries_full[i]);  // tells all to end
    const BlockWork work = tiles.work(at);
    const int first_query = work.tile * Plan::kQueries, kv_head = work.head / group;
    const SharedAddress q2 = queries + i * 2 * QueryBoxes::kBytes, q1 = q2 + QueryBoxes::kBytes;
    mbarrier_arrive_expect(&mail.queries_full[i], 2 * QueryBoxes::kBytes);
    QueryBoxes::load(q2, q2_map, first_query, work.head, work.batch, &mail.queries_full[i]);
    QueryBoxes::load(q1, q1_map, first_query, work.head, work.batch, &mail.queries_full[i]);
    const Mask entry = masks.of(work.batch);
    const auto copy = [&](const tile::TensorMap& map, int tile) {
      const int stage = place.stage;
      mbarrier_wait(&mail.empty[stage], place.parity ^ 1);
      mbarrier_arrive_expect(&mail.full[stage], KeyBoxes::kBytes);
      KeyBoxes::load(stages + stage * KeyBoxes::kBytes, map, tile * Plan::kKeys, kv_head,
                     work.batch, &mail.full[stage]);
      place.advance();
    };
    int before = kNoTile;  // tile of the last keys; its values come after the next keys
#pragma unroll
    for (int part = 0; part < Window::kParts; ++part) {
      const auto visited = window.part(entry, part).tiles(first_query, Plan::kQueries, Plan::kKeys);
#pragma unroll 1  // unrolled, it spills: this thread has 32 registers
      for (int tile = visited.first; tile < visited.last; before = tile++) {
        copy(Window::is_near(part) ? k1_map : k2_map, tile);
        if (before != kNoTile) copy(v_map, before);
      }
    }
    if (before != kNoTile) copy(v_map, before);
  }
}
// snippet-end load

}  // namespace windowed_rope
