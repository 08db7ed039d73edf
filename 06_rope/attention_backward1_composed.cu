// Attention backward, step 1: rotate, then chapter 05's gradients, then rotate back.
// Idea: attention takes rotated q and k as its inputs, so its gradients are with respect to these.
//       A rotation is linear: its transpose, a rotation by minus the angle, turns them into
//       gradients of q and k. Step `vectors` does it in place.
// Limit: q and k are read, written and read again, and so are dq and dk, which are rounded twice.
#include "attention.cuh"
#include "tile/ptx/exp2.cuh"

namespace rope {
namespace {

using tile::SharedTile, tile::Accumulator;

/// A warp keeps 16 rows, whose gradients fill at most half of its registers, and loops over the
/// rows of the other side: a stage is copied while the previous one is multiplied.
template <int kDim>
struct TilePlan {
  static constexpr int kWarps = 4, kThreads = kWarps * 32, kKept = kWarps * 16;
  static constexpr int kPassing = kDim == 64 ? 64 : 32;
  static constexpr int kBytes = (2 * kKept + 2 * 2 * kPassing) * kDim * 2;
};

// snippet-begin queries
/// dQ of a tile of queries, and their stats.
template <class T, int kDim>
__global__ void attention_backward_composed_dq(Heads<const T> q,  // [batch][length][heads][kDim]
                                               Heads<const T> k,  // [batch][length][heads / group]
                                               Heads<const T> v,  // as k
                                               Heads<const T> o,  // as q
                                               Heads<const T> dout,    // as q
                                               const float* lse,       // [batch][heads][length]
                                               tile::RowStats* stats,  // [batch][heads][rows]
                                               Heads<T> dq,            // as q
                                               tile::Mask mask, int batch, int heads, int group,
                                               float scale) {
  using Plan = TilePlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kQueries = Plan::kKept, kKeys = Plan::kPassing;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {queries, their dO, [2]{keys, values}}
  const QueryTile q_tile(smem), dout_tile(smem + QueryTile::kBytes);
  const auto work =
      tile::work_longest_first(batch, heads, (mask.queries + kQueries - 1) / kQueries);
  const int block_query = work.tile * kQueries, kv_head = work.head / group;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;  // in the tile
  const int warp_query = block_query + warp_row;

  const auto k_tile = [&](int tile) {
    return KeyTile(smem + 2 * QueryTile::kBytes + tile % 2 * 2 * KeyTile::kBytes);
  };
  const auto v_tile = [&](int tile) { return k_tile(tile).after(KeyTile::kBytes); };
  const auto copy = [&](int tile) {
    const int key = tile * kKeys;
    k_tile(tile).template copy_async<kThreads>(k.rows(work.batch, kv_head, key), mask.keys - key);
    v_tile(tile).template copy_async<kThreads>(v.rows(work.batch, kv_head, key), mask.keys - key);
  };
  const tile::Mask::Tiles visited = mask.tiles(block_query, kQueries, kKeys);
  q_tile.template copy_async<kThreads>(q.rows(work.batch, work.head, block_query),
                                       mask.queries - block_query);
  dout_tile.template copy_async<kThreads>(dout.rows(work.batch, work.head, block_query),
                                          mask.queries - block_query);
  copy(visited.first);
  tile::RowStats of_lane[2];
  compute_stats<T, kDim>(of_lane, o.rows(work.batch, work.head), dout.rows(work.batch, work.head),
                         lse_of_head(lse, work, heads, mask.queries), warp_query, mask.queries);
  store_stats(of_lane, stats_of_head(stats, work, heads, mask.queries) + warp_query);

  Accumulator<16, kDim> dq_sums;
  for (int tile = visited.first; tile < visited.last; ++tile) {
    tile::ptx::cp_async_wait_all();
    // This tile has landed, and all warps are done with the previous one, whose buffer the next
    // copy overwrites.
    __syncthreads();
    if (tile + 1 < visited.last) copy(tile + 1);
    const bool whole = tile >= visited.whole_first && tile < visited.whole_last;
    if (!whole && !mask.any_sees(warp_query, 16, tile * kKeys, kKeys)) continue;
    // P = exp2(Q K^T - lse)
    Accumulator<16, kKeys> weights, dscores;
    mma_ABt<T>(weights, q_tile, warp_row, k_tile(tile), 0);
    if (!whole) hide(weights, mask, warp_query, tile * kKeys);
    // dS = P (dO V^T - delta)
    mma_ABt<T>(dscores, dout_tile, warp_row, v_tile(tile), 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < kKeys / 4; ++c) {
        const float weight =
            tile::ptx::exp2_approx(fmaf(scale * tile::kLog2E, weights.at(r, c), -of_lane[r].lse2));
        dscores.at(r, c) = weight * (dscores.at(r, c) - of_lane[r].delta);
      }
    }
    // dQ += dS K
    mma_AB<T>(dq_sums, as_fragment<T>(dscores), k_tile(tile), 0);
  }
  dq_sums.scale(scale);
  store(dq_sums, dq.rows(work.batch, work.head), warp_query, mask.queries);
}
// snippet-end queries

// snippet-begin keys
/// dK and dV of a tile of keys, over all queries of all heads that share it.
template <class T, int kDim>
__global__ void attention_backward_composed_dkv(
    Heads<const T> q,             // [batch][length][heads][kDim]
    Heads<const T> k,             // [batch][length][heads / group]
    Heads<const T> v,             // as k
    Heads<const T> dout,          // as q
    const tile::RowStats* stats,  // [batch][heads][rows]
    Heads<T> dk,                  // as k
    Heads<T> dv,                  // as k
    tile::Mask mask, int batch, int heads, int group, float scale) {
  using Plan = TilePlan<kDim>;
  constexpr int kThreads = Plan::kThreads, kKeys = Plan::kKept, kQueries = Plan::kPassing;
  using KeyTile = SharedTile<T, kKeys, kDim>;
  using QueryTile = SharedTile<T, kQueries, kDim>;
  extern __shared__ __align__(1024) unsigned char smem[];  // {keys, values, [2]{queries, their dO}}
  const KeyTile k_tile(smem), v_tile(smem + KeyTile::kBytes);
  const auto work = tile::keys_longest_first(batch, heads / group, (mask.keys + kKeys - 1) / kKeys);
  const tile::Mask transposed = mask.transposed();
  const int block_key = work.tile * kKeys;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;  // in the tile
  const int warp_key = block_key + warp_row;
  // An iteration is a tile of queries that see these keys; the loop takes the heads that share the
  // keys in turn.
  const tile::Mask::Tiles visited = transposed.tiles(block_key, kKeys, kQueries);
  const int tiles = visited.last - visited.first;
  const auto head_of = [&](int turn) { return work.head * group + turn / tiles; };
  const auto tile_of = [&](int turn) { return visited.first + turn % tiles; };

  const auto q_tile = [&](int turn) {
    return QueryTile(smem + 2 * KeyTile::kBytes + turn % 2 * 2 * QueryTile::kBytes);
  };
  const auto dout_tile = [&](int turn) { return q_tile(turn).after(QueryTile::kBytes); };
  const auto copy = [&](int turn) {
    const int query = tile_of(turn) * kQueries;
    q_tile(turn).template copy_async<kThreads>(q.rows(work.batch, head_of(turn), query),
                                               mask.queries - query);
    dout_tile(turn).template copy_async<kThreads>(dout.rows(work.batch, head_of(turn), query),
                                                  mask.queries - query);
  };
  k_tile.template copy_async<kThreads>(k.rows(work.batch, work.head, block_key),
                                       mask.keys - block_key);
  v_tile.template copy_async<kThreads>(v.rows(work.batch, work.head, block_key),
                                       mask.keys - block_key);
  copy(0);

  Accumulator<16, kDim> dk_sums, dv_sums;
  for (int turn = 0; turn < tiles * group; ++turn) {
    tile::ptx::cp_async_wait_all();
    // These queries have landed, and all warps are done with the previous ones, whose buffer the
    // next copy overwrites.
    __syncthreads();
    if (turn + 1 < tiles * group) copy(turn + 1);
    const int tile = tile_of(turn), query = tile * kQueries;
    const bool whole = tile >= visited.whole_first && tile < visited.whole_last;
    if (!whole && !transposed.any_sees(warp_key, 16, query, kQueries)) continue;
    // P^T = exp2(K Q^T - lse)
    Accumulator<16, kQueries> weights, dscores;
    mma_ABt<T>(weights, k_tile, warp_row, q_tile(turn), 0);
    if (!whole) hide(weights, transposed, warp_key, query);
    // dS^T = P^T (V dO^T - delta)
    mma_ABt<T>(dscores, v_tile, warp_row, dout_tile(turn), 0);
    const tile::RowStats* of_tile =
        stats_of_head(stats, {work.batch, head_of(turn), 0}, heads, mask.queries) + query;
#pragma unroll
    for (int c = 0; c < kQueries / 4; ++c) {
      const tile::RowStats of_query = of_tile[weights.col(c)];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& weight = weights.at(r, c);
        weight = tile::ptx::exp2_approx(fmaf(scale * tile::kLog2E, weight, -of_query.lse2));
        dscores.at(r, c) = weight * (dscores.at(r, c) - of_query.delta);
      }
    }
    // dV += P^T dO, dK += dS^T Q
    mma_AB<T>(dv_sums, as_fragment<T>(weights), dout_tile(turn), 0);
    mma_AB<T>(dk_sums, as_fragment<T>(dscores), q_tile(turn), 0);
  }
  dk_sums.scale(scale);
  store(dk_sums, dk.rows(work.batch, work.head), warp_key, mask.keys);
  store(dv_sums, dv.rows(work.batch, work.head), warp_key, mask.keys);
}
// snippet-end keys

