// Forward, step 3: tensor cores.
// Idea: both products use mma. The first leaves the scores of 16 rows in a lane's registers just
//       where the second needs its left factor: the weights never go through shared memory.
// Change: a warp has 16 queries and kKeys keys at a time; tiles of 16-bit elements, swizzled.
// Limit: no warp multiplies while the block copies, and every tile is masked element by element.
#include "launch.hpp"
#include "tile/row_softmax.cuh"
#include "tile/shared_tile.cuh"

namespace flash_attention {
namespace {

using tile::RowSoftmax, tile::SharedTile, tile::Accumulator;

constexpr int kWarps = 4, kThreads = kWarps * tile::kWarp;
constexpr int kQueries = kWarps * 16;
template <int kDim>
constexpr int kKeys =
    kDim == 256 ? 32 : 64;  // 64 KiB of shared memory at most: all that Turing has

// snippet-begin kernel
template <class T, int kDim>
__global__ void attention_mma(Heads<const T> q,  // [batch][queries][heads][kDim]
                              Heads<const T> k,  // [batch][keys][heads / group][kDim]
                              Heads<const T> v,  // as k
                              Heads<T> o,        // [batch][queries][heads][kDim]
                              float* lse,        // [batch][heads][queries], or null
                              BatchMasks masks, int heads, int group, float scale_log2) {
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys<kDim>, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, keys, values}
  const QueryTile q_tile(smem);
  const KeyTile k_tile(smem + QueryTile::kBytes);
  const KeyTile v_tile(smem + QueryTile::kBytes + KeyTile::kBytes);
  const auto work = work_of_block(heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_query = static_cast<int>(threadIdx.x) / tile::kWarp * 16;  // in the tile

  q_tile.template copy<kThreads>(q.rows(work.batch, work.head, block_query),
                                 mask.queries - block_query);
  RowSoftmax<16> softmax(scale_log2);
  Accumulator<16, kDim> out;
  for (int key = 0; key < mask.keys; key += kKeys<kDim>) {
    k_tile.template copy<kThreads>(k.rows(work.batch, kv_head, key), mask.keys - key);
    v_tile.template copy<kThreads>(v.rows(work.batch, kv_head, key), mask.keys - key);
    __syncthreads();  // the tiles are there
    // S = Q K^T
    Accumulator<16, kKeys<kDim>> scores;
    mma_ABt<T>(scores, q_tile, warp_query, k_tile, 0);
    hide(scores, mask, block_query + warp_query, key);
    // P, and O is corrected
    softmax.add(scores, out);
    // O += P V
    mma_AB<T>(out, as_fragment<T>(scores), v_tile, 0);
    __syncthreads();  // all warps have read the tiles
  }
  float row_lse[2];
  softmax.finish(out, row_lse);
  store(out, o.rows(work.batch, work.head), block_query + warp_query, masks.queries);
  tile::store_lse(row_lse, lse_of_head(lse, work, heads, masks.queries), block_query + warp_query,
                  masks.queries);
}
// snippet-end kernel

}  // namespace

tile::Status mma(const AttentionForward& p, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, kQueries, &blocks));
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value;
    constexpr int kBytes = (kQueries + 2 * kKeys<kDim>)*kDim * int{sizeof(T)};
    return tile::launch(attention_mma<T, kDim>, "attention_mma", blocks, kThreads, kBytes, stream,
                        heads_of<const T>(p.q), heads_of<const T>(p.k), heads_of<const T>(p.v),
                        heads_of<T>(p.o), p.lse, masks_of(p), p.heads, group_of(p),
                        p.scale * kLog2E);
  });
}

}  // namespace flash_attention
