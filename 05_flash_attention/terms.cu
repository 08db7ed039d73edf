// Backward, from step 2 on: what each query needs beside its row, computed before all else.
#include "flash_attention.cuh"
#include "tile/reduce.cuh"

namespace flash_attention {
namespace {

constexpr int kThreads = 128;
static_assert(kRowsOfTerms % (kThreads / tile::kWarp) == 0, "whole blocks");

// snippet-begin kernel
/// delta = sum dO O of a query. A warp for each row of terms.
template <class T>
__global__ void attention_backward_terms(Heads<const T> o,     // [batch][queries][heads][dim]
                                         Heads<const T> dout,  // likewise
                                         const float* lse,     // [batch][heads][queries]
                                         Terms* terms,         // [batch][heads][rows]
                                         Masks masks, int heads, int rows, int dim) {
  const std::int64_t at =
      (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / tile::kWarp;  // in all terms
  const int lane = threadIdx.x % tile::kWarp, query = static_cast<int>(at % rows);
  const int head = static_cast<int>(at / rows % heads), batch = static_cast<int>(at / rows / heads);
  // What does not exist, or sees no key, has no weight: the mask hides its scores.
  Terms row{0, 0};
  if (query < masks.of(batch).queries) {
    const T* o_row = o.rows(batch, head)[query];
    const T* dout_row = dout.rows(batch, head)[query];
    float sum = 0;
    for (int d = lane; d < dim; d += tile::kWarp) {
      sum += static_cast<float>(o_row[d]) * static_cast<float>(dout_row[d]);
    }
    row.delta = tile::reduce_lanes(sum, tile::Add{});
    const float of_row = lse[(std::int64_t{batch} * heads + head) * masks.queries + query];
    if (of_row != -INFINITY) row.lse2 = kLog2E * of_row;
  }
  if (lane == 0) terms[at] = row;
}
// snippet-end kernel

}  // namespace

tile::Status compute_terms(const BackwardProblem& p, const BackwardBuffers& buffers, void* stream) {
  const int rows = tiles_of(p.queries, kRowsOfTerms) * kRowsOfTerms;
  unsigned blocks = 0;
  if (tile::Status s = blocks_for_tiles(p, p.heads, rows, kThreads / tile::kWarp, &blocks);
      !s.ok() || blocks == 0) {
    return s;
  }
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    attention_backward_terms<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        heads_of<const T>(buffers.o, p.o), heads_of<const T>(buffers.dout, p.dout), buffers.lse,
        static_cast<Terms*>(buffers.workspace), masks_of(p, buffers), static_cast<int>(p.heads),
        rows, static_cast<int>(p.head_dim));
    return tile::launch_status("attention_backward_terms");
  });
}

}  // namespace flash_attention
