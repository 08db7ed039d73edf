// Launches of clusters, right and wrong, and kernels whose blocks fail to meet.
#pragma once

#include <cuda_runtime_api.h>

namespace device_test {

/// out[2 b], out[2 b + 1]: rank and cluster size of block b of the grid, blocks counted along x
/// first. `large` allows clusters of more than 8 blocks.
cudaError_t number_blocks(int* out, dim3 grid, dim3 block, dim3 cluster, size_t bytes, bool large);

/// A launch without clusters: attributes that say nothing, or none. out[0] = 7.
cudaError_t launch_without_clusters(int* out, bool with_attributes);
/// cudaLaunchKernelEx without what it must have.
cudaError_t launch_by_nothing();
cudaError_t launch_by_lost_attributes();
cudaError_t allow_large_clusters(int value);
/// How many clusters the card holds at a time.
cudaError_t clusters_at_a_time(int* count, dim3 block, dim3 cluster, size_t bytes);

/// What threads of a cluster do wrong, or just barely right. Of four blocks, unless it says else.
enum class Meeting {
  // Right.
  block_returned,        // block 1 returns at once, and no thread waits for it
  arrived_and_returned,  // odd warps arrive and return, others are late
  poll,                  // a thread of block 0 sleeps until block 3 has written to it
  poll_by_votes,         // all threads of block 0 do, with votes for sleep
  alone,                 // the barrier in an ordinary launch
  // Wrong.
  barrier_of_block,    // thread 0 of block 1 waits at __syncthreads(), all others at cluster_sync()
  second_arrival,      // thread 3 of block 2 arrives twice
  no_arrival,          // thread 3 of block 2 waits without having arrived
  two_arrivals,        // the lanes of a warp arrive at two places
  two_waits,           // the same of waits
  rank,                // asks for an address in block 4
  global_address,      // asks where global memory lies in another block
  trap,                // thread 5 of block 2
  endless_poll,        // all sleep until one writes, which none does
  read_after_the_end,  // block 0 reads shared memory of block 1, which has ended; not in all orders
};

/// out, for a thread each, is 1 where it came to its end; for the last of them what was read.
void meet(Meeting meeting, unsigned threads, int* out);

/// The lines at which threads of the last kernel waited, and the one of its launch.
struct MeetingLines {
  int first = 0, second = 0;
  int launch = 0;
};
MeetingLines lines_of_meeting();

}  // namespace device_test
