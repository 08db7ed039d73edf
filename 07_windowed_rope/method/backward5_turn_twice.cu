// A method's gradients, step 5: keys are rotated in memory again.
// Idea: attention's gradients by wgmma save more than the rotation in the block did, and its keys
//       come by TMA, which cannot rotate.
// Change: step 3 (`sums`) with windowed attention's backward step 5 (`wgmma`).
// Limit: memory: q and k are read once and written twice, dk1 and dk2 are written and read, and the
//        sums of dq are cleared, added to and read.
#include "method/method.cuh"

namespace windowed_rope::method {

tile::Status takes_turn_twice(const AttentionBackward& p, const tile::Device& device) {
  TILE_TRY(check_turning(p));
  TILE_TRY(check_composed(kBackwardLadder, p));
  return kWgmma.takes(attention_of(p), device);
}

tile::Status turn_twice(const AttentionBackward& p, void* stream) {
  int* positions = nullptr;
  AttentionBackward inner = attention_of(p, &positions);
  TILE_TRY(turn_all_twice(p, inner, positions, stream));
  inner.dq.data = inner.dq_far.data = nullptr;  // they stay sums
  TILE_TRY(kWgmma.launch(inner, stream));
  TILE_TRY(rotate_back(turning_of_keys(p), inner.dk.data, inner.dk_far.data, p.dk, stream));
  const DqSums from = dq_sums_of(inner);
  return rotate_sums_back(turning_of_queries(p, positions), from.near, from.far, p.scale, p.dq,
                          stream);
}

}  // namespace windowed_rope::method
