// Exercise 05.4: whose turn it is
//
// The blocks of all keys add to the gradient of a query, and a sum of floats depends on its order.
// Backward step 10 fixes the order: each half of a tile of queries has a counter, and a block waits
// until it shows the block's turn. Blocks begin with the last keys, and wait only for blocks that
// began before them. So a block's turn at a tile of queries is the number of blocks with later keys
// that add to the same tile: those with a key that one of its queries sees.
// Say what the turn is. It must hold under every mask, also where there are more queries than keys
// or fewer, and where some queries see nothing. If a turn were too high, its block would wait for
// ever; if two were equal, their order would be open. No block waits here: the turns are checked.
// Check it with: ./tour exercise 05.4
#include "exercises/exercises.hpp"
#include "launch.hpp"

namespace flash_attention {
namespace {

constexpr int kQueries = 16, kKeys = 32;  // of a tile

/// How many blocks add to these queries before the block of tile `key_tile` of the keys does, which
/// adds to them, too. The first of the queries exists.
__device__ int turn_of(const Mask& mask, int first_query, int key_tile) {
  // TODO: Which is the last key that one of the queries sees, and in which tile does it lie? Which
  // of the queries exist?
  return 0;
}

/// A thread for each tile of queries and each tile of keys.
__global__ void whose_turn_kernel(Mask mask, float* turns) {  // [tiles of queries][tiles of keys]
  const int first_query = blockIdx.x * kQueries, key_tile = threadIdx.x;
  bool adds = false;
  for (int i = 0; i < kQueries * kKeys; ++i) {
    adds = adds || mask.sees(first_query + i / kKeys, key_tile * kKeys + i % kKeys);
  }
  turns[blockIdx.x * blockDim.x + key_tile] =
      adds ? static_cast<float>(turn_of(mask, first_query, key_tile)) : -1;
}

}  // namespace

tile::Status whose_turn(const Mask& mask, float* turns) {
  if (mask.queries == 0 || mask.keys == 0) return {};
  const int blocks = (mask.queries + kQueries - 1) / kQueries;
  whose_turn_kernel<<<blocks, (mask.keys + kKeys - 1) / kKeys>>>(mask, turns);
  return tile::launch_status("whose_turn_kernel");
}

}  // namespace flash_attention
