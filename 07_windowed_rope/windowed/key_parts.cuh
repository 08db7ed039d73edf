// Attention backward by wgmma: which tiles of queries a block of keys visits, part after part.
#pragma once

#include "tile/key_block.cuh"
#include "windowed/window.hpp"

namespace windowed_rope {

/// The tensors for TMA.
struct Maps {
  tile::TensorMap q1, k1, q2, k2, v, dout;
};

/// Tiles of queries that see the block's keys.
template <class Block>
__device__ Mask::Tiles visited_in(int part, const tile::KeyWork& work, const Window& window) {
  return window.part(work.mask, part).tiles(work.first_key, Block::kKeys, Block::kQueries);
}
/// How many there are in the parts before `end`, of all heads that share the keys.
template <class Block>
__device__ int tiles_before(int end, const tile::KeyWork& work, const Window& window, int group) {
  int tiles = 0;
  for (int part = 0; part < end; ++part) {
    const Mask::Tiles visited = visited_in<Block>(part, work, window);
    tiles += (visited.last - visited.first) * group;
  }
  return tiles;
}

/// One thread loads K2, K1 and the values, and the tiles of queries, part after part.
template <class Block>
__device__ __forceinline__ void load_parts(typename Block::Mail& mail, const Block& block,
                                           const Maps& maps, const tile::ColumnStats* stats,
                                           const tile::BatchMasks& masks, const Window& window,
                                           const tile::KeyWork& work, int batch, int heads,
                                           int group) {
  using KeyBoxes = typename Block::KeyBoxes;
  if (work.tiles == 0) return;
  mail.mask = work.mask;
  tile::ptx::mbarrier_arrive_expect(&mail.keys_full, Block::kKeyBytes);
  const auto load = [&](const tile::TensorMap& map, tile::ptx::SharedAddress to) {
    KeyBoxes::load(to, map, work.first_key, work.kv_head, work.batch, &mail.keys_full);
  };
  load(maps.k2, block.keys(0));
  load(maps.k1, block.keys(1));
  load(maps.v, block.values());
  const int rows = (masks.queries + tile::kRowsOfTerms - 1) / tile::kRowsOfTerms *
                   tile::kRowsOfTerms;  // of a head
  // TMA clears what is past the tensor's end itself.
  const int length = work.mask.keys < masks.queries ? work.mask.keys : rows;
  int i = 0;
#pragma unroll 1
  // snippet-begin load
  for (int part = 0; part < Window::kParts; ++part) {
    const Mask::Tiles visited = visited_in<Block>(part, work, window);
    const bool near = Window::is_near(part);
    for (int head = work.kv_head * group; head < (work.kv_head + 1) * group; ++head) {
      for (int tile = visited.first; tile < visited.last; ++tile, ++i) {
        const int query = tile * Block::kQueries;
        const std::int64_t row = (std::int64_t{work.batch} * heads + head) * rows + query;
        mail.await_free(mail.queries(i), i);
        mail.tiles[i % 4] = {near ? row : row + std::int64_t{batch} * heads * rows, query,
                             min(Block::kQueries, length - query), part,
                             tile < visited.whole_first || tile >= visited.whole_last};
        load_tile(mail, block, i, query, head, work.batch, near ? maps.q1 : maps.q2, maps.dout,
                  stats + row);
      }
    }
  }
  // snippet-end load
}

}  // namespace windowed_rope
