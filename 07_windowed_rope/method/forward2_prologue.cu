// A method, step 2: queries are rotated in the prologue.
// Idea: a block has its queries in shared memory before its loop, and can rotate them there: by the
//       far positions for the far parts, by their own positions for the near part. Only keys, which
//       many blocks read, are worth rotating in memory; one kernel reads them once for both
//       rotations.
// Change: windowed attention's step 4 (`two_visits`) with tables, by which it rotates q in shared
//         memory before each part.
// Limit: as in that step.
#include "method/method.cuh"

namespace windowed_rope::method {
namespace {

/// Windowed attention of plain queries, and of keys that are rotated into the workspace.
AttentionForward attention_of_rotated_keys(const AttentionForward& p) {
  AttentionForward inner = p;
  const Strides packed = packed_strides(p.keys, p.kv_heads, p.head_dim);
  auto* const keys = static_cast<std::byte*>(p.workspace);
  inner.k = {keys, packed};
  inner.k_far = {keys ? keys + prologue_bytes(p) / 2 : nullptr, packed};
  inner.q_far = p.q;
  return inner;
}

}  // namespace

tile::Status takes_prologue(const AttentionForward& p, const tile::Device& device) {
  TILE_TRY(check_turning(p));
  TILE_TRY(tile::check_workspace(prologue_bytes(p), p.workspace_bytes));
  return kTwoVisits.takes(attention_of_rotated_keys(p), device);
}

tile::Status prologue(const AttentionForward& p, void* stream) {
  const AttentionForward inner = attention_of_rotated_keys(p);
  TILE_TRY(turn_rows_twice(turning_of_keys(p), p.k, inner.k, inner.k_far, stream));
  return kTwoVisits.launch(inner, stream);
}

}  // namespace windowed_rope::method
