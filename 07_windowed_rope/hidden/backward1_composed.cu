// From hidden states, gradients, step 1: the same parts, from the last to the first.
// Idea: attention's gradients of q and k are rotated back, and each product is undone by a product
//       with the transpose. x went into q, k and v, so its gradient is the sum of three products;
//       the gradient of each weight matrix is one product.
// Limit: q, k and v are computed again, and dx is rounded where a product is added to it.
#include "embedding/embedding.hpp"
#include "hidden/hidden.cuh"

namespace windowed_rope {
namespace {

MethodBackwardBuffers windowed_of(const HiddenBackwardBuffers& b, const ProjectedRows& rows) {
  return {.q = rows.q,
          .k = rows.k,
          .v = rows.v,
          .o = b.o,
          .lse = b.lse,
          .dout = b.dout,
          .dq = rows.dq,
          .dk = rows.dk,
          .dv = rows.dv,
          .cos = b.cos,
          .sin = b.sin,
          .workspace = rows.rest,
          .workspace_bytes = b.workspace_bytes - rows.bytes};
}
BackwardBuffers attention_of(const HiddenBackwardBuffers& b, const ProjectedRows& rows) {
  return {.q1 = rows.q,
          .k1 = rows.k,
          .q2 = rows.q,
          .k2 = rows.k,
          .v = rows.v,
          .o = b.o,
          .lse = b.lse,
          .dout = b.dout,
          .dq1 = rows.dq,
          .dk1 = rows.dk,
          .dq2 = rows.far_dq,
          .dk2 = rows.far_dk,
          .dv = rows.dv,
          .workspace = rows.rest,
          .workspace_bytes = b.workspace_bytes - rows.bytes};
}

/// dq, dk and dv.
tile::Status attend(const HiddenBackwardProblem& p, const HiddenBackwardBuffers& b,
                    const ProjectedRows& rows, void* stream) {
  if (p.encoding == Encoding::windowed) {
    return run_last(kMethodBackwardLadder, windowed_of<MethodBackwardProblem>(p),
                    windowed_of(b, rows), stream);
  }
  TILE_TRY(
      run_last(kBackwardLadder, attention_of<BackwardProblem>(p), attention_of(b, rows), stream));
  return turn(p, rope::Pass::backward, b.cos, b.sin, b.gain, rows.dq, rows.dk, stream);
}

}  // namespace

tile::Status takes_composed(const HiddenBackwardProblem& p, const HiddenBackwardBuffers& b,
                            const tile::Device&) {
  TILE_TRY(tile::check_workspace(workspace_bytes(p), b.workspace_bytes));
  const ProjectedRows rows = projected_rows(p, b.workspace);
  if (p.encoding == Encoding::windowed) {
    return check_ladders(p, kMethodBackwardLadder, windowed_of<MethodBackwardProblem>(p),
                         windowed_of(b, rows));
  }
  return check_ladders(p, kBackwardLadder, attention_of<BackwardProblem>(p), attention_of(b, rows));
}

// snippet-begin launch
tile::Status composed(const HiddenBackwardProblem& p, const HiddenBackwardBuffers& b,
                      void* stream) {
  const ProjectedRows rows = projected_rows(p, b.workspace);
  const HiddenBuffers forward{.x = b.x,
                              .wq = b.wq,
                              .wk = b.wk,
                              .wv = b.wv,
                              .table = b.table,
                              .cos = b.cos,
                              .sin = b.sin,
                              .gain = b.gain};
  TILE_TRY(project(p, forward, rows, stream));
  TILE_TRY(attend(p, b, rows, stream));

  const matmul::Problem by = projection_of(p);
  const matmul::Problem of_weights{
      .type = p.type, .m = by.k, .n = by.n, .k = by.m, .transpose_a = true};
  matmul::Problem back{.type = p.type, .m = by.m, .n = by.k, .k = by.n, .transpose_b = true};
  const struct {
    const void *h, *gradient, *weights;
    void* out;
  } products[] = {{states_of_values(p, b, rows), rows.dv, b.wv, b.dwv},
                  {states_of(p, b, rows), rows.dk, b.wk, b.dwk},
                  {states_of(p, b, rows), rows.dq, b.wq, b.dwq}};
  for (const auto& [h, gradient, weights, out] : products) {
    // dW = h^T dq, and dx += dq W^T
    TILE_TRY(multiply(of_weights, h, gradient, out, stream));
    TILE_TRY(multiply(back, gradient, weights, b.dx, stream));
    back.beta = 1;
  }
  if (p.encoding != Encoding::learned) return {};
  const rope::EmbeddingProblem embedding{.type = p.type,
                                         .batch = p.batch,
                                         .length = p.length,
                                         .dim = p.model_dim,
                                         .table_positions = p.length};
  return run_last(rope::kEmbeddingBackwardLadder, embedding, {b.dx, b.dtable}, stream);
}
// snippet-end launch

}  // namespace windowed_rope
