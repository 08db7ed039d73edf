// A method's gradients, step 4: keys are rotated in the prologue.
// Idea: a block has its keys in shared memory before its loop, and their gradient in registers
//       after it. So it can rotate the keys before the loop and rotate their gradient back after
//       it, as the forward step `prologue` does with queries: k1, k2, dk1 and dk2 are never in
//       memory.
// Change: windowed attention's step 4 (`one_pass`) with one K, which is rotated in shared memory
//         before each part, and one dK, to which the near part adds. Head dimension 64, where a
//         lane has both elements of a pair.
// Limit: queries, which many blocks of keys read, are still rotated in memory. At head dimension
//        128 only one block fits on a multiprocessor, so the tensor cores idle during the rotation;
//        that was 3 % slower.
#include "method/method.cuh"
#include "tile/ptx/flag_once.cuh"
#include "windowed/one_pass_shape.cuh"
#include "windowed/rotate_rows.cuh"

namespace windowed_rope::method {
namespace {

using tile::Fragment, tile::QueryStage, tile::SharedTile, tile::Accumulator;

/// Rotates the sums of keys back, the first one at first_position: x is in the first half of their
/// rows, y in the second. A lane has both.
template <int kRows, int kCols>
__device__ void rotate_back(Accumulator<kRows, kCols>& sums,
                            const float* cos,  // [positions][kCols / 2]
                            const float* sin,  // as cos
                            int first_position, int end_position) {
  constexpr int kHalf = Accumulator<kRows, kCols>::kLaneCols / 2;
#pragma unroll
  for (int r = 0; r < sums.kLaneRows; ++r) {
    const int position = first_position + sums.row(r);
    if (position >= end_position) continue;  // the tables may end here
#pragma unroll
    for (int col = 0; col < kHalf; col += 2) {
      const std::int64_t entry = std::int64_t{position} * (kCols / 2) + sums.col(col);
      const auto c = *reinterpret_cast<const rope::Numbers<2>*>(cos + entry);
      const auto s = *reinterpret_cast<const rope::Numbers<2>*>(sin + entry);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float &x = sums.at(r, col + i), &y = sums.at(r, kHalf + col + i);
        const rope::Pair rotated = rope::rotate({x, y}, c.of[i], -s.of[i]);
        x = rotated.x, y = rotated.y;
      }
    }
  }
}

/// Adds what store() left in these rows. Other lanes wrote these rows and will overwrite them:
/// synchronise the warp before and after.
template <class T, int kRows, int kCols>
__device__ void add_stored(Accumulator<kRows, kCols>& sums, tile::Rows<T> from, int rows) {
#pragma unroll
  for (int r = 0; r < sums.kLaneRows; ++r) {
    if (sums.row(r) >= rows) continue;
#pragma unroll
    for (int c = 0; c < sums.kLaneCols; c += 2) {
      struct alignas(4) Two {
        T of[2];
      };
      const Two stored = *reinterpret_cast<const Two*>(from[sums.row(r)] + sums.col(c));
      sums.at(r, c) += static_cast<float>(stored.of[0]);
      sums.at(r, c + 1) += static_cast<float>(stored.of[1]);
    }
  }
}

constexpr int kDim = 64;
using Plan = OnePassShape<kDim>;

template <class T>
__global__ void __launch_bounds__(Plan::kThreads, Plan::kBlocks)
    method_backward_prologue(Heads<const T> q1,      // [batch][queries][heads][kDim]
                             Heads<const T> q2,      // as q1
                             Heads<const T> k,       // [batch][keys][heads / group][kDim]
                             Heads<const T> v,       // as k
                             Heads<const T> dout,    // as q1
                             const RowStats* stats,  // [batch][heads][rows of stats]
                             DqSums dq_sums,         // of q1 and of q2
                             Heads<T> dk,            // as k
                             Heads<T> dv,            // as k
                             const float* cos,       // [3][positions][kDim / 2]
                             const float* sin,       // as cos
                             std::int64_t far_table, BatchMasks masks, Window window, int batch,
                             int heads, int group, float scale) {
  constexpr int kThreads = Plan::kThreads, kKeys = Plan::kKept, kQueries = Plan::kPassing;
  constexpr int kPart = Plan::kPart;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  using Stage = QueryStage<T, kQueries, kDim>;
  using ScoreTile = SharedTile<T, kKeys, kQueries>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {keys, values, [2]{stage}, dS}
  unsigned char* const stages = smem + 2 * KeyTile::kBytes;
  const ScoreTile ds_tile(stages + 2 * Stage::kBytes);
  const auto work = keys_longest_first(batch, heads / group, (masks.keys + kKeys - 1) / kKeys);
  const int block_key = work.tile * kKeys, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_key = warp * 32;
  KeyTile(smem + KeyTile::kBytes)
      .template copy_async_in_steps<kThreads>(v.rows(work.batch, work.head, block_key),
                                              masks.of(work.batch).keys - block_key);
  int parity = 0;  // parity of the iteration, which selects the stage
  Accumulator<32, kDim> dk_sums, dv_sums;

  for (int of_mask = 0; of_mask < Window::kParts; ++of_mask) {
    const bool near = Window::is_near(of_mask);
    const Mask transposed = window.part(masks.of(work.batch).transposed(), of_mask);
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
      const KeyTile k_tile(smem);
      k_tile.template copy_async_in_steps<kThreads>(k.rows(work.batch, work.head, block_key),
                                                    transposed.queries - block_key);
      copy(head, visited.first);
      tile::ptx::cp_async_wait_all();
      __syncthreads();  // the keys are there; the next barrier waits for their rotation
      const std::int64_t table = near ? 0 : far_table;
      rotate_rows<kThreads>(k_tile, cos + table, sin + table, block_key,
                            transposed.queries - block_key);
    }
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
        const int part = i * kPart;  // its first query in the tile
        // P^T = exp2(K Q^T - lse)
        Accumulator<32, kPart> weights, dscores;
        mma_ABt<T>(weights, k_tile, warp_key, stage.q, part);
        if constexpr (decltype(is_border)::value) {
          hide(weights, transposed, block_key + warp_key, query + part);
        }
        weigh(weights, dscores, stage.stats + part, scale * kLog2E);
        // dV += P^T dO, and dS^T = P^T (V dO^T - delta)
        mma_AB<T>(dv_sums, as_fragment<T>(weights), stage.dout, part);
        mma_ABt<T>(dscores, v_tile, warp_key, stage.dout, part);
        multiply(dscores, weights);
        store_in_tile<T>(dscores, ds_tile, warp_key, part);
        // dK += dS^T Q
        mma_AB<T>(dk_sums, as_fragment<T>(dscores), stage.q, part);
      }
      __syncthreads();  // dS is there
      // This warp's part of dQ = dS K
      const int dq_row = warp % (kQueries / Plan::kDqRows) * Plan::kDqRows;
      const int dq_col = warp / (kQueries / Plan::kDqRows) * Plan::kDqCols;
      const int term_rows = (masks.queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;
      tile::add_dq<T, Plan::kDqRows, Plan::kDqCols>(
          tile::ptx::flag_once(near) ? dq_sums.near : dq_sums.far,
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
    // snippet-begin change
    const std::int64_t table = near ? 0 : far_table;
    rotate_back(dk_sums, cos + table, sin + table, block_key + warp_key, masks.keys);
    const auto dk_rows = dk.rows(work.batch, work.head, block_key + warp_key);
    const int rows_left = masks.keys - block_key - warp_key;
    dk_sums.scale(scale);
    if (near) add_stored(dk_sums, dk_rows, rows_left);
    __syncwarp();  // all lanes have read what other lanes overwrite
    store(dk_sums, dk_rows, 0, rows_left);
    dk_sums = {};
    // snippet-end change
  }
  tile::ptx::cp_async_wait_all();  // if the loop is empty, the values are still under way
  store(dv_sums, dv.rows(work.batch, work.head), block_key + warp_key, masks.keys);
}

}  // namespace

