// A method, step 3: queries and keys are rotated in memory, in one pass.
// Idea: attention by wgmma saves more than the rotation in the block did, and its queries come by
//       TMA, which cannot rotate. So they are rotated in memory again, but by a kernel that reads
//       each row once for both rotations.
// Change: that kernel instead of chapter 06's, and windowed attention's step 6 (`persistent`).
// Limit: memory, 12 bytes for each element of q and of k, in addition to the attention.
#include "method/method.cuh"

namespace windowed_rope::method {

tile::Status takes_turn_twice(const AttentionForward& p, const tile::Device& device) {
  TILE_TRY(check_turning(p));
  TILE_TRY(check_composed(kForwardLadder, p));
  return kPersistent.takes(attention_of(p), device);
}

tile::Status turn_twice(const AttentionForward& p, void* stream) {
  int* positions = nullptr;
  const AttentionForward inner = attention_of(p, &positions);
  TILE_TRY(turn_all_twice(p, inner, positions, stream));
  return kPersistent.launch(inner, stream);
}

}  // namespace windowed_rope::method
