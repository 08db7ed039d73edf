// Asynchronous copies from global to shared memory (PTX ISA, "Non-bulk copy"), for
// tile/ptx/cp_async.cuh. A copy lands when its thread waits for it and not before: who forgets the
// wait sees what was there.
#pragma once

namespace cpu_device {

/// Issues a copy of `bytes`, 4, 8 or 16, of which the first `source_bytes` come from `global`. The
/// rest becomes zero.
void copy_async(void* shared, const void* global, int bytes, int source_bytes);

/// Makes a group of the calling thread's copies since the last one.
void commit_copies();

/// Lands the thread's committed copies but those of its latest `pending` groups.
void wait_for_copies(int pending);

/// Lands all copies of the thread.
void wait_for_all_copies();

}  // namespace cpu_device
