// From hidden states, step 1: each part by its chapter's last step.
// Idea: the encodings differ in where a position comes in: before the products, after them, or
//       between a score and its weight. The rest is the same: windowed attention, which with W = N
//       is plain attention.
// Limit: h, q, k and v are written to memory and read again.
#include "hidden/hidden.cuh"

namespace windowed_rope {

tile::Status takes_composed(const HiddenForward& p, const tile::Device&) {
  return check_ladders(p);
}

tile::Status composed(const HiddenForward& p, void* stream) {
  const ProjectedRows rows = projected_rows(p);
  TILE_TRY(project(p, rows, stream));
  return run_last(ladder_of(p), attention_of(p, rows), stream);
}

}  // namespace windowed_rope
