// A ring of stages in shared memory that one side fills and the other empties, with an mbarrier for
// each direction: full[stage] completes a phase when the stage has been filled, empty[stage] when
// it has been read.
#pragma once

#include <cuda_runtime.h>

#include "tile/ptx/mbarrier.cuh"

namespace tile {

/// Initialises the mbarriers of a ring, by one thread, before a barrier of all threads that use
/// them. A stage is full when the producer has arrived and all bytes are there that it expects, and
/// empty when `readers` threads have arrived.
template <int kStages>
__device__ __forceinline__ void init_ring(ptx::Mbarrier (&full)[kStages],
                                          ptx::Mbarrier (&empty)[kStages], unsigned readers) {
  for (int stage = 0; stage < kStages; ++stage) {
    ptx::mbarrier_init(&full[stage], 1);
    ptx::mbarrier_init(&empty[stage], readers);
  }
}

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

  /// The reading side waits for the next stage, and goes on. Returns the stage.
  __device__ __forceinline__ int wait_next(ptx::Mbarrier (&full)[kStages]) {
    const int at = stage;
    ptx::mbarrier_wait(&full[at], parity);
    advance();
    return at;
  }
};

}  // namespace tile
