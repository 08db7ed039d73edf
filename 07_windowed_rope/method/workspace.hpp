// Where rotated rows and their gradients lie in the workspace of a method's steps, and the windowed
// attention in between.
#pragma once

#include "method/method.hpp"

namespace windowed_rope {

/// Tensors without gaps. Without a workspace they are null, and only `bytes` is computed.
struct RotatedRows {
  void *q1 = nullptr, *k1 = nullptr, *q2 = nullptr, *k2 = nullptr;
  void *dq1 = nullptr, *dk1 = nullptr, *dq2 = nullptr, *dk2 = nullptr;  // backward
  int* positions = nullptr;  // [batch][queries]: of the key beside which each stands
  void* rest = nullptr;      // the workspace of the attention in between
  std::int64_t bytes = 0;    // of all but the rest; INT64_MAX if they overflow
};

RotatedRows rotated_rows(const MethodProblem& problem, void* workspace);
RotatedRows rotated_rows(const MethodBackwardProblem& problem, void* workspace);

/// The windowed attention of rotated rows.
inline ForwardProblem attention_of(const MethodProblem& p) {
  ForwardProblem inner{.type = p.type,
                       .batch = p.batch,
                       .heads = p.heads,
                       .queries = p.queries,
                       .keys = p.keys,
                       .head_dim = p.head_dim,
                       .kv_heads = p.kv_heads};
  inner.window = p.window, inner.scale = p.scale;
  inner.v = p.v, inner.o = p.o;
  return inner;
}
inline BackwardProblem attention_of(const MethodBackwardProblem& p) {
  BackwardProblem inner{.type = p.type,
                        .batch = p.batch,
                        .heads = p.heads,
                        .queries = p.queries,
                        .keys = p.keys,
                        .head_dim = p.head_dim,
                        .kv_heads = p.kv_heads};
  inner.window = p.window, inner.scale = p.scale;
  inner.v = p.v, inner.o = p.o, inner.dout = p.dout, inner.dv = p.dv;
  return inner;
}

}  // namespace windowed_rope
