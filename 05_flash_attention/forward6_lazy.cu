// Forward, step 6: a reference that moves only when it must.
// Idea: the reference of the exponentials need not be the greatest score. As long as no weight
//       would exceed 2^8 nothing is corrected, and lanes exchange no maxima: the warp votes once
//       for each tile. Most tiles are whole; they get code in which no mask occupies registers.
// Change: LazySoftmax; separate code for whole tiles and for tiles at the mask's border.
// Limit: products and exponentials take turns.
#include "launch.hpp"
#include "tile/lazy_softmax.cuh"
#include "tile/shared_tile.cuh"

namespace flash_attention {
namespace {

using tile::Fragment, tile::LazySoftmax, tile::SharedTile, tile::Accumulator;
constexpr int kWarps = 4, kThreads = kWarps * tile::kWarp;
constexpr int kWarpQueries = 32, kQueries = kWarps * kWarpQueries;
template <int kDim>
constexpr int kKeys = kDim == 64 ? 64 : 32;  // as many as leave registers for their scores

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    attention_lazy(Heads<const T> q,  // [batch][queries][heads][kDim]
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

  LazySoftmax<kWarpQueries> softmax(scale_log2);
  Accumulator<kWarpQueries, kDim> out;
  const auto visit = [&](int tile, auto is_border) {
    constexpr bool kIsBorder = decltype(is_border)::value;
    tile::ptx::cp_async_wait_all();
    // This tile has landed, and all warps are done with the previous one, whose buffer the next
    // copy overwrites.
    __syncthreads();
    if (tile + 1 < visited.last) copy(tile + 1);
    // A warp skips a tile that none of its queries sees.
    if (kIsBorder && !mask.any_sees(warp_query, kWarpQueries, tile * kKeys<kDim>, kKeys<kDim>))
      return;
    // S = Q K^T
    Accumulator<kWarpQueries, kKeys<kDim>> scores;
    if constexpr (kKeepQueries) {
      mma_ABt<T>(scores, queries, k_tile(tile), 0);
    } else {
      mma_ABt<T>(scores, q_tile, warp_row, k_tile(tile), 0);
    }
    if constexpr (kIsBorder) hide(scores, mask, warp_query, tile * kKeys<kDim>);
    // P, and O is corrected if necessary
    softmax.look_at(scores, out);
#pragma unroll
    for (int n = 0; n < kWarpQueries * kKeys<kDim> / 128; ++n) softmax.weigh(scores, n);
    // O += P V
    mma_AB<T>(out, as_fragment<T>(scores), v_tile(tile), 0);
  };
  // snippet-begin whole_and_border
  int tile = visited.first;
  for (; tile < visited.whole_first; ++tile) visit(tile, std::true_type{});
  for (; tile < visited.whole_last; ++tile) visit(tile, std::false_type{});
  for (; tile < visited.last; ++tile) visit(tile, std::true_type{});
  // snippet-end whole_and_border
  float row_lse[kWarpQueries / 8];
  softmax.finish(out, row_lse);
  store(out, o.rows(work.batch, work.head), warp_query, masks.queries);
  tile::store_lse(row_lse, lse_of_head(lse, work, heads, masks.queries), warp_query, masks.queries);
}

}  // namespace

tile::Status lazy(const AttentionForward& p, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, kQueries, &blocks));
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    constexpr int kBytes = (kQueries + 4 * kKeys<kDim>)*kDim * int{sizeof(T)};
    return tile::launch(attention_lazy<T, kDim>, "attention_lazy", blocks, kThreads, kBytes, stream,
                        heads_of<const T>(p.q), heads_of<const T>(p.k), heads_of<const T>(p.v),
                        heads_of<T>(p.o), p.lse, masks_of(p), p.batch, p.heads, group_of(p),
                        p.scale * kLog2E);
  });
}

}  // namespace flash_attention
