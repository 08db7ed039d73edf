// Shared by a method's composed steps: the workspace, and chapter 06's rotation by one of three
// tables.
#pragma once

#include "method/turning.cuh"
#include "method/workspace.hpp"
#include "tile/host/tensor_argument.hpp"

namespace windowed_rope {

/// The addresses of rotated rows, if the workspace is large enough.
template <class Problem, class Buffers>
tile::Status take_workspace(const Problem& p, const Buffers& b, RotatedRows* rows) {
  *rows = rotated_rows(p, b.workspace);
  return tile::check_workspace(workspace_bytes(p, "composed"), b.workspace_bytes);
}

/// The arguments of the attention between rotated rows.
inline ForwardBuffers attention_of(const MethodProblem&, const MethodBuffers& b,
                                   const RotatedRows& rows) {
  return {rows.q1,
          rows.k1,
          rows.q2,
          rows.k2,
          b.v,
          b.o,
          b.lse,
          b.query_lengths,
          b.key_lengths,
          rows.rest,
          b.workspace_bytes - rows.bytes};
}
inline BackwardBuffers attention_of(const MethodBackwardProblem&, const MethodBackwardBuffers& b,
                                    const RotatedRows& rows) {
  return {rows.q1,
          rows.k1,
          rows.q2,
          rows.k2,
          b.v,
          b.o,
          b.lse,
          b.dout,
          rows.dq1,
          rows.dk1,
          rows.dq2,
          rows.dk2,
          b.dv,
          b.query_lengths,
          b.key_lengths,
          rows.rest,
          b.workspace_bytes - rows.bytes};
}

/// Fills in the position beside which each query stands, [batch][queries]: 0 for a query before the
/// first key, which sees none.
tile::Status fill_positions(const BatchMasks& masks, std::int64_t batch,
                            std::int64_t table_positions, int* positions, void* stream);

/// The workspace of the fastest step for 16-byte-aligned rows; the steps that it falls back to need
/// no more.
template <class Ladder>
std::int64_t attention_bytes(const Ladder& ladder, const typename Ladder::Problem& inner) {
  typename Ladder::Buffers aligned;
  aligned.workspace_bytes = INT64_MAX;
  tile::Choice choice;
  if (!choose_last(ladder, inner, aligned, &choice).ok()) return 0;
  return workspace_bytes(inner, ladder.steps[choice.step].name);
}

// snippet-begin rotate
/// Writes rotated rows of q or of k, [batch][length][heads], to a tensor without gaps. Without
/// positions they count from 0.
template <class Problem, class Buffers>
tile::Status rotate(const Problem& p, const Buffers& b, Place place, const void* from,
                    const Strides& strides, std::int64_t length, std::int64_t heads,
                    const int* positions, void* to, void* stream) {
  rope::RotaryProblem r{.type = p.type,
                        .batch = p.batch,
                        .length = length,
                        .heads = heads,
                        .kv_heads = 0,
                        .head_dim = p.head_dim,
                        .rotary_dim = p.keys == 0 ? 0 : p.rotary_dim};  // without keys no table
  r.layout = p.layout;
  r.table_positions = p.table_positions;
  r.q = strides;
  rope::RotaryBuffers buffers{.q = from, .q_out = to, .positions = positions};
  buffers.cos = b.cos + table_offset(p, place);
  buffers.sin = b.sin + table_offset(p, place);
  return run_last(rope::kRotaryLadder, r, buffers, stream);
}

/// q1, k1, q2 and k2.
template <class Problem, class Buffers>
tile::Status rotate_twice(const Problem& p, const Buffers& b, const RotatedRows& rows,
                          void* stream) {
  const BatchMasks masks = masks_of(p, b);
  TILE_TRY(fill_positions(masks, p.batch, p.table_positions, rows.positions, stream));
  for (const bool far : {false, true}) {
    const Place of_q = far ? Place::far_query : Place::own,
                of_k = far ? Place::far_key : Place::own;
    TILE_TRY(rotate(p, b, of_q, b.q, p.q, p.queries, p.heads, rows.positions,
                    far ? rows.q2 : rows.q1, stream));
    TILE_TRY(
        rotate(p, b, of_k, b.k, p.k, p.keys, p.kv_heads, nullptr, far ? rows.k2 : rows.k1, stream));
  }
  return {};
}
// snippet-end rotate

/// The same for 16-byte-aligned rows, each read once.
template <class Problem, class Buffers>
tile::Status turn_all_twice(const Problem& p, const Buffers& b, const RotatedRows& rows,
                            void* stream) {
  const BatchMasks masks = masks_of(p, b);
  TILE_TRY(fill_positions(masks, p.batch, p.table_positions, rows.positions, stream));
  const Turning queries = turning_of_queries(p, b, rows.positions), keys = turning_of_keys(p, b);
  TILE_TRY(turn_twice(queries, b.q, p.q, rows.q1, rows.q2, stream));
  return turn_twice(keys, b.k, p.k, rows.k1, rows.k2, stream);
}

/// dq = scale (R(i)^T dq1 + R(i')^T dq2), for queries at these positions.
tile::Status dq_of_sums(const MethodBackwardProblem& p, const MethodBackwardBuffers& b,
                        const int* positions, const DqSums& from, void* stream);

}  // namespace windowed_rope
