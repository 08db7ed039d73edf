// Exercise 05.3: a bias for distance
//
// A score does not know how far its key stands from its query. ALiBi (Press, Smith and Lewis,
// "Train Short, Test Long", 2021, arXiv 2108.12409) tells it: it subtracts from each score the
// distance, times a slope. Each head has a slope of its own: head h of H, counted from 1, has
// 2^(-8 h / H). So the first heads see their neighbourhood, and the last ones nearly all.
// No bias need lie in memory: a lane knows its query, its key and its head. The loop below is step
// 2's, with a warp for each row of a query and a head. The products are there. What lies between
// them is yours: the bias, the maximum, the weights, and the correction of what there is so far.
// The mask is causal, and a query may see no key. The end divides, and makes lse of max and sum.
// Check it with: ./tour exercise 05.3
#include "exercises/exercises.hpp"
#include "launch.hpp"
#include "tile/reduce.cuh"

namespace flash_attention {
namespace {

constexpr int kThreads = 128, kRows = kThreads / tile::kWarp;  // a warp for each row

__global__ void alibi_kernel(BiasedHeads p) {  // see exercises.hpp for the shapes
  const tile::Rows<const float> q{p.q, p.dim}, k{p.k, p.dim}, v{p.v, p.dim};
  const tile::Rows<float> o{p.o, p.dim};
  const int lane = threadIdx.x % tile::kWarp;
  const int row =
      static_cast<int>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / tile::kWarp;
  if (row >= p.queries * p.heads) return;  // a whole warp, and there is no barrier
  const int query = row / p.heads, head = row % p.heads;
  const int position = query + p.keys - p.queries;  // of the key beside it

  float max = -INFINITY;  // the same in all lanes
  float sum = 0;          // this lane's part
  float out = 0;          // element `lane` of o, before it is divided by the sum
  for (int first_key = 0; first_key < p.keys; first_key += tile::kWarp) {
    // S = Q K^T, a key to a lane. Hidden keys have -infinity.
    const int key = first_key + lane;
    const bool seen = key <= position;
    float score = seen ? 0 : -INFINITY;
    for (int d = 0; seen && d < p.dim; ++d) score += q[row][d] * k[key * p.heads + head][d];
    score *= p.scale;
    score -= exp2f(-8.0f * (head + 1) / p.heads) * (position - key);
    // P. Where the greatest score rises, what there is so far is scaled down.
    const float old = max;
    max = fmaxf(max, tile::reduce_lanes(score, tile::Max{}));
    const float reference = max == -INFINITY ? 0 : max;  // -infinity less itself would be NaN
    const float correction = expf(old - reference), weight = expf(score - reference);
    sum = sum * correction + weight;
    out *= correction;
    // O += P V, an element to a lane
    for (int j = 0; j < tile::kWarp && first_key + j < p.keys; ++j) {
      const float weight_of_key = __shfl_sync(tile::kAllLanes, weight, j);
      if (lane < p.dim) out += weight_of_key * v[(first_key + j) * p.heads + head][lane];
    }
  }
  sum = tile::reduce_lanes(sum, tile::Add{});
  if (lane < p.dim) o[row][lane] = sum == 0 ? 0 : out / sum;
  if (lane == 0) p.lse[row] = sum == 0 ? -INFINITY : max + logf(sum);
}

}  // namespace

tile::Status alibi(const BiasedHeads& heads) {
  if (heads.queries == 0 || heads.heads == 0) return {};
  unsigned blocks = 0;
  tile::Status s = tile::blocks_for("rows", heads.queries * heads.heads, kRows, &blocks);
  if (!s.ok()) return s;
  alibi_kernel<<<blocks, kThreads>>>(heads);
  return tile::launch_status("alibi_kernel");
}

}  // namespace flash_attention
