// Backward, step 4: five products instead of seven.
// Idea: chapter 05's fastest loop, once for each part of the mask. The block that has dS of a tile
//       adds the tile's part of dQ to a sum in memory: of dQ2 for far keys, of dQ1 for near keys.
// Change: the loop of chapter 05's step 6 (`one_pass`), head dimensions 64 and 128; around it a
//         loop over the parts, which loads K2 or K1 and stores dK2 and dK1.
// Limit: neither the tensor cores nor shared memory are busy all the time, and a mixed tile costs
//        as much as two.
#include "tile/ptx/flag_once.cuh"
#include "windowed/one_pass_shape.cuh"

namespace windowed_rope {
namespace {

using tile::Fragment, tile::QueryStage, tile::SharedTile, tile::Accumulator;

template <class T, int kDim>
__global__ void __launch_bounds__(OnePassShape<kDim>::kThreads, OnePassShape<kDim>::kBlocks)
    windowed_backward_one_pass(Heads<const T> q1,      // [batch][queries][heads][kDim]
                               Heads<const T> k1,      // [batch][keys][heads / group][kDim]
                               Heads<const T> q2,      // as q1
                               Heads<const T> k2,      // as k1
                               Heads<const T> v,       // as k1
                               Heads<const T> dout,    // as q1
                               const RowStats* stats,  // [batch][heads][rows of stats]
                               float4* dq1_sums,       // [batch][heads][rows / 16][kDim / 8][lane]
                               float4* dq2_sums,       // as dq1_sums
                               Heads<T> dk1,           // as k1
                               Heads<T> dk2,           // as k1
                               Heads<T> dv,            // as k1
                               BatchMasks masks, Window window, int batch, int heads, int group,
                               float scale) {
  using Plan = OnePassShape<kDim>;
  constexpr int kThreads = Plan::kThreads, kKeys = Plan::kKept, kQueries = Plan::kPassing;
  constexpr int kPart = Plan::kPart, kSharing = Plan::kSharing;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  using Stage = QueryStage<T, kQueries, kDim>;
  using ScoreTile = SharedTile<T, kKeys, kQueries>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {keys, values, [2]{stage}, dS, P}
  unsigned char* const stages = smem + 2 * KeyTile::kBytes;
  const ScoreTile ds_tile(stages + 2 * Stage::kBytes);
  const ScoreTile p_tile(stages + 2 * Stage::kBytes + ScoreTile::kBytes);  // with sharing
  const auto work = keys_longest_first(batch, heads / group, (masks.keys + kKeys - 1) / kKeys);
  const int block_key = work.tile * kKeys, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_key = warp / kSharing * 32, col0 = warp % kSharing * Plan::kCols;
  KeyTile(smem + KeyTile::kBytes)
      .template copy_async_in_steps<kThreads>(v.rows(work.batch, work.head, block_key),
                                              masks.of(work.batch).keys - block_key);
  int parity = 0;  // parity of the iteration, which selects the stage
  Accumulator<32, Plan::kCols> dk_sums, dv_sums;

  // snippet-begin parts
  for (int of_mask = 0; of_mask < Window::kParts; ++of_mask) {
    const bool near = Window::is_near(of_mask);
    const Mask transposed = window.part(masks.of(work.batch).transposed(), of_mask);
    const Heads<const T> k = near ? k1 : k2;
    // Tiles of queries that see these keys; the loop takes the heads that share the keys in turn.
    const Mask::Tiles visited = transposed.tiles(block_key, kKeys, kQueries);
    int head = work.head * group;
    const int end_head = visited.first < visited.last ? head + group : head;

    const auto copy = [&](int of_head, int tile) {
      const int query = tile * kQueries;
      const Heads<const T> q = tile::ptx::flag_once(near) ? q1 : q2;
      Stage(stages + parity * Stage::kBytes)
          .template copy_async<kThreads>(
              q.rows(work.batch, of_head, query), dout.rows(work.batch, of_head, query),
              stats_of_head(stats, {work.batch, of_head, 0}, heads, masks.queries) + query,
              transposed.keys - query);
    };
    __syncthreads();  // all warps have read the previous keys and queries
    if (head < end_head) {
      KeyTile(smem).template copy_async_in_steps<kThreads>(k.rows(work.batch, work.head, block_key),
                                                           transposed.queries - block_key);
      copy(head, visited.first);
    }
    // snippet-end parts
    const auto iterate = [&](int tile, auto is_border) {
      const int query = tile * kQueries;
      // Built inside the loop on purpose: hoisted, their addresses would occupy registers and cause
      // spills.
      const KeyTile k_tile(smem), v_tile(smem + KeyTile::kBytes);
      const Stage stage(stages + parity * Stage::kBytes);
      tile::ptx::cp_async_wait_all();
      // These queries have landed, and all warps are done with dS and with the previous queries,
      // whose buffer the next copy overwrites.
      __syncthreads();
      const bool is_last = tile + 1 == visited.last;  // of this head
      parity ^= 1;
      if (head + is_last < end_head) copy(head + is_last, is_last ? visited.first : tile + 1);
#pragma unroll
      for (int i = 0; i < Plan::kParts; ++i) {
        const int part = (warp % kSharing + i) * kPart;  // its first query in the tile
        // P^T = exp2(K Q^T - lse)
        Accumulator<32, kPart> weights, dscores;
        mma_ABt<T>(weights, k_tile, warp_key, stage.q, part);
        if constexpr (decltype(is_border)::value) {
          hide(weights, transposed, block_key + warp_key, query + part);
        }
        weigh(weights, dscores, stage.stats + part, scale * kLog2E);
        // dV += P^T dO, and dS^T = P^T (V dO^T - delta)
        mma_AB<T>(dv_sums, as_fragment<T>(weights), stage.dout, part, col0);
        mma_ABt<T>(dscores, v_tile, warp_key, stage.dout, part);
        multiply(dscores, weights);
        store_in_tile<T>(dscores, ds_tile, warp_key, part);
        if constexpr (kSharing > 1) store_in_tile<T>(weights, p_tile, warp_key, part);
        // dK += dS^T Q
        mma_AB<T>(dk_sums, as_fragment<T>(dscores), stage.q, part, col0);
      }
      __syncthreads();  // dS is there, and the other warps' weights
#pragma unroll
      for (int i = 1; i < kSharing; ++i) {
        const int part = (warp + i) % kSharing * kPart;
        add_stored_part<T, kPart>(dv_sums, dk_sums, p_tile, ds_tile, warp_key, stage.dout, stage.q,
                                  part, col0);
      }
      // This warp's part of dQ = dS K
      const int dq_row = warp % (kQueries / Plan::kDqRows) * Plan::kDqRows;
      const int dq_col = warp / (kQueries / Plan::kDqRows) * Plan::kDqCols;
      const int term_rows = (masks.queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;
      tile::add_dq<T, Plan::kDqRows, Plan::kDqCols>(
          tile::ptx::flag_once(near) ? dq1_sums : dq2_sums,
          (std::int64_t{work.batch} * heads + head) * term_rows + query, ds_tile, k_tile, dq_row,
          dq_col);
    };
    for (; head < end_head; ++head) {
      int tile = visited.first;
      for (; tile < visited.whole_first; ++tile) iterate(tile, std::true_type{});
      for (; tile < visited.whole_last; ++tile) iterate(tile, std::false_type{});
      for (; tile < visited.last; ++tile) iterate(tile, std::true_type{});
    }
    if (of_mask == 0) continue;  // dK2 is a sum over two parts
    dk_sums.scale(scale);
    store(dk_sums, (near ? dk1 : dk2).rows(work.batch, work.head), block_key + warp_key, masks.keys,
          col0);
    dk_sums = {};
  }
  tile::ptx::cp_async_wait_all();  // if the loop is empty, the values are still under way
  store(dv_sums, dv.rows(work.batch, work.head), block_key + warp_key, masks.keys, col0);
}

}  // namespace

tile::Status takes_one_pass(const AttentionBackward& p, const tile::Device& device) {
  if (p.head_dim != 64 && p.head_dim != 128) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is neither 64 nor 128");
  }
  TILE_TRY(check_chunks(p));
  const int bytes = p.head_dim == 64 ? OnePassShape<64>::kBytes : OnePassShape<128>::kBytes;
  TILE_TRY(check_shared_bytes(p, bytes, device));
  return tile::check_workspace(stats_and_sums_bytes(p), p.workspace_bytes);
}

tile::Status one_pass(const AttentionBackward& p, void* stream) {
  TILE_TRY(compute_stats(p, stream));
  const DqSums sums = dq_sums_of(p);
  TILE_TRY(clear(p, sums, stream));
  return with_16_bits_and_head_dim(
      p.type, p.head_dim, [&](auto element, auto head_dim) -> tile::Status {
        using T = decltype(element);
        constexpr int kDim = head_dim.value == 128 ? 128 : 64;
        using Plan = OnePassShape<kDim>;
        unsigned blocks = 0;
        TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, Plan::kKept, &blocks));
        const auto* stats = static_cast<const RowStats*>(p.workspace);
        TILE_TRY(tile::launch(windowed_backward_one_pass<T, kDim>, "windowed_backward_one_pass",
                              blocks, Plan::kThreads, Plan::kBytes, stream, heads_of<const T>(p.q),
                              heads_of<const T>(p.k), heads_of<const T>(p.q_far),
                              heads_of<const T>(p.k_far), heads_of<const T>(p.v),
                              heads_of<const T>(p.dout), stats, sums.near, sums.far,
                              heads_of<T>(p.dk), heads_of<T>(p.dk_far), heads_of<T>(p.dv),
                              masks_of(p), window_of(p), p.batch, p.heads, group_of(p), p.scale));
        if (!p.dq.data) return {};  // the caller makes something else of the sums
        TILE_TRY(round_dq(p, sums.near, p.dq, stream));
        return round_dq(p, sums.far, p.dq_far, stream);
      });
}

}  // namespace windowed_rope
