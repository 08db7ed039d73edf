// Exercise 05.6: shares of keys
//
// With a few dozen queries there are fewer tiles of queries than multiprocessors. So forward step
// 16 divides the tiles of keys that a tile of queries visits among several blocks, which all begin
// at one time. The launch ends when the block with the most tiles does. Say which tiles are a
// block's. The shares follow one another, and together they are all tiles that are visited, each
// once. No block has more tiles than it must. There may be more blocks than tiles: then some have
// none, and first is no less than last. Check it with: ./tour exercise 05.6
#include "exercises/exercises.hpp"
#include "launch.hpp"

namespace flash_attention {
namespace {

constexpr int kQueries = 16, kKeys = 32;  // of a tile

/// Tiles of keys from `first` to before `last`.
struct Share {
  int first, last;
};

/// Those of block `split`, of `splits` blocks that share the tiles from visited.first to before
/// visited.last.
__device__ Share share_of(const Mask::Tiles& visited, int splits, int split) {
  const int count = visited.last - visited.first, most = (count + splits - 1) / splits;
  const int first = visited.first + split * most;
  return {first, min(first + most, visited.last)};
}

/// A block for each tile of queries, and a thread for each share.
__global__ void shares_of_keys_kernel(Mask mask, float* shares) {  // [tiles of queries][splits][2]
  const int splits = static_cast<int>(blockDim.x), split = static_cast<int>(threadIdx.x);
  const Mask::Tiles visited = mask.tiles(static_cast<int>(blockIdx.x) * kQueries, kQueries, kKeys);
  const Share share = share_of(visited, splits, split);
  float* to = shares + (blockIdx.x * blockDim.x + threadIdx.x) * 2;
  to[0] = static_cast<float>(share.first), to[1] = static_cast<float>(share.last);
}

}  // namespace

tile::Status shares_of_keys(const Mask& mask, int splits, float* shares) {
  const int blocks = (mask.queries + kQueries - 1) / kQueries;
  shares_of_keys_kernel<<<blocks, splits>>>(mask, shares);
  return tile::launch_status("shares_of_keys_kernel");
}

}  // namespace flash_attention