tile::Status takes_prologue(const AttentionBackward& p, const tile::Device& device) {
  if (p.head_dim != kDim) {
    return tile::unsupported("head_dim", std::to_string(p.head_dim) + " is not 64");
  }
  if (p.keys == 0) return tile::unsupported("keys", "are none: there may be no tables");
  TILE_TRY(check_turning(p));
  TILE_TRY(check_composed(kBackwardLadder, p));
  return kOnePass.takes(attention_of(p), device);
}

tile::Status prologue(const AttentionBackward& p, void* stream) {
  int* positions = nullptr;
  const AttentionBackward inner = attention_of(p, &positions);
  TILE_TRY(fill_positions(p, positions, stream));
  const Turning queries = turning_of_queries(p, positions);
  TILE_TRY(turn_rows_twice(queries, p.q, inner.q, inner.q_far, stream));
  TILE_TRY(compute_stats(inner, stream));
  const DqSums sums = dq_sums_of(inner);
  TILE_TRY(clear(inner, sums, stream));
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.kv_heads, p.keys, Plan::kKept, &blocks));
  const auto launch = [&](auto element) {
    using T = decltype(element);
    const auto* stats = static_cast<const RowStats*>(inner.workspace);
    return tile::launch(method_backward_prologue<T>, "method_backward_prologue", blocks,
                        Plan::kThreads, Plan::kBytes, stream, tile::heads_of<const T>(inner.q),
                        tile::heads_of<const T>(inner.q_far), tile::heads_of<const T>(p.k),
                        tile::heads_of<const T>(p.v), tile::heads_of<const T>(p.dout), stats, sums,
                        tile::heads_of<T>(p.dk), tile::heads_of<T>(p.dv), p.rotary.cos,
                        p.rotary.sin, table_offset(p, Place::far_key), masks_of(p), window_of(p),
                        p.batch, p.heads, group_of(p), p.scale);
  };
  TILE_TRY(p.type == tile::DType::fp16 ? launch(__half{}) : launch(__nv_bfloat16{}));
  return rotate_sums_back(queries, sums.near, sums.far, p.scale, p.dq, stream);
}

}  // namespace windowed_rope::method
