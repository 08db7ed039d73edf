// Forward, step 8: few queries, many keys, as when a model generates text token by token.
// Idea: each key and value is used by few queries, so the speed of reading them decides. The heads
//       that share them become rows of one product, so that they are read once; and the keys of a
//       head are divided among blocks, so that all multiprocessors read. Each block has a softmax
//       of its own, and lse gives the weight of its output.
// Change: from step 4: packed rows, key_splits() blocks instead of one, queries in registers,
//         a ring with four tiles under way, step 6's lazy softmax, and a second kernel that merges.
// Limit: memory. With few keys, the two launches.
#include "merge_parts.cuh"
#include "tile/lazy_softmax.cuh"
#include "tile/shared_tile.cuh"

namespace flash_attention {
namespace {

using tile::Fragment, tile::LazySoftmax, tile::SharedTile, tile::Accumulator;

constexpr int kWarps = 4, kThreads = kWarps * tile::kWarp;
constexpr int kStages = 5;  // four under way while one is used: 64 KiB, 128 of a multiprocessor

/// Row r of a product is query r / group of head r % group among those that share the keys.
/// kRowWarps warps have 16 rows each. If kRowWarps is 1, all warps compute the same weights, and
/// each multiplies them with a quarter of the columns of V.
template <int kDim, int kRowWarps>
struct TilePlan {
  static constexpr int kRows = kRowWarps * 16, kCols = kDim / (kWarps / kRowWarps);
  static constexpr int kKeys = kSplitTileElements / kDim;
  static constexpr int kKeyBytes = kKeys * kDim * 2, kQueryBytes = kRows * kDim * 2;
  static constexpr int kBytes = kQueryBytes + kStages * 2 * kKeyBytes;
  static_assert(kBytes == split_shared_bytes(kRows, kDim), "takes_split_keys() compares it");
};

template <class T, int kDim, int kRowWarps>
__global__ void __launch_bounds__(kThreads, 2)
    attention_split_keys(Heads<const T> q,  // [batch][queries][heads][kDim]
                         Heads<const T> k,  // [batch][keys][heads / group][kDim]
                         Heads<const T> v,  // as k
                         Parts parts, BatchMasks masks, int heads, int group, float scale_log2) {
  using Plan = TilePlan<kDim, kRowWarps>;
  using QueryTile = SharedTile<T, Plan::kRows, kDim>;
  using KeyTile = SharedTile<T, Plan::kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, [kStages]{keys, values}}
  const QueryTile q_tile(smem);
  const int splits = parts.count, split = static_cast<int>(blockIdx.x) % splits;
  const int rows = masks.queries * group;
  const int row_tiles = (rows + Plan::kRows - 1) / Plan::kRows;
  const int of_head = static_cast<int>(blockIdx.x) / splits / row_tiles;
  const int block_row = static_cast<int>(blockIdx.x) / splits % row_tiles * Plan::kRows;
  const int batch = of_head / (heads / group), kv_head = of_head % (heads / group);
  const Mask mask = masks.of(batch);
  const int warp = static_cast<int>(threadIdx.x) / tile::kWarp;
  const int warp_row = warp % kRowWarps * 16, col0 = warp / kRowWarps * Plan::kCols;

  // snippet-begin share
  // This block's share of the tiles that some query of its rows sees.
  const int first_query = block_row / group, last_row = min(block_row + Plan::kRows, rows) - 1;
  const Mask::Tiles visited =
      mask.tiles(first_query, last_row / group + 1 - first_query, Plan::kKeys);
  const int share = (visited.last - visited.first + splits - 1) / splits;
  const int first = visited.first + split * share, last = min(first + share, visited.last);
  // snippet-end share

