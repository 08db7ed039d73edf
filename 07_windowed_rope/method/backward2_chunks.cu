// A method's gradients, step 2: 16 bytes at a time.
// Idea: the cost of a rotation is memory traffic only. So each row of q and k is read once for both
//       rotations, and a thread rotates back eight pairs of both gradients, whose loads are all
//       under way at once.
// Change: two kernels for the rotations instead of five.
// Limit: the gradients of rotated rows are still written and read again, after those of queries
//        were sums in memory.
#include "method/method.cuh"

namespace windowed_rope::method {

tile::Status takes_chunks(const AttentionBackward& p, const tile::Device&) {
  if (p.keys == 0) return tile::unsupported("keys", "are none: there may be no tables");
  TILE_TRY(check_turning(p));
  return check_composed(kBackwardLadder, p);
}

tile::Status chunks(const AttentionBackward& p, void* stream) {
  int* positions = nullptr;
  const AttentionBackward inner = attention_of(p, &positions);
  TILE_TRY(turn_all_twice(p, inner, positions, stream));
  TILE_TRY(run_last(kBackwardLadder, inner, stream));
  const Turning queries = turning_of_queries(p, positions);
  TILE_TRY(rotate_back(queries, inner.dq.data, inner.dq_far.data, p.dq, stream));
  return rotate_back(turning_of_keys(p), inner.dk.data, inner.dk_far.data, p.dk, stream);
}

}  // namespace windowed_rope::method
