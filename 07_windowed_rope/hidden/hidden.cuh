// Shared by the steps from hidden states: the workspace, the computation of q, k and v, and their
// attention.
#pragma once

#include "hidden/hidden.hpp"
#include "matmul.hpp"
#include "method/method.cuh"

namespace windowed_rope {

/// Tensors without gaps in the workspace. Without a workspace they are null, and only `bytes` is
/// computed.
struct ProjectedRows {
  void* h = nullptr;                              // [batch][length][model_dim], if a table is added
  void *q = nullptr, *k = nullptr, *v = nullptr;  // [batch][length][heads][head_dim]
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;  // backward: as q, k, v
  void *far_dq = nullptr, *far_dk = nullptr;         // backward, unless windowed: zeros
  void* rest = nullptr;                              // the workspace of the attention in between
  std::int64_t bytes = 0;                            // of all but the rest
};
ProjectedRows projected_rows(const HiddenProblem& problem, void* workspace);
ProjectedRows projected_rows(const HiddenBackwardProblem& problem, void* workspace);

/// What is multiplied with Wq and Wk, and what with Wv: h or x.
template <class Buffers>
const void* states_of(const HiddenProblem& p, const Buffers& b, const ProjectedRows& rows) {
  return adds_table(p.encoding) ? rows.h : b.x;
}
template <class Buffers>
const void* states_of_values(const HiddenProblem& p, const Buffers& b, const ProjectedRows& rows) {
  return p.encoding == Encoding::learned ? rows.h : b.x;
}

/// c = a b, and transposed as `p` says, by chapter 02's last step of the type.
tile::Status multiply(const matmul::Problem& p, const void* a, const void* b, void* c,
                      void* stream);
/// q = h Wq.
matmul::Problem projection_of(const HiddenProblem& p);

/// Rotates and scales q and k in place, or their gradients back.
tile::Status turn(const HiddenProblem& p, rope::Pass pass, const float* cos, const float* sin,
                  const float* gain, void* q, void* k, void* stream);

/// h, q, k and v.
tile::Status project(const HiddenProblem& p, const HiddenBuffers& b, const ProjectedRows& rows,
                     void* stream);

/// Without a window every key is near, and the far pair, which is never read, may be the near one.
template <class Problem>
Problem attention_of(const HiddenProblem& p) {
  Problem inner{.type = p.type,
                .batch = p.batch,
                .heads = p.heads,
                .queries = p.length,
                .keys = p.length,
                .head_dim = p.head_dim};
  inner.causal = p.causal, inner.scale = p.scale;
  if (p.encoding == Encoding::exposb) inner.distance_factor = kExposb;
  return inner;
}
/// ReRoPE rotates q and k itself.
template <class Problem>
Problem windowed_of(const HiddenProblem& p) {
  Problem inner{.type = p.type,
                .batch = p.batch,
                .heads = p.heads,
                .queries = p.length,
                .keys = p.length,
                .head_dim = p.head_dim};
  inner.scale = p.scale, inner.window = p.window, inner.table_positions = p.length;
  return inner;
}

/// Whether this device has a step of chapter 02 for the type, and a step of the ladder for the
/// attention.
template <class Ladder>
tile::Status check_ladders(const HiddenProblem& p, const Ladder& ladder,
                           const typename Ladder::Problem& inner,
                           const typename Ladder::Buffers& buffers) {
  tile::Choice choice;
  TILE_TRY(choose_last(matmul::kLadder, projection_of(p), {}, &choice));
  return choose_last(ladder, inner, buffers, &choice);
}

}  // namespace windowed_rope
