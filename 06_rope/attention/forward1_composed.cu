// Attention, step 1: rotate, then attend.
// Idea: step `vectors` writes rotated copies of q and k to memory, and the kernel of chapter 05's
//       forward step 5 attends to them. That kernel uses no positions.
// Limit: q and k are read, written and read again, and the copies need memory.
#include "attention/attention.cuh"
#include "tile/row_softmax.cuh"

namespace rope {
namespace {

using tile::RowSoftmax, tile::SharedTile, tile::Accumulator;
constexpr int kWarps = 4, kThreads = kWarps * tile::kWarp;
constexpr int kWarpQueries = 32, kQueries = kWarps * kWarpQueries;
template <int kDim>
constexpr int kKeys = kDim == 64 ? 64 : 32;  // as many as leave registers for their scores

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    attention_composed(Heads<const T> q,  // [batch][length][heads][kDim]
                       Heads<const T> k,  // [batch][length][heads / group][kDim]
                       Heads<const T> v,  // as k
                       Heads<T> o,        // [batch][length][heads][kDim]
                       float* lse,        // [batch][heads][length], or null
                       tile::Mask mask, int batch, int heads, int group, float scale_log2) {
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys<kDim>, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, [2]{keys, values}}
  const QueryTile q_tile(smem);
  const auto work =
      tile::work_longest_first(batch, heads, (mask.queries + kQueries - 1) / kQueries);
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
    v_tile(tile).template copy_async_in_steps<kThreads>(v.rows(work.batch, kv_head, key),
                                                        mask.keys - key);
  };
  const tile::Mask::Tiles visited = mask.tiles(block_query, kQueries, kKeys<kDim>);
  q_tile.template copy_async<kThreads>(q.rows(work.batch, work.head, block_query),
                                       mask.queries - block_query);
  copy(visited.first);

  RowSoftmax<kWarpQueries> softmax(scale_log2);
  Accumulator<kWarpQueries, kDim> out;
  for (int tile = visited.first; tile < visited.last; ++tile) {
    tile::ptx::cp_async_wait_all();
    // This tile has landed, and all warps are done with the previous one, whose buffer the next
    // copy overwrites.
    __syncthreads();
    if (tile + 1 < visited.last) copy(tile + 1);
    // A warp skips a tile that none of its queries sees.
    const bool whole = tile >= visited.whole_first && tile < visited.whole_last;
    if (!whole && !mask.any_sees(warp_query, kWarpQueries, tile * kKeys<kDim>, kKeys<kDim>))
      continue;
    // S = Q K^T
    Accumulator<kWarpQueries, kKeys<kDim>> scores;
    mma_ABt<T>(scores, q_tile, warp_row, k_tile(tile), 0);
    if (!whole) hide(scores, mask, warp_query, tile * kKeys<kDim>);
    // P, and O is corrected
    softmax.add(scores, out);
    // O += P V
    mma_AB<T>(out, as_fragment<T>(scores), v_tile(tile), 0);
  }
  float row_lse[kWarpQueries / 8];
  softmax.finish(out, row_lse);
  store(out, o.rows(work.batch, work.head), warp_query, mask.queries);
  tile::store_lse(row_lse, lse_of_head(lse, work, heads, mask.queries), warp_query, mask.queries);
}

}  // namespace

tile::Status takes_composed(const AttentionForward& p, const tile::Device&) {
  TILE_TRY(check_attention(p, rotated_bytes(p)));
  return rotation_into(p.workspace, p).check();
}

tile::Status composed(const AttentionForward& p, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for_tiles(p, p.heads, p.queries, kQueries, &blocks));
  const Rotation rotation = rotation_into(p.workspace, p);
  TILE_TRY(rotation.launch(stream));
  const RotaryProblem& of = rotation.problem;
  const RotaryBuffers& rotated = rotation.buffers;
  return with_type_and_head_dim(p, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value;
    constexpr int kBytes = (kQueries + 4 * kKeys<kDim>)*kDim * int{sizeof(T)};
    return tile::launch(
        attention_composed<T, kDim>, "attention_composed", blocks, kThreads, kBytes, stream,
        heads_of<const T>(rotated.q_out, of.q_out), heads_of<const T>(rotated.k_out, of.k_out),
        heads_of<const T>(p.v.data, p.v.stride), heads_of<T>(p.o.data, p.o.stride), p.lse,
        mask_of(p), p.batch, p.heads, tile::group_of(p), p.scale * tile::kLog2E);
  });
}

}  // namespace rope
