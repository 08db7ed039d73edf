// What the threads of a cluster know of one another by its barrier. With an arrival all that the
// thread has done, and all that its block had done before the last __syncthreads(), becomes known
// to each thread that waits for that phase (PTX ISA, "barrier.cluster": arrive releases, wait
// acquires). What a thread does between its arrival and its wait is known to no other before the
// next phase. A relaxed arrival tells of the mbarriers that its thread has initialised and of
// nothing else, and one that is restricted to shared memory not of all; races.cpp keeps those.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "../cluster.hpp"
#include "checker.hpp"

namespace cpu_device::check {

inline bool is_before(const Moment& a, const Moment& b) {
  return a.epoch < b.epoch || (a.epoch == b.epoch && a.tick < b.tick);
}

class ClusterClock {
 public:
  void begin() {
    phase_ = 1;
    if (used_) threads_.assign(threads_.size(), {});
    epochs_ = {};
    used_ = false;
  }

  /// Publishes with this phase what the thread did until the moment, and what it has published
  /// before: so it is called also where a thread arrives and has nothing to tell.
  void tell(uint32_t rank, uint32_t thread, Moment moment) {
    if (threads_.empty()) threads_.resize(size_t{kLargestCluster} * kMaxThreads);
    used_ = true;
    Thread& t = threads_[rank * kMaxThreads + thread];
    const Moment& before = t.moments[t.latest % kKept];
    if (is_before(moment, before)) moment = before;
    t.latest = phase_;
    t.moments[phase_ % kKept] = moment;
    uint32_t& epoch = epochs_[rank][phase_ % kKept];
    epoch = std::max(epoch, moment.epoch);
  }

  void complete() {
    for (auto& epochs : epochs_) {
      uint32_t& epoch = epochs[phase_ % kKept];
      epoch = std::max(epoch, epochs[(phase_ - 1) % kKept]);
    }
    ++phase_;
  }

  /// The phase in which threads arrive, from 1 on.
  uint32_t phase() const { return phase_; }

  // While others arrive for the next phase, a thread that has arrived may not have waited yet, and
  // knows of the previous phase only.
  static constexpr uint32_t kKept = 3;  // phases

  /// The moment up to which a thread that has waited for the phase knows what the given thread did.
  Moment known(uint32_t phase, uint32_t rank, uint32_t thread) const {
    if (phase == 0) return {};
    const Thread& t = threads_[rank * kMaxThreads + thread];
    return t.moments[std::min(phase, t.latest) % kKept];
  }
  bool covers(uint32_t phase, uint32_t rank, const Stamp& stamp) const {
    if (phase == 0) return false;
    return stamp.epoch < epochs_[rank][phase % kKept] ||
           !is_before(known(phase, rank, stamp.thread), {stamp.epoch, stamp.tick});
  }

 private:
  struct Thread {
    uint32_t latest = 0;  // phase; it does not change any more when the thread has ended
    std::array<Moment, kKept> moments{};
  };
  uint32_t phase_ = 1;
  bool used_ = false;
  std::vector<Thread> threads_;
  std::array<std::array<uint32_t, kKept>, kLargestCluster> epochs_{};  // of blocks
};

}  // namespace cpu_device::check
