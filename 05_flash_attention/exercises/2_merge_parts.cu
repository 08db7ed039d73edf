// Exercise 05.2: attention from parts
//
// A model that writes one word after the other has a single query a head, and many keys. A block
// for each head would leave most of the GPU idle. So the keys are cut into parts, and every part is
// an attention of its own: o is divided by the sum of its own weights, and lse is the logarithm of
// that sum. Merge them as if the keys had not been cut.
// Exercise 03.2 merged sums that were not divided yet, each with its maximum. Here lse is all that
// is left of both, and it suffices: exp(lse) is the sum of a part's weights.
// A part may have no key that the row sees: o = 0, lse = -infinity. It counts as nothing, and a row
// that sees no key in any part gets the same. If a part of a row is NaN, the row is NaN.
// Check it with: ./tour exercise 05.2
#include "exercises/exercises.hpp"
#include "launch.hpp"
#include "tile/reduce.cuh"

namespace flash_attention {
namespace {

constexpr int kThreads = 128, kRows = kThreads / tile::kWarp;  // a warp for each row

__global__ void merge_parts_kernel(AttentionParts p,  // see exercises.hpp for the shapes
                                   float* o,          // [rows][dim]
                                   float* lse) {      // [rows]
  const std::int64_t row = std::int64_t{blockIdx.x} * kRows + threadIdx.x / tile::kWarp;
  if (row >= p.rows) return;  // a whole warp, and there is no barrier

  // TODO: First lse of the whole row. May exp(lse) be computed as it is? What part of the row's sum
  // is that of one part, and so how much does its o count? What is -infinity minus itself?
}

}  // namespace

tile::Status merge_parts(const AttentionParts& parts, float* o, float* lse) {
  if (parts.rows == 0) return {};
  unsigned blocks = 0;
  if (tile::Status s = tile::blocks_for("rows", parts.rows, kRows, &blocks); !s.ok()) return s;
  merge_parts_kernel<<<blocks, kThreads>>>(parts, o, lse);
  return tile::launch_status("merge_parts_kernel");
}

}  // namespace flash_attention