/// The transpose of the rotation, of dq and dk in place.
Rotation rotation_back(const AttentionBackwardProblem& p, const AttentionBackwardBuffers& b) {
  Rotation back = rotation_into(nullptr, p, b);
  back.problem.pass = Pass::backward;
  back.problem.q = back.problem.q_out = p.dq;
  back.problem.k = back.problem.k_out = p.dk;
  back.buffers.q = back.buffers.q_out = b.dq;
  back.buffers.k = back.buffers.k_out = b.dk;
  return back;
}
/// The rotated copies follow the stats in the workspace; a step without a rotation in memory needs
/// the stats only.
Rotation rotation_forth(const AttentionBackwardProblem& p, const AttentionBackwardBuffers& b) {
  return rotation_into(static_cast<unsigned char*>(b.workspace) + workspace_bytes(p, "fused"), p,
                       b);
}

}  // namespace

tile::Status takes_composed(const AttentionBackwardProblem& p, const AttentionBackwardBuffers& b,
                            const tile::Device& device) {
  if (tile::Status s = check_attention(p, b, "composed"); !s.ok()) return s;
  const Rotation rotation = rotation_forth(p, b);
  return takes_vectors(rotation.problem, rotation.buffers, device);
}

tile::Status composed(const AttentionBackwardProblem& p, const AttentionBackwardBuffers& b,
                      void* stream) {
  unsigned keys = 0, queries = 0;  // blocks
  constexpr int kKept = TilePlan<64>::kKept;
  static_assert(kKept == TilePlan<128>::kKept);
  if (tile::Status s = tile::blocks_for_tiles(p, p.kv_heads, p.length, kKept, &keys); !s.ok()) {
    return s;
  }
  if (tile::Status s = tile::blocks_for_tiles(p, p.heads, p.length, kKept, &queries); !s.ok()) {
    return s;
  }
  const Rotation turn = rotation_forth(p, b);
  const RotaryProblem& rotation = turn.problem;
  const RotaryBuffers& rotated = turn.buffers;
  if (tile::Status s = vectors(rotation, rotated, stream); !s.ok()) return s;
  const tile::Status attended = with_type_and_head_dim(p, [&](auto element, auto head_dim) {
    using T = decltype(element);
    constexpr int kDim = head_dim.value, kBytes = TilePlan<kDim>::kBytes;
    constexpr int kThreads = TilePlan<kDim>::kThreads;
    const auto in = static_cast<cudaStream_t>(stream);
    const auto q = heads_of<const T>(rotated.q_out, rotation.q_out);
    const auto k = heads_of<const T>(rotated.k_out, rotation.k_out);
    const auto v = heads_of<const T>(b.v, p.v), dout = heads_of<const T>(b.dout, p.dout);
    auto* stats = static_cast<tile::RowStats*>(b.workspace);
    const int batch = static_cast<int>(p.batch), heads = static_cast<int>(p.heads);
    const int group = tile::group_of(p);
    const tile::Status dq_allowed =
        tile::allow_shared_bytes(attention_backward_composed_dq<T, kDim>, kBytes);
    if (!dq_allowed.ok()) return dq_allowed;
    attention_backward_composed_dq<T, kDim><<<queries, kThreads, kBytes, in>>>(
        q, k, v, heads_of<const T>(b.o, p.o), dout, b.lse, stats, heads_of<T>(b.dq, p.dq),
        mask_of(p), batch, heads, group, p.scale);
    const tile::Status dq_launched = tile::launch_status("attention_backward_composed_dq");
    if (!dq_launched.ok()) return dq_launched;
    const tile::Status allowed =
        tile::allow_shared_bytes(attention_backward_composed_dkv<T, kDim>, kBytes);
    if (!allowed.ok()) return allowed;
    attention_backward_composed_dkv<T, kDim><<<keys, kThreads, kBytes, in>>>(
        q, k, v, dout, stats, heads_of<T>(b.dk, p.dk), heads_of<T>(b.dv, p.dv), mask_of(p), batch,
        heads, group, p.scale);
    return tile::launch_status("attention_backward_composed_dkv");
  });
  if (!attended.ok()) return attended;
  const Rotation back = rotation_back(p, b);
  return vectors(back.problem, back.buffers, stream);
}

}  // namespace rope
