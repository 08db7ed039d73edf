// A method, step 3: queries and keys are rotated in memory, in one pass.
// Idea: attention by wgmma saves more than the rotation in the block did, and its queries come by
//       TMA, which cannot rotate. So they are rotated in memory again, but by a kernel that reads
//       each row once for both rotations.
// Change: that kernel instead of chapter 06's, and windowed attention's step 5 (`wgmma`).
// Limit: memory, 12 bytes for each element of q and of k, in addition to the attention.
#include "method/method.cuh"

namespace windowed_rope {

tile::Status takes_turn_twice(const MethodProblem& p, const MethodBuffers& b,
                              const tile::Device& device) {
  RotatedRows rows;
  TILE_TRY(check_turning(p, b));
  TILE_TRY(take_workspace(p, b, &rows));
  return takes_wgmma(attention_of(p), attention_of(p, b, rows), device);
}

// snippet-begin launch
tile::Status turn_twice(const MethodProblem& p, const MethodBuffers& b, void* stream) {
  RotatedRows rows;
  TILE_TRY(take_workspace(p, b, &rows));
  TILE_TRY(turn_all_twice(p, b, rows, stream));
  return wgmma(attention_of(p), attention_of(p, b, rows), stream);
}
// snippet-end launch

}  // namespace windowed_rope
