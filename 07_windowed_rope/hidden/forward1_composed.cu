// From hidden states, step 1: each part by its chapter's last step.
// Idea: the encodings differ in where a position comes in: before the products, after them, or
//       between a score and its weight. The rest is the same: windowed attention, which with W = N
//       is plain attention.
// Limit: h, q, k and v are written to memory and read again.
#include "hidden/hidden.cuh"

namespace windowed_rope {
namespace {

MethodBuffers windowed_of(const HiddenBuffers& b, const ProjectedRows& rows) {
  return {.q = rows.q,
          .k = rows.k,
          .v = rows.v,
          .o = b.o,
          .lse = b.lse,
          .cos = b.cos,
          .sin = b.sin,
          .workspace = rows.rest,
          .workspace_bytes = b.workspace_bytes - rows.bytes};
}
ForwardBuffers attention_of(const HiddenBuffers& b, const ProjectedRows& rows) {
  return {.q1 = rows.q,
          .k1 = rows.k,
          .q2 = rows.q,
          .k2 = rows.k,
          .v = rows.v,
          .o = b.o,
          .lse = b.lse,
          .workspace = rows.rest,
          .workspace_bytes = b.workspace_bytes - rows.bytes};
}

}  // namespace

tile::Status takes_composed(const HiddenProblem& p, const HiddenBuffers& b, const tile::Device&) {
  TILE_TRY(tile::check_workspace(workspace_bytes(p), b.workspace_bytes));
  const ProjectedRows rows = projected_rows(p, b.workspace);
  if (p.encoding == Encoding::windowed) {
    return check_ladders(p, kMethodLadder, windowed_of<MethodProblem>(p), windowed_of(b, rows));
  }
  return check_ladders(p, kForwardLadder, attention_of<ForwardProblem>(p), attention_of(b, rows));
}

// snippet-begin launch
tile::Status composed(const HiddenProblem& p, const HiddenBuffers& b, void* stream) {
  const ProjectedRows rows = projected_rows(p, b.workspace);
  TILE_TRY(project(p, b, rows, stream));
  if (p.encoding == Encoding::windowed) {
    return run_last(kMethodLadder, windowed_of<MethodProblem>(p), windowed_of(b, rows), stream);
  }
  return run_last(kForwardLadder, attention_of<ForwardProblem>(p), attention_of(b, rows), stream);
}
// snippet-end launch

}  // namespace windowed_rope
