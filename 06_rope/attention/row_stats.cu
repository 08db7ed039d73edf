// Backward preprocess: delta and the log-sum-exp of each query.
#include "tile/row_stats.cuh"

#include "attention/attention.cuh"

namespace rope {

tile::Status compute_stats(const AttentionBackward& p, void* stream) {
  return tile::launch_row_stats(p, static_cast<tile::RowStats*>(p.workspace), stream);
}

}  // namespace rope
