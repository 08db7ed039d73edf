// Kernels whose threads fail to meet. They never end on a GPU, or end as they like.
#pragma once

#include <cuda_runtime_api.h>

namespace device_test {

enum class Divergence {
  half_block,       // the first half waits at a barrier, the rest returns
  two_barriers,     // odd and even threads wait at barriers of their own
  two_kinds,        // the same, at a barrier and at one that counts
  early_return,     // the last thread returns before the barrier
  trip_counts,      // odd threads come to the barrier once more than the even ones
  missing_lane,     // lane 3 of each warp waits at a barrier and the others in a shuffle
  exited_lane,      // lane 5 of each warp returns, and the others wait in a shuffle
  own_bit,          // all lanes shuffle with a mask without lane 0
  different_masks,  // the halves of a warp vote with masks that overlap
  disjoint_starts,  // the same, with masks of different lowest lanes
  different_calls,  // odd and even lanes call different votes
  kinds
};

/// In which source lines things are. Kernels write the first two before they wait there.
struct Lines {
  int first = 0, second = 0;
  int launch = 0;
};

/// Runs the kernel and leaves its error to the caller.
void diverge(Divergence kind, dim3 block, Lines* lines);

/// The file name that reports give.
const char* divergent_file();

}  // namespace device_test
