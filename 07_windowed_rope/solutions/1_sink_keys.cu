// Exercise 07.1: the first keys stay near
//
// A softmax must put its weight somewhere. Where nothing fits, trained models put it on the first
// few keys, whatever these say, and from any distance. StreamingLLM (Xiao et al., "Efficient
// Streaming Language Models with Attention Sinks", 2023, arXiv 2309.17453) calls them sinks. Here
// they get a rule of their own: a key is near if it is one of the first `sinks` keys of the text,
// or if it stands less than the window's width before its query.
// The kernel below is step 2 for one head, causal, without a maximum: a block has eight queries, a
// warp each, and the keys go by in tiles of 32. It asks `kinds` what of a tile it must load, and
// notes it down. But it has the chapter's window, and knows no sinks.
// Write the new rule. Then say what there is in a tile: no kind that is there may be left out, and
// none that is not there may be loaded. Do not ask every pair of the tile: a few comparisons do.
// Check it with: ./tour exercise 07.1
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"
#include "tile/reduce.cuh"
#include "windowed/kinds.hpp"

namespace windowed_rope {
namespace {

constexpr int kQueries = 8, kThreads = kQueries * tile::kWarp;  // of a block
constexpr int kKeys = tile::kWarp;                              // of a tile
constexpr int kMaxDim = 32;

struct SinkWindow {
  Window window;
  int sinks;

  __device__ bool is_near(const Mask& mask, int query, int key) const {
    return key < sinks || window.is_near(mask, query, key);
  }
  __device__ Kinds kinds(const Mask& mask, int first_query, int queries, int first_key,
                         int keys) const {
    // After the last sink the tile is cut in two. Before the cut what is seen is near, from there
    // on the window decides. Either part may have no key.
    const int end = first_key + keys, cut = max(first_key, min(sinks, end));
    Kinds found{false, false};
    if (cut < end) found = kinds_of(window, mask, first_query, queries, cut, end - cut);
    if (cut > first_key && mask.any_sees(first_query, queries, first_key, cut - first_key)) {
      found.near = true;
    }
    return found;
  }
};

__global__ void sink_keys_kernel(SinkHead head) {  // see exercises.hpp for the shapes
  __shared__ float k_smem[kKeys][kMaxDim + 1];
  const Mask mask = head.mask;
  const SinkWindow window{{head.window}, head.sinks};
  const int lane = threadIdx.x % tile::kWarp, first_query = blockIdx.x * kQueries;
  const int query = first_query + static_cast<int>(threadIdx.x) / tile::kWarp;
  const int tiles = (mask.keys + kKeys - 1) / kKeys;

  float sum = 0, out = 0;  // out: element `lane` of o, before it is divided by the sum
  for (int first_key = 0; first_key < mask.keys; first_key += kKeys) {
    const int key = first_key + lane;
    const auto kinds = window.kinds(mask, first_query, kQueries, first_key, kKeys);
    if (threadIdx.x == 0) {
      head.loaded[blockIdx.x * tiles + first_key / kKeys] =
          (kinds.near ? 1.0f : 0) + (kinds.far ? 2.0f : 0);
    }
    if (!kinds.near && !kinds.far) continue;
    // S = Q1 K1^T, then Q2 K2^T: a key to a lane
    float score = -INFINITY;
    for (const bool near : {true, false}) {
      if (!(near ? kinds.near : kinds.far)) continue;
      const float* k = near ? head.k1 : head.k2;
      __syncthreads();  // all warps have read the keys before
      for (int i = threadIdx.x; i < kKeys * head.dim; i += kThreads) {
        const int row = i / head.dim, d = i % head.dim;
        k_smem[row][d] = first_key + row < mask.keys ? k[(first_key + row) * head.dim + d] : 0;
      }
      __syncthreads();  // the keys are there
      if (!mask.sees(query, key) || window.is_near(mask, query, key) != near) continue;
      const float* q = (near ? head.q1 : head.q2) + query * head.dim;
      float dot = 0;
      for (int d = 0; d < head.dim; ++d) dot += q[d] * k_smem[lane][d];
      score = head.scale * dot;
    }
    const float weight = expf(score);  // P: these scores are small, and need no maximum
    sum += weight;                     // this lane's part
    // O += P V, an element to a lane
    for (int j = 0; j < kKeys && first_key + j < mask.keys; ++j) {
      const float weight_of_key = __shfl_sync(tile::kAllLanes, weight, j);
      if (lane < head.dim) out += weight_of_key * head.v[(first_key + j) * head.dim + lane];
    }
  }
  sum = tile::reduce_lanes(sum, tile::Add{});
  if (lane < head.dim && query < mask.queries) {
    head.o[query * head.dim + lane] = sum == 0 ? 0 : out / sum;
  }
}

}  // namespace

tile::Status sink_keys(const SinkHead& head) {
  if (head.mask.queries == 0) return {};
  unsigned blocks = 0;
  if (tile::Status s = tile::blocks_for("queries", head.mask.queries, kQueries, &blocks); !s.ok())
    return s;
  sink_keys_kernel<<<blocks, kThreads>>>(head);
  return tile::launch_status("sink_keys_kernel");
}

}  // namespace windowed_rope