  const auto k_tile = [&](int tile) {
    return KeyTile(smem + Plan::kQueryBytes + (tile - first) % kStages * 2 * Plan::kKeyBytes);
  };
  const auto v_tile = [&](int tile) { return k_tile(tile).after(Plan::kKeyBytes); };
  const auto copy = [&](int tile) {
    const int key = tile * Plan::kKeys, left = mask.keys - key;
    if (tile < last) {
      k_tile(tile).template copy_async<kThreads>(k.rows(batch, kv_head, key), left);
      v_tile(tile).template copy_async<kThreads>(v.rows(batch, kv_head, key), left);
    }
    tile::ptx::cp_async_commit();  // an empty group counts, too, so the wait below need not change
  };
  // snippet-begin rows
  constexpr int kRowChunks = kDim / 8;
  for (int i = threadIdx.x; i < Plan::kRows * kRowChunks; i += kThreads) {
    const int row = min(block_row + i / kRowChunks, rows - 1), chunk = i % kRowChunks;
    const T* from = q.rows(batch, kv_head * group + row % group)[row / group];
    tile::ptx::cp_async<16>(q_tile.at(i / kRowChunks, chunk), from + chunk * 8);
  }
  // snippet-end rows
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) copy(first + i);
  tile::ptx::cp_async_wait<kStages - 2>();  // the queries are of the first group
  __syncthreads();                          // for all threads
  Fragment<16, kDim> queries;
  load(queries, q_tile, warp_row);

  LazySoftmax<16> softmax(scale_log2);
  Accumulator<16, Plan::kCols> out;
  for (int tile = first; tile < last; ++tile) {
    tile::ptx::cp_async_wait<kStages - 2>();
    // This tile has landed, and all warps are done with the previous one, whose buffer the next
    // copy overwrites.
    __syncthreads();
    copy(tile + kStages - 1);
    // S = Q K^T
    Accumulator<16, Plan::kKeys> scores;
    mma_ABt<T>(scores, queries, k_tile(tile), 0);
    if (tile < visited.whole_first || tile >= visited.whole_last) {
      hide(scores, mask, block_row + warp_row, tile * Plan::kKeys, group);
    }
    // P, and O is corrected if necessary
    softmax.look_at(scores, out);
#pragma unroll
    for (int n = 0; n < Plan::kKeys / 8; ++n) softmax.weigh(scores, n);
    // O += P V
    mma_AB<T>(out, as_fragment<T>(scores), v_tile(tile), 0, col0);
  }
  tile::ptx::cp_async_wait_all();  // if the loop is empty, the queries are still under way
  float lse[2];
  softmax.finish(out, lse);
  parts.store(split, out, lse, block_row + warp_row, batch * heads + kv_head * group, group, col0);
}

}  // namespace

tile::Status split_keys(const AttentionForward& p, void* stream) {
  const int group = group_of(p);
  const std::int64_t all_rows = p.batch * p.heads * p.queries, splits = key_splits(p);
  auto* part_o = static_cast<float*>(p.workspace);
  const Parts parts{part_o, part_o + all_rows * splits * p.head_dim, static_cast<int>(p.queries),
                    static_cast<int>(splits), static_cast<int>(p.head_dim)};
  const auto launch = [&](auto element, auto head_dim, auto row_warps) -> tile::Status {
    using T = decltype(element);
    constexpr int kDim = head_dim.value, kRowWarps = row_warps.value;
    using Plan = TilePlan<kDim, kRowWarps>;
    unsigned blocks = 0;
    TILE_TRY(
        blocks_for_tiles(p, p.kv_heads * parts.count, p.queries * group, Plan::kRows, &blocks));
    TILE_TRY(tile::launch(attention_split_keys<T, kDim, kRowWarps>, "attention_split_keys", blocks,
                          kThreads, Plan::kBytes, stream, heads_of<const T>(p.q),
                          heads_of<const T>(p.k), heads_of<const T>(p.v), parts, masks_of(p),
                          p.heads, group, p.scale * kLog2E));
    return tile::launch(attention_merge_parts<T>, "attention_merge_parts",
                        static_cast<unsigned>(all_rows), kDim, 0, stream, parts, heads_of<T>(p.o),
                        p.lse, p.heads);
  };
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    constexpr int kDim = head_dim.value < 64 ? 64 : head_dim.value;
    const std::integral_constant<int, kDim> dim;
    return p.queries * group <= 16 ? launch(element, dim, std::integral_constant<int, 1>{})
                                   : launch(element, dim, std::integral_constant<int, 4>{});
  });
}

}  // namespace flash_attention
