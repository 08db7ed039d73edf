// Times on a GPU. Nothing here means anything on the CPU device.
#pragma once

#include <functional>

#include "harness/status.hpp"

namespace tile {

/// Starts the work to be timed in a stream, a cudaStream_t.
using Work = std::function<Status(void* stream)>;

/// The median time of one execution over `repetitions`, in milliseconds, by CUDA events. Before
/// each, the L2 cache is cleared by reading 256 MiB: reading, because lines left dirty by a write
/// would be written back within the time measured.
Status median_milliseconds(const Work& work, int repetitions, double* milliseconds);

/// The ceiling of a kernel that moves `bytes`: the time in which a copy moves as many, half of them
/// read and half written, the faster of cudaMemcpyAsync and a plain copy kernel.
Status copy_milliseconds(double bytes, int repetitions, double* milliseconds);

}  // namespace tile
