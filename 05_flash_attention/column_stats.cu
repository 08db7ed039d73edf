// Backward preprocess, from step 7 on: delta and the log-sum-exp of each query, and zeros for the
// sums of dQ.
#include "tile/column_stats.cuh"

#include "launch.hpp"

namespace flash_attention {

tile::Status compute_column_stats(const AttentionBackward& p, void* stream) {
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto head_dim) {
    return tile::launch_column_stats<decltype(element), head_dim.value>(p, stream);
  });
}

}  // namespace flash_attention
