// Attention backward by wgmma: the thread that loads for a block of keys.
#pragma once

#include "launch.hpp"
#include "tile/key_blocks.cuh"

namespace flash_attention {

/// One thread loads the keys and values, and the tiles of queries with their dO.
template <class Block>
__device__ __forceinline__ void load_tiles(typename Block::Mail& mail, const Block& block,
                                           const tile::TensorMap& q_map,
                                           const tile::TensorMap& k_map,
                                           const tile::TensorMap& v_map,
                                           const tile::TensorMap& dout_map,
                                           const tile::ColumnStats* stats, const BatchMasks& masks,
                                           const tile::KeyWork& work, int heads, int group) {
  using KeyBoxes = typename Block::KeyBoxes;
  if (work.tiles == 0) return;
  mail.mask = work.mask;
  tile::ptx::mbarrier_arrive_expect(&mail.keys_full, Block::kKeyBytes);
  KeyBoxes::load(block.keys(0), k_map, work.first_key, work.kv_head, work.batch, &mail.keys_full);
  KeyBoxes::load(block.values(), v_map, work.first_key, work.kv_head, work.batch, &mail.keys_full);
  const int rows = (masks.queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;  // of a head
  // TMA clears what is past the tensor's end itself.
  const int length = work.mask.keys < masks.queries ? work.mask.keys : rows;
  int i = 0;
  // snippet-begin load
  for (int head = work.kv_head * group; head < (work.kv_head + 1) * group; ++head) {
#pragma unroll 1  // unrolled, it may spill: this thread has 24 registers
    for (int tile = work.visited.first; tile < work.visited.last; ++tile, ++i) {
      const int query = tile * Block::kQueries;
      const std::int64_t row = (std::int64_t{work.batch} * heads + head) * rows + query;
      mail.await_free(mail.queries(i), i);
      mail.tiles[i % 4] = {row, query, min(Block::kQueries, length - query), 0,
                           tile < work.visited.whole_first || tile >= work.visited.whole_last};
      load_tile(mail, block, i, query, head, work.batch, q_map, dout_map, stats + row);
    }
  }
  // snippet-end load
}

}  // namespace flash_attention
