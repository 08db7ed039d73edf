// Exercise 07.3: where a gradient belongs
//
// Softmax does not ask which pair a score came from, and neither does its gradient: dS is what it
// is in chapter 05, P (dP - delta), for near keys and for far ones. From there the ways part. One
// score was scale q1 k1, another scale q2 k2, and a gradient goes back the way that the score came.
// P, dP and delta are in memory here, and wanted are the gradients of the keys. A thread has one
// element of a key's row, in dk1 and in dk2. It goes over all queries: they stand before the key
// and after it, and nothing is hidden but by a P of 0.
// The kernel below is chapter 05's, which knows one pair. Send each dS to the pair that it belongs
// to. Check it with: ./tour exercise 07.3
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"

namespace windowed_rope {
namespace {

constexpr int kThreads = 128;

__global__ void far_gradient_kernel(FarGradient g) {  // see exercises.hpp for the shapes
  const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (at >= g.keys * g.dim) return;
  const int key = at / g.dim, d = at % g.dim;
  float near_sum = 0, far_sum = 0;
  for (int query = 0; query < g.queries; ++query) {
    const std::int64_t pair = std::int64_t{query} * g.keys + key;
    const float dscore = g.weights[pair] * (g.dweights[pair] - g.delta[query]);
    const int distance = query + g.keys - g.queries - key;
    if (distance < g.window && -distance < g.window) {
      near_sum += dscore * g.q1[query * g.dim + d];
    } else {
      far_sum += dscore * g.q2[query * g.dim + d];
    }
  }
  g.dk1[at] = g.scale * near_sum;
  g.dk2[at] = g.scale * far_sum;
}

}  // namespace

tile::Status far_gradient(const FarGradient& gradient) {
  unsigned blocks = 0;
  if (tile::Status s =
          tile::blocks_for("keys", std::int64_t{gradient.keys} * gradient.dim, kThreads, &blocks);
      !s.ok())
    return s;
  if (blocks == 0) return {};
  far_gradient_kernel<<<blocks, kThreads>>>(gradient);
  return tile::launch_status("far_gradient_kernel");
}

}  // namespace windowed_rope
