// From hidden states, gradients, step 1: the same parts, from the last to the first.
// Idea: attention's gradients of q and k are rotated back, and each product is undone by a product
//       with the transpose. x went into q, k and v, so its gradient is the sum of three products;
//       the gradient of each weight matrix is one product.
// Limit: q, k and v are computed again, and dx is rounded where a product is added to it.
#include "embedding/embedding.hpp"
#include "hidden/hidden.cuh"

namespace windowed_rope {

tile::Status takes_composed(const HiddenBackward& p, const tile::Device&) {
  return check_ladders(p);
}

tile::Status composed(const HiddenBackward& p, void* stream) {
  const ProjectedRows rows = projected_rows(p);
  TILE_TRY(project(p, rows, stream));
  TILE_TRY(run_last(ladder_of(p), attention_of(p, rows), stream));
  TILE_TRY(turn(p, rope::Pass::backward, rows.dq, rows.dk, stream));

  const matmul::Problem by = projection_of(p);
  const matmul::Problem of_weights{
      .type = p.type, .m = by.k, .n = by.n, .k = by.m, .transpose_a = true};
  matmul::Problem back{.type = p.type, .m = by.m, .n = by.k, .k = by.n, .transpose_b = true};
  const struct {
    const void *h, *gradient, *weights;
    void* out;
  } products[] = {{states_of_values(p, rows), rows.dv, p.wv, p.dwv},
                  {states_of(p, rows), rows.dk, p.wk, p.dwk},
                  {states_of(p, rows), rows.dq, p.wq, p.dwq}};
  for (const auto& [h, gradient, weights, out] : products) {
    // dW = h^T dq, and dx += dq W^T
    TILE_TRY(multiply(of_weights, h, gradient, out, stream));
    TILE_TRY(multiply(back, gradient, weights, p.dx, stream));
    back.beta = 1;
  }
  if (p.encoding != Encoding::learned) return {};
  const rope::EmbeddingProblem embedding{.type = p.type,
                                         .batch = p.batch,
                                         .length = p.length,
                                         .dim = p.model_dim,
                                         .table_positions = p.length};
  return run_last(rope::kEmbeddingBackwardLadder, embedding, {p.dx, p.dtable}, stream);
}

}  // namespace windowed_rope
