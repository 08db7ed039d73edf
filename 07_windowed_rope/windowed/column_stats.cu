// Backward preprocess of step 5: delta and the log-sum-exp of each query, and zeros for the sums of
// dQ1 and dQ2.
#include "tile/column_stats.cuh"

#include "windowed/launch.hpp"

namespace windowed_rope {

tile::Status compute_column_stats(const AttentionBackward& p, void* stream) {
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    return tile::launch_column_stats<decltype(element), head_dim.value, 2>(p, stream);
  });
}

}  // namespace windowed_rope
