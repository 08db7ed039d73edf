// The broken kernels of docs/debugging.md, one mistake each.
#pragma once

namespace bugs {

constexpr int kThreads = 128;  // in a block

/// Starts a kernel that reads `in` and writes `out`, n floats each, in device memory.
using Launch = void(const float* in, float* out, int n);

Launch divergent_barrier;
Launch endless_wait;
Launch host_memory;
Launch local_overrun;
Launch misaligned;
Launch missing_atomic;
Launch missing_barrier;
Launch missing_second_barrier;
Launch missing_syncwarp;
Launch past_the_end;
Launch shared_overrun;
Launch unwritten;

}  // namespace bugs
