// Forward, step 7: exponentials among products.
// Idea: tensor cores and the unit of the exponentials work independently. While the scores of the
//       next 32 keys are multiplied, the same warp computes the weights of these 32.
// Change: tiles of twice as many keys, in groups of 32, and a vote for each group; above 64 columns
//         the groups follow one another without interleaving. All head dimensions, each with its
//         own shape; addresses of the queries that occupy no registers between tiles.
// Limit: mma.sync itself. On Hopper its rate is two thirds of that of wgmma.
#include "launch.hpp"
#include "tile/lazy_softmax.cuh"
#include "tile/shared_tile.cuh"

namespace flash_attention {
namespace {

using tile::Fragment, tile::LazySoftmax, tile::Nothing, tile::SharedTile, tile::Accumulator;

constexpr int kWarps = 4, kThreads = kWarps * tile::kWarp;

/// Queries of a warp and keys of a tile. With all shapes two blocks fit on a multiprocessor of
/// Hopper, and one on a card with 99 KiB of shared memory for a block.
template <int kDim>
struct TilePlan {
  static constexpr int kWarpQueries = kDim <= 128 ? 32 : 16;
  static constexpr int kQueries = kWarps * kWarpQueries;
  static constexpr int kKeys = kDim <= 64 ? 128 : kDim == 128 ? 64 : 32;
  // Keys whose scores are computed at a time. Above 64 columns the registers hold the scores of one
  // group only, so those of the next cannot be multiplied meanwhile.
  static constexpr int kGroup = 32;
  static constexpr bool kInterleave = kDim <= 64;
  static constexpr int kBytes = (kQueries + 4 * kKeys) * kDim * 2;
};

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    attention_interleaved(Heads<const T> q,  // [batch][queries][heads][kDim]
                          Heads<const T> k,  // [batch][keys][heads / group][kDim]
                          Heads<const T> v,  // as k
                          Heads<T> o,        // [batch][queries][heads][kDim]
                          float* lse,        // [batch][heads][queries], or null
                          BatchMasks masks, int batch, int heads, int group, float scale_log2) {
  constexpr int kQueries = TilePlan<kDim>::kQueries, kKeys = TilePlan<kDim>::kKeys;
  constexpr int kWarpQueries = TilePlan<kDim>::kWarpQueries, kGroup = TilePlan<kDim>::kGroup;
  constexpr int kGroups = kKeys / kGroup;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys, kDim>;
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
    const int key = tile * kKeys;
    k_tile(tile).template copy_async<kThreads>(k.rows(work.batch, kv_head, key), mask.keys - key);
    v_tile(tile).template copy_async<kThreads>(v.rows(work.batch, kv_head, key), mask.keys - key);
  };
  const Mask::Tiles visited = mask.tiles(block_query, kQueries, kKeys);
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
    if (kIsBorder && !mask.any_sees(warp_query, kWarpQueries, tile * kKeys, kKeys)) return;
    // Built inside the loop on purpose: hoisted, its addresses would occupy registers and cause
    // spills.
    const QueryTile q_here(smem);
    // snippet-begin groups
    // S = Q K^T of a group of keys, and meanwhile the weights of the previous group
    const auto score = [&](Accumulator<kWarpQueries, kGroup>& scores, int group_of_tile,
                           auto between) {
      scores = {};
      if constexpr (kKeepQueries) {
        mma_ABt<T>(scores, queries, k_tile(tile), group_of_tile * kGroup, 0, between);
      } else {
        mma_ABt<T>(scores, q_here, warp_row, k_tile(tile), group_of_tile * kGroup);
      }
      if constexpr (kIsBorder) {
        hide(scores, mask, warp_query, tile * kKeys + group_of_tile * kGroup);
      }
    };
    constexpr int kParts = kWarpQueries * kGroup / 128;  // of weigh()
    constexpr int kLoads = kDim * kGroup / 256;          // of a product
    constexpr int kPartsOfLoad = kParts > kLoads ? kParts / kLoads : 1;
    Accumulator<kWarpQueries, kGroup> scores[2];  // of this group and of the next
    score(scores[0], 0, Nothing{});
    softmax.look_at(scores[0], out);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      Accumulator<kWarpQueries, kGroup>&here = scores[i % 2], &next = scores[(i + 1) % 2];
      const auto weigh = [&](int load) {
#pragma unroll
        for (int part = 0; part < kPartsOfLoad; ++part) {
          const int n = load * kPartsOfLoad + part;
          if (n < kParts) softmax.weigh(here, n);
        }
      };
      const bool is_last = i + 1 == kGroups;
      if (TilePlan<kDim>::kInterleave && !is_last) {
        score(next, i + 1, weigh);
      } else {
#pragma unroll
        for (int n = 0; n < kParts; ++n) softmax.weigh(here, n);
      }
      // O += P V
      mma_AB<T>(out, as_fragment<T>(here), v_tile(tile), i * kGroup);
      if (!TilePlan<kDim>::kInterleave && !is_last) score(next, i + 1, Nothing{});
      if (!is_last) softmax.look_at(next, out);
    }
    // snippet-end groups
  };
  int tile = visited.first;
  for (; tile < visited.whole_first; ++tile) visit(tile, std::true_type{});
  for (; tile < visited.whole_last; ++tile) visit(tile, std::false_type{});
  for (; tile < visited.last; ++tile) visit(tile, std::true_type{});

  float row_lse[kWarpQueries / 8];
  softmax.finish(out, row_lse);
  store(out, o.rows(work.batch, work.head), warp_query, masks.queries);
  tile::store_lse(row_lse, lse_of_head(lse, work, heads, masks.queries), warp_query, masks.queries);
}

}  // namespace

tile::Status interleaved(const AttentionForward& p, void* stream) {
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value;
        constexpr int kBytes = TilePlan<kDim>::kBytes;
        unsigned blocks = 0;
        TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, TilePlan<kDim>::kQueries, &blocks));
        return tile::launch(attention_interleaved<T, kDim>, "attention_interleaved", blocks,
                            kThreads, kBytes, stream, heads_of<const T>(p.q),
                            heads_of<const T>(p.k), heads_of<const T>(p.v), heads_of<T>(p.o), p.lse,
                            masks_of(p), p.batch, p.heads, group_of(p), p.scale * kLog2E);
      });
}

}  // namespace flash_attention
