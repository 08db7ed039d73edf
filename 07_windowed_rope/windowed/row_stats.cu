// Backward preprocess, from step 2 on: delta and the log-sum-exp of each query.
#include "tile/row_stats.cuh"

#include "windowed/launch.hpp"

namespace windowed_rope {

tile::Status compute_stats(const AttentionBackward& p, void* stream) {
  return tile::launch_row_stats(p, static_cast<RowStats*>(p.workspace), stream);
}

}  // namespace windowed_rope
