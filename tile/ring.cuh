// A ring of stages in shared memory that one side fills and the other empties, with an mbarrier for
// each direction: full[stage] completes a phase when the stage has been filled, empty[stage] when
// it has been read.
#pragma once

#include <cuda_runtime.h>

namespace tile {

/// Where a side stands. A stage's mbarriers go through a phase in every round of the ring, so the
/// parity to wait for changes with each round. The filling side waits for the parity of the round
/// before, which for a new mbarrier counts as complete: the first round does not wait.
template <int kStages>
struct RingPlace {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace tile
