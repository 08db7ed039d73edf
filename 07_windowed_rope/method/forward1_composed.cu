// A method, step 1: rotations in memory.
// Idea: windowed attention takes any q1, k1, q2 and k2. Chapter 06 makes them of q and k: it
//       rotates them once by their own positions and once by the method's far positions.
// Limit: four tensors are written to memory and read again.
#include "method/method.cuh"

namespace windowed_rope {

tile::Status takes_composed(const MethodProblem& p, const MethodBuffers& b, const tile::Device&) {
  RotatedRows rows;
  tile::Choice choice;
  TILE_TRY(take_workspace(p, b, &rows));
  return choose_last(kForwardLadder, attention_of(p), attention_of(p, b, rows), &choice);
}

// snippet-begin launch
tile::Status composed(const MethodProblem& p, const MethodBuffers& b, void* stream) {
  RotatedRows rows;
  TILE_TRY(take_workspace(p, b, &rows));
  TILE_TRY(rotate_twice(p, b, rows, stream));
  return run_last(kForwardLadder, attention_of(p), attention_of(p, b, rows), stream);
}
// snippet-end launch

}  // namespace windowed_rope
