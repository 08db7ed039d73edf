// Forward, step 3: tensor cores.
// Idea: chapter 05's third step. Tensor cores compute whole tiles of scores. For a mixed tile they
//       compute both Q1 K1^T and Q2 K2^T, in two accumulators, and each lane chooses for each of
//       its scores.
// Change: a warp has 16 queries and kKeys keys at a time; tiles of 16-bit elements, swizzled.
// Limit: no warp multiplies while the block copies, and every tile is masked element by element.
#include "tile/row_softmax.cuh"
#include "tile/shared_tile.cuh"
#include "windowed/kinds.hpp"
#include "windowed/launch.hpp"

namespace windowed_rope {
namespace {

using tile::RowSoftmax, tile::SharedTile, tile::Accumulator;

constexpr int kWarps = 4, kThreads = kWarps * tile::kWarp;
constexpr int kQueries = kWarps * 16;
template <int kDim>
constexpr int kKeys = kDim == 256 ? 32 : 64;
template <int kDim>
constexpr int kBytes = (2 * kQueries + 2 * kKeys<kDim>)*kDim * 2;  // Q1, Q2, K, V

// snippet-begin choose
/// Replaces the scores of keys that are not near by their far scores. `near` is a mask of the near
/// keys.
template <int kRows, int kCols>
__device__ __forceinline__ void put_far(Accumulator<kRows, kCols>& scores,
                                        const Accumulator<kRows, kCols>& far, const Mask& near,
                                        int first_row, int first_key) {
#pragma unroll
  for (int r = 0; r < kRows / 8; ++r) {
    const int query = first_row + scores.row(r);
    const int first = near.first_key(query) - first_key - scores.col(0);
    const int end = near.end_key(query) - first_key - scores.col(0);
#pragma unroll
    for (int c = 0; c < kCols / 4; ++c) {
      const int col = c / 2 * 8 + c % 2;
      if (col < first || col >= end) scores.at(r, c) = far.at(r, c);
    }
  }
}
// snippet-end choose

template <class T, int kDim>
__global__ void windowed_mma(Heads<const T> q1,  // [batch][queries][heads][kDim]
                             Heads<const T> k1,  // [batch][keys][heads / group][kDim]
                             Heads<const T> q2,  // as q1
                             Heads<const T> k2,  // as k1
                             Heads<const T> v,   // as k1
                             Heads<T> o,         // [batch][queries][heads][kDim]
                             float* lse,         // [batch][heads][queries], or null
                             BatchMasks masks, Window window, int heads, int group,
                             float scale_log2) {
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys<kDim>, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {Q1, Q2, K1 or K2, V}
  const QueryTile q1_tile(smem), q2_tile(smem + QueryTile::kBytes);
  const KeyTile k_tile(smem + 2 * QueryTile::kBytes);
  const KeyTile v_tile(smem + 2 * QueryTile::kBytes + KeyTile::kBytes);
  const auto work = work_of_block(heads, (masks.queries + kQueries - 1) / kQueries);
  const Mask mask = masks.of(work.batch);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_query = static_cast<int>(threadIdx.x) / tile::kWarp * 16;  // in the tile

  q1_tile.template copy<kThreads>(q1.rows(work.batch, work.head, block_query),
                                  mask.queries - block_query);
  q2_tile.template copy<kThreads>(q2.rows(work.batch, work.head, block_query),
                                  mask.queries - block_query);
  RowSoftmax<16> softmax(scale_log2);
  Accumulator<16, kDim> out;
  for (int key = 0; key < mask.keys; key += kKeys<kDim>) {
    const auto kinds = kinds_of(window, mask, block_query, kQueries, key, kKeys<kDim>);
    if (!kinds.near && !kinds.far) continue;
    Accumulator<16, kKeys<kDim>> scores;
    v_tile.template copy<kThreads>(v.rows(work.batch, kv_head, key), mask.keys - key);
    // S = Q2 K2^T
    if (kinds.far) {
      k_tile.template copy<kThreads>(k2.rows(work.batch, kv_head, key), mask.keys - key);
      __syncthreads();  // the tiles are there
      mma_ABt<T>(scores, q2_tile, warp_query, k_tile, 0);
    }
    // S = Q1 K1^T for near keys
    if (kinds.near) {
      if (kinds.far) __syncthreads();  // all warps have read K2
      k_tile.template copy<kThreads>(k1.rows(work.batch, kv_head, key), mask.keys - key);
      __syncthreads();  // the tiles are there
      const Accumulator<16, kKeys<kDim>> far = scores;
      scores = {};
      mma_ABt<T>(scores, q1_tile, warp_query, k_tile, 0);
      if (kinds.far) put_far(scores, far, window.part(mask, 2), block_query + warp_query, key);
    }
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

}  // namespace

tile::Status takes_mma(const AttentionForward& p, const tile::Device& device) {
  TILE_TRY(check_chunks(p));
  const int bytes = p.head_dim == 256 ? kBytes<256> : p.head_dim == 128 ? kBytes<128> : kBytes<64>;
  return check_shared_bytes(p, bytes, device);
}

tile::Status mma(const AttentionForward& p, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, kQueries, &blocks));
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value;
        return tile::launch(windowed_mma<T, kDim>, "windowed_mma", blocks, kThreads, kBytes<kDim>,
                            stream, heads_of<const T>(p.q), heads_of<const T>(p.k),
                            heads_of<const T>(p.q_far), heads_of<const T>(p.k_far),
                            heads_of<const T>(p.v), heads_of<T>(p.o), p.lse, masks_of(p),
                            window_of(p), p.heads, group_of(p), p.scale * kLog2E);
      });
}

}  // namespace windowed_rope
