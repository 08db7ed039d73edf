// Both rotations of q and k by chapter 06's last step, for rows of any kind.
#pragma once

#include "method/method.cuh"
#include "rotary/rotary.hpp"

namespace windowed_rope::method {

/// Writes rotated rows of q or of k, [batch][length][heads], to a tensor without gaps. Without
/// positions they count from 0.
inline tile::Status rotate(const tile::Attention& p, Place place, const TensorView& from,
                           std::int64_t length, std::int64_t heads, const int* positions,
                           const TensorView& to, void* stream) {
  rope::RotaryProblem r{.type = p.type,
                        .batch = p.batch,
                        .length = length,
                        .heads = heads,
                        .kv_heads = 0,
                        .head_dim = p.head_dim,
                        // Without keys there may be no table.
                        .rotary_dim = p.keys == 0 ? 0 : p.rotary.rotary_dim};
  r.layout = p.rotary.layout;
  r.table_positions = p.rotary.table_positions;
  r.q = from.stride;
  rope::RotaryBuffers buffers{.q = from.data, .q_out = to.data, .positions = positions};
  buffers.cos = p.rotary.cos + table_offset(p, place);
  buffers.sin = p.rotary.sin + table_offset(p, place);
  return run_last(rope::kRotaryLadder, r, buffers, stream);
}

/// q, k, q_far and k_far of the attention in the middle.
template <class Call>
tile::Status rotate_twice(const Call& p, const Call& inner, int* positions, void* stream) {
  TILE_TRY(fill_positions(p, positions, stream));
  for (const bool far : {false, true}) {
    const Place of_q = far ? Place::far_query : Place::own,
                of_k = far ? Place::far_key : Place::own;
    TILE_TRY(
        rotate(p, of_q, p.q, p.queries, p.heads, positions, far ? inner.q_far : inner.q, stream));
    TILE_TRY(
        rotate(p, of_k, p.k, p.keys, p.kv_heads, nullptr, far ? inner.k_far : inner.k, stream));
  }
  return {};
}

}  // namespace windowed_rope::method
