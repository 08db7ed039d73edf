// Which tiles of keys persistent blocks visit, by consumers and by the thread that loads.
#pragma once

#include "tile/head_boxes.cuh"
#include "tile/ring.cuh"
#include "windowed/window.hpp"

namespace windowed_rope {

// snippet-begin visits
/// Goes through the parts of what a tile of kQueries queries visits, in tiles of kKeys keys, for a
/// consumer that has kRows of these queries, from first_row on.
template <int kQueries, int kRows, int kKeys>
struct Visits {
  const tile::BatchMasks& masks;
  const Window& window;
  const tile::BlockWork& work;
  int first_row;
  int part = -1;
  // Of the part: its mask, and the tiles that the block's and the consumer's queries visit.
  Mask mask{};
  Mask::Tiles visited{}, seen{};
  bool is_early = false;  // the consumer leaves out the block's last tile

  /// Goes on to the next part with any tiles, and returns whether there is one. Calls near_begins()
  /// on its way to the near part.
  template <class NearBegins>
  __device__ __forceinline__ bool next(NearBegins&& near_begins) {
    const int block_query = work.tile * kQueries;
    do {
      if (part + 1 == Window::kParts) return false;
      mask = window.part(masks.of(work.batch), ++part);
      if (is_near()) near_begins();
      visited = mask.tiles(block_query, kQueries, kKeys);
    } while (visited.first >= visited.last);
    // Rows past the tensor's last query are not stored: nothing need be hidden from them.
    const int stored = min(kRows, masks.queries - block_query - first_row);
    seen = mask.tiles(block_query + first_row, stored, kKeys);
    is_early = is_near() && seen.last < visited.last && visited.first + 1 < visited.last;
    is_early = is_early && last_rows() == kKeys;  // all clear what is cut off
    visited.last -= is_early;
    return true;
  }
  __device__ bool is_near() const { return Window::is_near(part); }
  /// How many rows of the part's last tile count. Those after an entry's last key may hold
  /// anything.
  __device__ int last_rows() const {
    return mask.keys < masks.keys ? min(mask.keys - (visited.last - 1) * kKeys, kKeys) : kKeys;
  }
  /// Hides what the mask does, if there may be any.
  __device__ void hide(tile::Accumulator<16, kKeys>& scores, int warp_query, int tile) const {
    if (tile >= seen.whole_first && tile < seen.whole_last) return;
    tile::hide(scores, mask, warp_query, tile * kKeys);
  }
};
// snippet-end visits

/// The tensors for TMA.
struct ForwardMaps {
  tile::TensorMap q1, k1, q2, k2, v, o;
};

/// What the warps of a block tell each other. The block's n-th work is in work[n % 2].
template <class Plan>
struct Mail {
  tile::ptx::Mbarrier work_full[2], far_empty, near_empty, outputs_full[2];
  tile::ptx::Mbarrier full[Plan::kStages], empty[Plan::kStages];
  tile::BlockWork work[2];

