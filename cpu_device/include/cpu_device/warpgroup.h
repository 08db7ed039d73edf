// Barriers for some of a block's threads (PTX ISA, "barrier"), and registers that warpgroups pass
// to one another (PTX ISA, "setmaxnreg"), for tile/ptx/warpgroup.cuh.
#pragma once

#include "cpu_device/qualifiers.h"
#include "cpu_device/site.h"

namespace cpu_device {

/// Barrier `id`, 1 to 15, is complete when `threads` threads, a multiple of 32, have come.
void barrier_sync(int id, int threads, Site site = Site::here());
void barrier_arrive(int id, int threads, Site site = Site::here());

/// Here nothing has registers. What is counted are those that the warpgroups may have at most: at
/// first each thread has an equal part of 65,536. Waits until all 128 threads have come and, with
/// more registers, until other warpgroups have given up enough. Compute capability 9.0 exactly.
void set_registers(int registers, bool more, Site site);
template <int kRegisters>
__forceinline__ void setmaxnreg_inc(Site site = Site::here()) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  set_registers(kRegisters, true, site);
}
template <int kRegisters>
__forceinline__ void setmaxnreg_dec(Site site = Site::here()) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  set_registers(kRegisters, false, site);
}

}  // namespace cpu_device
