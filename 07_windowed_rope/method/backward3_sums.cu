// A method's gradients, step 3: from sums to dq.
// Idea: dq1 and dq2 are sums in memory, in fp32, before they are rounded. The kernel that reads
//       them can also rotate them back and add them, which gives dq.
// Change: that kernel instead of the two that rounded dq1 and dq2 and the one that rotated them;
//         head dimensions 64 and 128.
// Limit: the sums, 8 bytes for each element of dq, are cleared, added to and read.
#include "method/method.cuh"
#include "windowed/one_pass_shape.cuh"

namespace windowed_rope::method {

tile::Status takes_sums(const AttentionBackward& p, const tile::Device& device) {
  if (p.keys == 0) return tile::unsupported("keys", "are none: there may be no tables");
  TILE_TRY(check_turning(p));
  TILE_TRY(check_composed(kBackwardLadder, p));
  return kOnePass.takes(attention_of(p), device);
}

tile::Status sums(const AttentionBackward& p, void* stream) {
  int* positions = nullptr;
  AttentionBackward inner = attention_of(p, &positions);
  TILE_TRY(turn_all_twice(p, inner, positions, stream));
  inner.dq.data = inner.dq_far.data = nullptr;  // they stay sums
  TILE_TRY(kOnePass.launch(inner, stream));
  TILE_TRY(rotate_back(turning_of_keys(p), inner.dk.data, inner.dk_far.data, p.dk, stream));
  const DqSums from = dq_sums_of(inner);
  return rotate_sums_back(turning_of_queries(p, positions), from.near, from.far, p.scale, p.dq,
                          stream);
}

}  // namespace windowed_rope::method