  __device__ void init() {
    using tile::ptx::mbarrier_init;
    for (tile::ptx::Mbarrier& each : work_full) mbarrier_init(&each, 1);
    mbarrier_init(&far_empty, Plan::kConsumers);  // a thread of each
    mbarrier_init(&near_empty, 2);                // the one that stores, and the one that loads
    for (tile::ptx::Mbarrier& each : outputs_full) mbarrier_init(&each, Plan::kConsumers * 4);
    tile::init_ring(full, empty, Plan::kConsumers);
  }
  /// A warp's output of the n-th tile lies where it is stored from, or there is no such tile.
  __device__ void end_tile(int n) {
    if (threadIdx.x % tile::kWarp == 0) tile::ptx::mbarrier_arrive(&outputs_full[n % 2]);
  }
};

// snippet-begin load
/// One thread loads: far keys and near ones, and the values of both. The first keys of either kind
/// bring their queries with them: Q2 when the last tile's are read, Q1 when its output has left.
template <class Plan, class QueryBoxes, class KeyBoxes>
__device__ __forceinline__ void load_tiles(Mail<Plan>& mail, tile::ptx::SharedAddress queries,
                                           tile::ptx::SharedAddress stages, const ForwardMaps& maps,
                                           const tile::QueryTiles& tiles,
                                           const tile::BatchMasks& masks, const Window& window,
                                           int group, unsigned* taken) {
  using namespace tile::ptx;
  constexpr int kNoTile = -1;
  tile::RingPlace<Plan::kStages> place;
  for (unsigned n = 0, at = atomicAdd(taken, 1u);; at = atomicAdd(taken, 1u), ++n) {
    mbarrier_wait(&mail.far_empty, n % 2 ^ 1);
    const tile::BlockWork& work = mail.work[n % 2] = tiles.work(at);
    mbarrier_arrive(&mail.work_full[n % 2]);
    if (work.is_none()) return;  // which tells all to end
    const int first_query = work.tile * Plan::kQueries, kv_head = work.head / group;
    const Mask entry = masks.of(work.batch);
    // With the keys come so many bytes more. Returns where they come.
    const auto copy = [&](const tile::TensorMap& map, int tile, int more) {
      const int stage = place.stage;
      mbarrier_wait(&mail.empty[stage], place.parity ^ 1);
      mbarrier_arrive_expect(&mail.full[stage], KeyBoxes::kBytes + more);
      KeyBoxes::load(stages + stage * KeyBoxes::kBytes, map, tile * KeyBoxes::kRows, kv_head,
                     work.batch, &mail.full[stage]);
      return place.advance();
    };
    int before = kNoTile;  // tile of the last keys; its values come after the next keys
    bool has_queries = false;
#pragma unroll
    for (int part = 0; part < Window::kParts; ++part) {
      const bool near = Window::is_near(part);
      if (near) {
        mbarrier_wait(&mail.near_empty, n % 2 ^ 1), has_queries = false;
        // Where nothing is near, the tile's output may leave before this wait. So this thread
        // arrives as well as the one that stores: the tile's phase cannot end before the wait.
        mbarrier_arrive(&mail.near_empty);
      }
      const auto visited =
          window.part(entry, part).tiles(first_query, Plan::kQueries, KeyBoxes::kRows);
#pragma unroll 1  // unrolled, it spills: this thread has 32 registers
      for (int tile = visited.first; tile < visited.last; before = tile++) {
        const int stage =
            copy(near ? maps.k1 : maps.k2, tile, has_queries ? 0 : QueryBoxes::kBytes);
        if (!has_queries) {
          QueryBoxes::load(queries + near * QueryBoxes::kBytes, near ? maps.q1 : maps.q2,
                           first_query, work.head, work.batch, &mail.full[stage]);
        }
        has_queries = true;
        if (before != kNoTile) copy(maps.v, before, 0);
      }
    }
    if (before != kNoTile) copy(maps.v, before, 0);
  }
}
// snippet-end load

/// One thread stores: the output of a tile, which lies where Q1 was.
template <class Plan, class QueryBoxes>
__device__ __forceinline__ void store_tiles(Mail<Plan>& mail, tile::ptx::SharedAddress outputs,
                                            const tile::TensorMap& o_map) {
  using namespace tile::ptx;
  for (unsigned n = 0;; ++n) {
    mbarrier_wait(&mail.outputs_full[n % 2], n / 2 % 2);
    const tile::BlockWork work = mail.work[n % 2];
    if (work.is_none()) return;
    QueryBoxes::store(o_map, work.tile * Plan::kQueries, work.head, work.batch, outputs);
    bulk_commit();
    bulk_wait_read<0>();  // then the next Q1 may come there
    mbarrier_arrive(&mail.near_empty);
  }
}

}  // namespace windowed_rope
