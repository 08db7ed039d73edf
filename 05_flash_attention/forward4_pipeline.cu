// Forward, step 4: copies in the background.
// Idea: while a tile of keys is multiplied, cp.async copies the next one. A block visits only tiles
//       that one of its queries sees, and masks single scores only in tiles at the mask's border.
// Change: two buffers for keys and two for values, one barrier for each tile; Mask::tiles().
// Limit: shared memory. A warp of 16 queries loads 16 bytes a lane for every two mma.
#include "launch.hpp"
#include "tile/row_softmax.cuh"
#include "tile/shared_tile.cuh"

namespace flash_attention {
namespace {

using tile::RowSoftmax, tile::SharedTile, tile::Accumulator;

constexpr int kWarps = 4, kThreads = kWarps * tile::kWarp;
constexpr int kQueries = kWarps * 16, kKeys = 64;

template <class T, int kDim>
__global__ void attention_pipeline(Heads<const T> q,  // [batch][queries][heads][kDim]
                                   Heads<const T> k,  // [batch][keys][heads / group][kDim]
                                   Heads<const T> v,  // as k
                                   Heads<T> o,        // [batch][queries][heads][kDim]
                                   float* lse,        // [batch][heads][queries], or null
                                   BatchMasks masks, int heads, int group, float scale_log2) {
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, [2]{keys, values}}
  const QueryTile q_tile(smem);
  const auto work = work_of_block(heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_query = static_cast<int>(threadIdx.x) / tile::kWarp * 16;  // in the tile

  // snippet-begin copies
  const auto k_tile = [&](int tile) {
    return KeyTile(smem + QueryTile::kBytes + tile % 2 * 2 * KeyTile::kBytes);
  };
  const auto v_tile = [&](int tile) { return k_tile(tile).after(KeyTile::kBytes); };
  const auto copy = [&](int tile) {
    const int key = tile * kKeys;
    k_tile(tile).template copy_async<kThreads>(k.rows(work.batch, kv_head, key), mask.keys - key);
    v_tile(tile).template copy_async<kThreads>(v.rows(work.batch, kv_head, key), mask.keys - key);
  };
  const Mask::Tiles visited = mask.tiles(block_query, kQueries, kKeys);
  q_tile.template copy_async<kThreads>(q.rows(work.batch, work.head, block_query),
                                       mask.queries - block_query);
  if (visited.first < visited.last) copy(visited.first);
  // snippet-end copies

  // snippet-begin loop
  RowSoftmax<16> softmax(scale_log2);
  Accumulator<16, kDim> out;
  for (int tile = visited.first; tile < visited.last; ++tile) {
    tile::ptx::cp_async_wait_all();
    // This tile has landed, and all warps are done with the previous one, whose buffer the next
    // copy overwrites.
    __syncthreads();
    if (tile + 1 < visited.last) copy(tile + 1);
    // S = Q K^T
    Accumulator<16, kKeys> scores;
    mma_ABt<T>(scores, q_tile, warp_query, k_tile(tile), 0);
    const bool whole = tile >= visited.whole_first && tile < visited.whole_last;
    if (!whole) hide(scores, mask, block_query + warp_query, tile * kKeys);
    // P, and O is corrected
    softmax.add(scores, out);
    // O += P V
    mma_AB<T>(out, as_fragment<T>(scores), v_tile(tile), 0);
  }
  // snippet-end loop
  tile::ptx::cp_async_wait_all();  // if the loop is empty, the queries are still under way
  float row_lse[2];
  softmax.finish(out, row_lse);
  store(out, o.rows(work.batch, work.head), block_query + warp_query, masks.queries);
  tile::store_lse(row_lse, lse_of_head(lse, work, heads, masks.queries), block_query + warp_query,
                  masks.queries);
}

}  // namespace

tile::Status pipeline(const AttentionForward& p, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, kQueries, &blocks));
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    constexpr int kBytes = (kQueries + 4 * kKeys) * kDim * int{sizeof(T)};
    return tile::launch(attention_pipeline<T, kDim>, "attention_pipeline", blocks, kThreads, kBytes,
                        stream, heads_of<const T>(p.q), heads_of<const T>(p.k),
                        heads_of<const T>(p.v), heads_of<T>(p.o), p.lse, masks_of(p), p.heads,
                        group_of(p), p.scale * kLog2E);
  });
}

}  // namespace flash_attention
