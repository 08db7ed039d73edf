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

  /// Goes on. Returns the stage that it leaves.
  __device__ __forceinline__ int advance() {
    const int left = stage;
    if (++stage == kStages) stage = 0, parity ^= 1;
    return left;
  }

  /// The reading side waits for the next stage, and goes on. Returns the stage.
  __device__ __forceinline__ int wait_next(ptx::MbarrierAddress full) {
    ptx::mbarrier_wait(full + stage, parity);
    return advance();
  }
};

/// A warpgroup that reads the ring's stages one after the other.
template <int kStages>
class RingReader {
 public:
  __device__ __forceinline__ RingReader(ptx::Mbarrier* full, ptx::Mbarrier* empty, bool is_leader)
      : full_(full), empty_(empty), is_leader_(is_leader) {}

  /// Waits for the next stage, and returns it.
  __device__ __forceinline__ int next() {
    ptx::mbarrier_wait(full_ + place_.stage, place_.parity);
    return place_.advance();
  }
  /// The warpgroup has read the stage: one of its threads says so.
  __device__ __forceinline__ void release(int stage) const {
    if (is_leader_) ptx::mbarrier_arrive(empty_ + stage);
  }
  /// Leaves the next stage unread. Only that thread waits: if all did, in a branch, ptxas would not
  /// believe that the warpgroup stays together (C7520).
  __device__ __forceinline__ void drop() {
    if (is_leader_) ptx::mbarrier_wait(full_ + place_.stage, place_.parity);
    release(place_.stage);
    __syncwarp();
    place_.advance();
  }

 private:
  ptx::MbarrierAddress full_, empty_;
  bool is_leader_;
  RingPlace<kStages> place_;
};

}  // namespace tile
