// A method, step 3: queries and keys turned in memory, once.
// Idea: attention by wgmma takes half of what `mma` took, and wants its queries as TMA brings them.
//       So they turn in memory again, but by a kernel that reads each row once for both turns.
// Change: `composed` with that kernel in the place of chapter 06's, for windowed attention's
// step 5. Limit: as there; and 12 bytes of memory for each pair of elements of q and of k.
#include "method.cuh"

namespace windowed_rope {

tile::Status takes_turn_twice(const MethodProblem& p, const MethodBuffers& b,
                              const tile::Device& device) {
  RotatedRows rows;
  if (tile::Status s = check_turning(p, b); !s.ok()) return s;
  if (tile::Status s = take_workspace(p, b, &rows); !s.ok()) return s;
  return takes_wgmma(attention_of(p), attention_of(p, b, rows), device);
}

tile::Status turn_twice(const MethodProblem& p, const MethodBuffers& b, void* stream) {
  RotatedRows rows;
  if (tile::Status s = take_workspace(p, b, &rows); !s.ok()) return s;
  if (tile::Status s = turn_all_twice(p, b, rows, stream); !s.ok()) return s;
  return wgmma(attention_of(p), attention_of(p, b, rows), stream);
}

}  // namespace windowed_rope
