// Shared by the steps from hidden states: the workspace, the computation of q, k and v, and their
// attention.
#pragma once

#include "hidden/hidden.hpp"
#include "matmul.hpp"
#include "method/method.hpp"
#include "rotary/rotary.hpp"
#include "tile/host/tensor_argument.hpp"

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
ProjectedRows projected_rows(const HiddenForward& p);
ProjectedRows projected_rows(const HiddenBackward& p);

/// What is multiplied with Wq and Wk, and what with Wv: h or x.
inline const void* states_of(const Hidden& p, const ProjectedRows& rows) {
  return adds_table(p.encoding) ? rows.h : p.x;
}
inline const void* states_of_values(const Hidden& p, const ProjectedRows& rows) {
  return p.encoding == Encoding::learned ? rows.h : p.x;
}

/// c = a b, and transposed as `p` says, by chapter 02's last step of the type.
tile::Status multiply(const matmul::Problem& p, const void* a, const void* b, void* c,
                      void* stream);
/// q = h Wq.
matmul::Problem projection_of(const Hidden& p);

/// Rotates and scales q and k in place, or their gradients back.
tile::Status turn(const Hidden& p, rope::Pass pass, void* q, void* k, void* stream);

/// h, q, k and v.
tile::Status project(const Hidden& p, const ProjectedRows& rows, void* stream);

/// The attention of q, k and v: for the windowed encoding a method's, which rotates them itself;
/// otherwise windowed attention without a window, whose far pair, which is never read, is the near
/// one.
AttentionForward attention_of(const HiddenForward& p, const ProjectedRows& rows);
AttentionBackward attention_of(const HiddenBackward& p, const ProjectedRows& rows);

inline const ForwardLadder& ladder_of(const HiddenForward& p) {
  return p.encoding == Encoding::windowed ? method::kMethodLadder : kForwardLadder;
}
inline const BackwardLadder& ladder_of(const HiddenBackward& p) {
  return p.encoding == Encoding::windowed ? method::kMethodBackwardLadder : kBackwardLadder;
}

/// Whether the workspace is large enough, and this device has a step of chapter 02 for the type and
/// a step for the attention.
template <class Call>
tile::Status check_ladders(const Call& p) {
  TILE_TRY(tile::check_workspace(composed_bytes(p), p.workspace_bytes));
  tile::Choice choice;
  TILE_TRY(choose_last(matmul::kLadder, projection_of(p), {}, &choice));
  return choose_last(ladder_of(p), attention_of(p, projected_rows(p)), &choice);
}

}  // namespace windowed_rope
