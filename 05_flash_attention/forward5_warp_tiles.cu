// Forward, step 5: 32 queries for each warp.
// Idea: a warp multiplies the keys and values that it loads with two times 16 queries. The queries
//       stay in registers where they fit, tiles of queries that see many keys begin first, and a
//       warp skips a tile of keys that none of its own queries sees.
// Change: 128 queries for a block, in work_longest_first()'s order; at 64 columns the queries in
//         registers, at 128 tiles of 32 keys; Mask::any_sees().
// Limit: products and exponentials take turns, and the maximum costs shuffles and a correction in
//        every tile.
#include "launch.hpp"
#include "tile/row_softmax.cuh"
#include "tile/shared_tile.cuh"

namespace flash_attention {
namespace {

using tile::Fragment, tile::RowSoftmax, tile::SharedTile, tile::Accumulator;

constexpr int kWarps = 4, kThreads = kWarps * tile::kWarp;
constexpr int kWarpQueries = 32, kQueries = kWarps * kWarpQueries;
template <int kDim>
constexpr int kKeys = kDim == 64 ? 64 : 32;  // as many as leave registers for their scores

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    attention_warp_tiles(Heads<const T> q,  // [batch][queries][heads][kDim]
                         Heads<const T> k,  // [batch][keys][heads / group][kDim]
                         Heads<const T> v,  // as k
                         Heads<T> o,        // [batch][queries][heads][kDim]
                         float* lse,        // [batch][heads][queries], or null
                         BatchMasks masks, int batch, int heads, int group, float scale_log2) {
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys<kDim>, kDim>;
  constexpr bool kKeepQueries = kDim <= 64;                // in registers
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, [2]{keys, values}}
  const QueryTile q_tile(smem);
  const auto work = work_longest_first(batch, heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_row = static_cast<int>(threadIdx.x) / tile::kWarp * kWarpQueries;  // in the tile
  const int warp_query = block_query + warp_row;

  const auto k_tile = [&](int tile) {
    return KeyTile(smem + QueryTile::kBytes + tile % 2 * 2 * KeyTile::kBytes);
  };
  const auto v_tile = [&](int tile) { return k_tile(tile).after(KeyTile::kBytes); };
  const auto copy = [&](int tile) {
    const int key = tile * kKeys<kDim>;
    k_tile(tile).template copy_async<kThreads>(k.rows(work.batch, kv_head, key), mask.keys - key);
    v_tile(tile).template copy_async<kThreads>(v.rows(work.batch, kv_head, key), mask.keys - key);
  };
  const Mask::Tiles visited = mask.tiles(block_query, kQueries, kKeys<kDim>);
  q_tile.template copy_async<kThreads>(q.rows(work.batch, work.head, block_query),
                                       mask.queries - block_query);
  if (visited.first < visited.last) copy(visited.first);
  tile::ptx::cp_async_wait_all();
  __syncthreads();  // the queries are there
  Fragment<kWarpQueries, kKeepQueries ? kDim : 16> queries;
  if constexpr (kKeepQueries) load(queries, q_tile, warp_row);

  RowSoftmax<kWarpQueries> softmax(scale_log2);
  Accumulator<kWarpQueries, kDim> out;
  for (int tile = visited.first; tile < visited.last; ++tile) {
    tile::ptx::cp_async_wait_all();
    // This tile has landed, and all warps are done with the previous one, whose buffer the next
    // copy overwrites.
    __syncthreads();
    if (tile + 1 < visited.last) copy(tile + 1);
    // snippet-begin products
    const bool whole = tile >= visited.whole_first && tile < visited.whole_last;
    // A warp skips a tile that none of its queries sees.
    if (!whole && !mask.any_sees(warp_query, kWarpQueries, tile * kKeys<kDim>, kKeys<kDim>))
      continue;
    // S = Q K^T
    Accumulator<kWarpQueries, kKeys<kDim>> scores;
    if constexpr (kKeepQueries) {
      mma_ABt<T>(scores, queries, k_tile(tile), 0);
    } else {
      mma_ABt<T>(scores, q_tile, warp_row, k_tile(tile), 0);
    }
    if (!whole) hide(scores, mask, warp_query, tile * kKeys<kDim>);
    // snippet-end products
    // P, and O is corrected
    softmax.add(scores, out);
    // O += P V
    mma_AB<T>(out, as_fragment<T>(scores), v_tile(tile), 0);
  }

  float row_lse[kWarpQueries / 8];
  softmax.finish(out, row_lse);
  store(out, o.rows(work.batch, work.head), warp_query, masks.queries);
  tile::store_lse(row_lse, lse_of_head(lse, work, heads, masks.queries), warp_query, masks.queries);
}

}  // namespace

tile::Status warp_tiles(const AttentionForward& p, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, kQueries, &blocks));
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    constexpr int kBytes = (kQueries + 4 * kKeys<kDim>)*kDim * int{sizeof(T)};
    return tile::launch(attention_warp_tiles<T, kDim>, "attention_warp_tiles", blocks, kThreads,
                        kBytes, stream, heads_of<const T>(p.q), heads_of<const T>(p.k),
                        heads_of<const T>(p.v), heads_of<T>(p.o), p.lse, masks_of(p), p.batch,
                        p.heads, group_of(p), p.scale * kLog2E);
  });
}

}  // namespace flash_attention
