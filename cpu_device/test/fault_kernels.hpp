// Kernels that touch what they must not, or never end.
#pragma once

#include <cuda_runtime_api.h>

namespace device_test {

enum class Fault {
  spin,            // an endless loop
  spin_on_flag,    // waits in a plain loop for a flag that a later thread would set
  sleep_for_ever,  // waits with __nanosleep for a flag that is never set
  write_to_null,
  read_wild,
  misaligned,  // a float4
  recursion,   // deeper than any stack
  division,    // of an integer by zero
  remainder,
  trap,
  nested_launch,
};

/// One thread makes the mistake, in its block only. All others write 1 to done[block * threads +
/// thread], and the first warp of every block meets in a shuffle before.
void make_fault(Fault fault, unsigned blocks, unsigned threads, unsigned block, unsigned thread,
                int* done);

/// Kernels that are templates call __trap(): for fp16 and backward, and, launched through a
/// pointer, for fp32 and not backward.
void trap_in_template();
void trap_in_pointer();

/// Block 0 waits with __nanosleep for a flag that block 1 sets; *out becomes 1.
void wait_for_other_block(int* flag, int* out);

/// The threads of a block wait in a loop until all have counted in *count, and store it to out.
void meet_by_spinning(int* count, int* out, unsigned threads);

/// A kernel that calls a function which ends without its return.
void end_without_return(int* out);

/// 512 threads meet at `rounds` barriers. *out becomes 1.
void many_barriers(int* out, int rounds);

/// More static and dynamic shared memory than the launch may have, together.
void too_much_shared(int* out, unsigned dynamic_bytes);
inline constexpr int kTooMuchStatic = 40 * 1024;

/// Writes what fresh shared memory holds, [blocks][words], and then 12345 over it.
inline constexpr unsigned kFreshWords = 64;
void read_fresh_shared(int* out, unsigned blocks);

/// __syncthreads() on the host.
void barrier_on_host();

}  // namespace device_test
