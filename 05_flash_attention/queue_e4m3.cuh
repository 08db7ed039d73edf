// What persistent blocks of attention in 8 bits share, as query_queue.cuh has it for 16 bits: what
// the warps of a block tell each other, and the thread that loads.
#pragma once

#include "launch.hpp"
#include "tile/head_boxes.cuh"
#include "tile/host/query_queue.hpp"
#include "tile/ring.cuh"

namespace flash_attention {

constexpr int kFirstTransposer = 2, kTransposers = 2;  // warps of the first warpgroup

/// What the warps of a block tell each other: of queries and keys, of values as TMA brings them,
/// and of transposed values.
template <class Plan>
struct MailE4m3 {
  tile::ptx::Mbarrier queries_full[Plan::kQueryStages], queries_empty[Plan::kQueryStages];
  tile::ptx::Mbarrier keys_full[Plan::kStages], keys_empty[Plan::kStages];
  tile::ptx::Mbarrier loaded_full[Plan::kLoadedStages], loaded_empty[Plan::kLoadedStages];
  tile::ptx::Mbarrier values_full[Plan::kStages], values_empty[Plan::kStages];
  tile::BlockWork work[Plan::kQueryStages];  // of the queries

  /// By one thread, before a barrier of all.
  __device__ void init() {
    tile::init_ring(queries_full, queries_empty, kTransposers + Plan::kConsumers * 4);  // of warps
    tile::init_ring(keys_full, keys_empty, Plan::kConsumers);  // a thread of each
    tile::init_ring(loaded_full, loaded_empty, kTransposers);
    for (int stage = 0; stage < Plan::kStages; ++stage) {
      tile::ptx::mbarrier_init(&values_full[stage], kTransposers);
      tile::ptx::mbarrier_init(&values_empty[stage], Plan::kConsumers);
    }
  }
};

/// One thread loads: the queries of a tile, and the keys and values that they see.
template <class Plan>
__device__ __forceinline__ void load_e4m3(MailE4m3<Plan>& mail, tile::ptx::SharedAddress smem,
                                          const tile::TensorMap& q_map,
                                          const tile::TensorMap& k_map,
                                          const tile::TensorMap& v_map,
                                          const tile::QueryTiles& tiles, const BatchMasks& masks,
                                          int group, unsigned* taken) {
  using namespace tile::ptx;
  using QueryBoxes = typename Plan::QueryBoxes;
  using KeyBoxes = typename Plan::KeyBoxes;
  tile::RingPlace<Plan::kStages> key_place;
  tile::RingPlace<Plan::kLoadedStages> value_place;
  tile::RingPlace<Plan::kQueryStages> tile_place;
  unsigned at = blockIdx.x;  // the first tiles are those of the grid
  const auto load_queries = [&]() -> BlockWork {
    const int i = tile_place.stage;
    mbarrier_wait(&mail.queries_empty[i], tile_place.parity ^ 1);
    tile_place.advance();
    const BlockWork work = mail.work[i] = tiles.work(at);
    if (work.is_none()) return mbarrier_arrive(&mail.queries_full[i]), work;  // tells all to end
    mbarrier_arrive_expect(&mail.queries_full[i], QueryBoxes::kBytes);
    QueryBoxes::load(smem + i * QueryBoxes::kBytes, q_map, work.tile * Plan::kQueries, work.head,
                     work.batch, &mail.queries_full[i]);
    return work;
  };
  for (BlockWork work, next = load_queries(); !next.is_none();) {
    work = next;
    const auto copy = [&](auto& place, Mbarrier* full, Mbarrier* empty, int stages_at,
                          const tile::TensorMap& map, int tile) {
      const int stage = place.stage;
      mbarrier_wait(&empty[stage], place.parity ^ 1);
      mbarrier_arrive_expect(&full[stage], KeyBoxes::kBytes);
      KeyBoxes::load(smem + stages_at + stage * KeyBoxes::kBytes, map, tile * Plan::kKeys,
                     work.head / group, work.batch, &full[stage]);
      place.advance();
    };
    const auto copy_values = [&](int tile) {
      copy(value_place, mail.loaded_full, mail.loaded_empty, Plan::kLoadedAt, v_map, tile);
    };
    const auto visited =
        masks.of(work.batch).tiles(work.tile * Plan::kQueries, Plan::kQueries, Plan::kKeys);
    for (int tile = visited.first; tile < visited.last; ++tile) {
      copy(key_place, mail.keys_full, mail.keys_empty, Plan::kKeysAt, k_map, tile);
      if (tile > visited.first) copy_values(tile - 1);  // values come after the next keys
    }
    at = gridDim.x + atomicAdd(taken, 1u);  // no sooner, so that all blocks end at the same time
    next = load_queries();
    if (visited.first < visited.last) copy_values(visited.last - 1);
  }
}

}  // namespace flash_attention
