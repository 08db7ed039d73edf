// Kernels of cooperative groups, and of launches by their arguments' addresses.
#pragma once

#include <cuda_runtime_api.h>

namespace device_test {

/// What the threads of a block of 64 learn from their groups.
struct Groups {
  unsigned block_rank, block_size;
  unsigned tile_rank, tile_size, tile_number, tiles;
  int tile_sum;       // of the thread numbers in its tile of 16
  int from_next;      // the thread number of the next in the tile, or its own at the end
  double from_third;  // of the tile's thread 3
  int tile_scan;      // of ones, with its own
  int before;         // of ones, without
  unsigned odd_rank;  // among the odd or the even threads of its warp
  unsigned odd_size;
  int odd_largest;        // thread number among them
  unsigned odd_ballot;    // of those that 4 divides, by rank
  unsigned generic_size;  // of a tile of 8 as a thread_group
  // Rank and number of groups: of a tile of 4 among those of its warp, of the odd or even threads,
  // and of every 4 of these.
  unsigned nested_rank, nested_groups;
  unsigned odd_number, odd_groups;
  unsigned fours_rank, fours_groups, fours_size;
};
void ask_groups(Groups* out);

/// All threads of the grid add up in two rounds: total[0] is their number, total[1] the sum of what
/// each saw in total[0] after the grid's barrier.
cudaError_t meet_in_grid(int blocks, int threads, unsigned long long* total);
cudaError_t blocks_that_fit(int* blocks, int threads);

/// out[i] = scale * i + offset for all threads of a block, by cudaLaunchKernel.
cudaError_t launch_by_pointers(float* out, int threads, float scale, double offset);

/// One kernel whose assert fails in thread 5.
void fail_an_assert();

/// A lane of each pair waits for the whole warp while the others shuffle among themselves.
void odd_lanes_first(int* out);

/// Dynamic shared memory, declared in the kernel; atomics of every scope.
void scopes(int* counters);

}  // namespace device_test
