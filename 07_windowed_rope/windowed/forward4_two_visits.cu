// Forward, step 4: two visits.
// Idea: a mask can describe the far keys of a query, and another one the near keys. So chapter 05's
//       fastest loop runs twice, with Q2 and K2 over the far keys and with Q1 and K1 over the near
//       ones; softmax and output continue through both. A mixed tile is visited twice, and each
//       visit hides the keys of the other.
// Change: the loop of chapter 05's step 7 (`interleaved`), head dimensions 64 and 128, around it a
//         loop over the parts of the mask.
//         With tables it is a method's step 2 (`prologue`), too: q is given once, and rotated in
//         shared memory before each part.
// Limit: mma.sync itself, and a mixed tile costs as much as two. The pipeline of copies drains
//        between the parts.
#include "tile/lazy_softmax.cuh"
#include "tile/ptx/flag_once.cuh"
#include "windowed/launch.hpp"
#include "windowed/rotate_rows.cuh"

namespace windowed_rope {
namespace {

using tile::Fragment, tile::LazySoftmax, tile::Nothing, tile::SharedTile, tile::Accumulator;

constexpr int kWarps = 4, kThreads = kWarps * tile::kWarp;

/// For a block: two blocks fit on a multiprocessor of Hopper, and one on a card with 99 KiB of
/// shared memory for a block.
constexpr int kWarpQueries = 32, kQueries = kWarps * kWarpQueries;
template <int kDim>
constexpr int kKeys = kDim == 64 ? 128 : 64;  // of a tile
constexpr int kGroup = 32;                    // keys whose scores are computed at a time
template <int kDim>
constexpr int kBytes = (kQueries + 4 * kKeys<kDim>)*kDim * 2;

template <class T, int kDim, bool kRotates>
__global__ void __launch_bounds__(kThreads, 2)
    windowed_two_visits(Heads<const T> q1,  // [batch][queries][heads][kDim]
                        Heads<const T> k1,  // [batch][keys][heads / group][kDim]
                        Heads<const T> q2,  // as q1
                        Heads<const T> k2,  // as k1
                        Heads<const T> v,   // as k1
                        Heads<T> o,         // [batch][queries][heads][kDim]
                        float* lse,         // [batch][heads][queries], or null
                        const float* cos,   // [3][positions][kDim / 2], if it rotates
                        const float* sin,   // as cos
                        BatchMasks masks, Window window, int positions, int batch, int heads,
                        int group, float scale_log2) {
  constexpr int kKeys = windowed_rope::kKeys<kDim>, kGroups = kKeys / kGroup;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  // Q stays in registers, and enough registers are left for the next group's scores.
  constexpr bool kKeepQueries = kDim == 64, kInterleave = kKeepQueries;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, [2]{keys, values}}

  const QueryTile q_tile(smem);
  const auto work = work_longest_first(batch, heads, (masks.queries + kQueries - 1) / kQueries);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_row = static_cast<int>(threadIdx.x) / tile::kWarp * kWarpQueries;  // in the tile
  const int warp_query = block_query + warp_row;
  LazySoftmax<kWarpQueries> softmax(scale_log2);
  Accumulator<kWarpQueries, kDim> out;

  // snippet-begin parts
  // First the far keys, with Q2 and K2, then the near ones, with Q1 and K1
  for (int of_mask = 0; of_mask < Window::kParts; ++of_mask) {
    const Mask mask = window.part(masks.of(work.batch), of_mask);
    const Mask::Tiles visited = mask.tiles(block_query, kQueries, kKeys);
    if (visited.first == visited.last) continue;
    const bool near = Window::is_near(of_mask);
    const auto k_tile = [&](int tile) {
      return KeyTile(smem + QueryTile::kBytes + tile % 2 * 2 * KeyTile::kBytes);
    };
    const auto v_tile = [&](int tile) { return k_tile(tile).after(KeyTile::kBytes); };
    const auto copy = [&](int tile) {
      const int key = tile * kKeys;
      const Heads<const T> k = tile::ptx::flag_once(near) ? k1 : k2;
      k_tile(tile).template copy_async<kThreads>(k.rows(work.batch, kv_head, key), mask.keys - key);
      v_tile(tile).template copy_async<kThreads>(v.rows(work.batch, kv_head, key), mask.keys - key);
    };
    __syncthreads();  // all warps have read the tiles of the previous part
    q_tile.template copy_async<kThreads>((near ? q1 : q2).rows(work.batch, work.head, block_query),
                                         mask.queries - block_query);
    copy(visited.first);
    tile::ptx::cp_async_wait_all();
    __syncthreads();  // the queries are there
    if constexpr (kRotates) {
      const std::int64_t table = near ? 0 : std::int64_t{positions} * (kDim / 2);
      rotate_rows<kThreads>(q_tile, cos + table, sin + table, mask.position(block_query),
                            mask.queries - block_query);
      __syncthreads();  // all threads have rotated their queries
    }
    // snippet-end parts
    Fragment<kWarpQueries, kKeepQueries ? kDim : 16> queries;
    if constexpr (kKeepQueries) load(queries, q_tile, warp_row);

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
        if (kInterleave && !is_last) {
          score(next, i + 1, weigh);
        } else {
#pragma unroll
          for (int n = 0; n < kParts; ++n) softmax.weigh(here, n);
        }
        // O += P V
        mma_AB<T>(out, as_fragment<T>(here), v_tile(tile), i * kGroup);
        if (!kInterleave && !is_last) score(next, i + 1, Nothing{});
        if (!is_last) softmax.look_at(next, out);
      }
    };
    int tile = visited.first;
    for (; tile < visited.whole_first; ++tile) visit(tile, std::true_type{});
    for (; tile < visited.whole_last; ++tile) visit(tile, std::false_type{});
    for (; tile < visited.last; ++tile) visit(tile, std::true_type{});
  }
  float row_lse[kWarpQueries / 8];
  softmax.finish(out, row_lse);
  store(out, o.rows(work.batch, work.head), warp_query, masks.queries);
  tile::store_lse(row_lse, lse_of_head(lse, work, heads, masks.queries), warp_query, masks.queries);
}

}  // namespace

tile::Status takes_two_visits(const AttentionForward& p, const tile::Device& device) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  TILE_TRY(check_chunks(p));
  return check_shared_bytes(p, p.head_dim == 64 ? kBytes<64> : kBytes<128>, device);
}

tile::Status two_visits(const AttentionForward& p, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, p.queries, kQueries, &blocks));
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value == 128 ? 128 : 64;
    auto* kernel =
        p.rotary.cos ? windowed_two_visits<T, kDim, true> : windowed_two_visits<T, kDim, false>;
    return tile::launch(kernel, "windowed_two_visits", blocks, kThreads, kBytes<kDim>, stream,
                        heads_of<const T>(p.q), heads_of<const T>(p.k), heads_of<const T>(p.q_far),
                        heads_of<const T>(p.k_far), heads_of<const T>(p.v), heads_of<T>(p.o), p.lse,
                        p.rotary.cos, p.rotary.sin, masks_of(p), window_of(p),
                        p.rotary.table_positions, p.batch, p.heads, group_of(p), p.scale * kLog2E);
  });
}

}  // namespace windowed_rope
