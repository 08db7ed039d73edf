// Kernels whose warps do different work, for the test beside them.
#pragma once

#include "tile/host/status.hpp"

namespace ptx_test {

/// Warp 0 hands numbers to warps 1 and 2 by two named barriers. out[i * 64 + t]: i * 1000 + t.
tile::Status pass_by_named_barriers(int items, int* out);

/// Two groups of 64 threads, each with a barrier of its own, as often as the group says.
/// out[g * 64 + t]: the sum over the rounds of what its neighbour had, (rounds of g) * (t + 1) for
/// all but the last, which has that of thread 0.
tile::Status meet_in_groups(int rounds0, int rounds1, int* out);

/// Each warp elects a lane, and each odd warp of a block does so again. out[thread]: 1 if it was
/// elected the first time, and 2 more if the second time.
tile::Status elect_lanes(int blocks, int threads, int* out);

/// Warpgroup 0 gives up registers, and the two others take them. out[t]: the sum of 0 to t % 50.
tile::Status move_registers(int* out);

}  // namespace ptx_test
