// Exercise 05.1: tiles that no query sees
//
// The kernel below is step 2 for one head, in plain loops: a block has eight queries, a warp each,
// and the keys go by in tiles of 32. Its output is right under every mask. But it goes through all
// tiles, also where every score is hidden, and counts them. Under a causal mask that is twice what
// is needed, and under a window nearly all of it is wasted.
// Say from which tile to which a block must go. No key that one of its queries sees may be left
// out, and every tile must have a key that one of them sees. A block may need none.
// Mask (tile/mask.hpp) says what a query sees. Its tiles() has an answer: find yours before you
// look. Check it with: ./tour exercise 05.1
#include "exercises/exercises.hpp"
#include "launch.hpp"
#include "tile/reduce.cuh"

namespace flash_attention {
namespace {

constexpr int kQueries = 8, kThreads = kQueries * tile::kWarp;  // of a block
constexpr int kKeys = tile::kWarp;                              // of a tile

struct TileRange {
  int first, last;  // from `first` to before `last`
};

__device__ TileRange tiles_of_block(const Mask& mask, int first_query) {
  // TODO: Which query of the block sees the first key, and which the last? Does that one exist? In
  // which tile does a key lie, and in which does a range of keys end?
  return {0, (mask.keys + kKeys - 1) / kKeys};
}

__global__ void visible_tiles_kernel(MaskedHead head) {  // see exercises.hpp for the shapes
  const Mask mask = head.mask;
  const tile::Rows<const float> q{head.q, head.dim}, k{head.k, head.dim}, v{head.v, head.dim};
  const tile::Rows<float> o{head.o, head.dim};
  const int lane = threadIdx.x % tile::kWarp, first_query = blockIdx.x * kQueries;
  const int query = first_query + static_cast<int>(threadIdx.x) / tile::kWarp;
  if (query >= mask.queries) return;  // a whole warp, and there is no barrier

  int visited = 0;
  float sum = 0, out = 0;  // out: element `lane` of o, before it is divided by the sum
  const TileRange tiles = tiles_of_block(mask, first_query);
  for (int first_key = tiles.first * kKeys; first_key < tiles.last * kKeys;
       first_key += kKeys, ++visited) {
    // S = Q K^T, a key to a lane
    const int key = first_key + lane;
    const bool seen = mask.sees(query, key);
    float score = seen ? 0 : -INFINITY;
    for (int d = 0; seen && d < head.dim; ++d) score += q[query][d] * k[key][d];
    score *= head.scale;
    const float weight = expf(score);  // P: these scores are small, and need no maximum
    sum += weight;                     // this lane's part
    // O += P V, an element to a lane
    for (int j = 0; j < kKeys && first_key + j < mask.keys; ++j) {
      const float weight_of_key = __shfl_sync(tile::kAllLanes, weight, j);
      if (lane < head.dim) out += weight_of_key * v[first_key + j][lane];
    }
  }
  sum = tile::reduce_lanes(sum, tile::Add{});
  if (lane < head.dim) o[query][lane] = sum == 0 ? 0 : out / sum;
  if (threadIdx.x == 0) head.visited[blockIdx.x] = static_cast<float>(visited);
}

}  // namespace

tile::Status visible_tiles(const MaskedHead& head) {
  if (head.mask.queries == 0) return {};
  unsigned blocks = 0;
  if (tile::Status s = tile::blocks_for("queries", head.mask.queries, kQueries, &blocks); !s.ok())
    return s;
  visible_tiles_kernel<<<blocks, kThreads>>>(head);
  return tile::launch_status("visible_tiles_kernel");
}

}  // namespace flash_attention
