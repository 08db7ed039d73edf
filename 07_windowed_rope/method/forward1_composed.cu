// A method, step 1: rotations in memory.
// Idea: windowed attention takes any q1, k1, q2 and k2. Chapter 06 makes them of q and k: it
//       rotates them once by their own positions and once by the method's far positions.
// Limit: four tensors are written to memory and read again.
#include "method/rotate_twice.cuh"

namespace windowed_rope::method {

tile::Status takes_composed(const AttentionForward& p, const tile::Device&) {
  return check_composed(kForwardLadder, p);
}

tile::Status composed(const AttentionForward& p, void* stream) {
  int* positions = nullptr;
  const AttentionForward inner = attention_of(p, &positions);
  TILE_TRY(rotate_twice(p, inner, positions, stream));
  return run_last(kForwardLadder, inner, stream);
}

}  // namespace windowed_rope::method
