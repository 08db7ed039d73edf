// Attention backward: what each query needs beside its row, computed before all else.
#pragma once

#include "tile/masks.cuh"
#include "tile/reduce.cuh"

namespace tile {

// snippet-begin terms
/// delta = sum dO O of a query. A warp of the grid for each row of terms, of `rows` a head; each
/// thread of the grid calls it, with blocks of kThreads.
template <int kThreads, class T>
__device__ void compute_terms(const Heads<const T>& o,     // [batch][queries][heads][dim]
                              const Heads<const T>& dout,  // likewise
                              const float* lse,            // [batch][heads][queries]
                              Terms* terms,                // [batch][heads][rows]
                              const Masks& masks, int heads, int rows, int dim) {
  static_assert(kRowsOfTerms % (kThreads / kWarp) == 0, "whole blocks");
  const std::int64_t at =
      (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;  // in all terms
  const int lane = threadIdx.x % kWarp, query = static_cast<int>(at % rows);
  const int head = static_cast<int>(at / rows % heads), batch = static_cast<int>(at / rows / heads);
  // What does not exist, or sees no key, has no weight: the mask hides its scores.
  Terms row{0, 0};
  if (query < masks.of(batch).queries) {
    const T* o_row = o.row(batch, query, head);
    const T* dout_row = dout.row(batch, query, head);
    float sum = 0;
    for (int d = lane; d < dim; d += kWarp) {
      sum += static_cast<float>(o_row[d]) * static_cast<float>(dout_row[d]);
    }
    row.delta = reduce_lanes(sum, Add{});
    const float of_row = lse[(std::int64_t{batch} * heads + head) * masks.queries + query];
    if (of_row != -INFINITY) row.lse2 = kLog2E * of_row;
  }
  if (lane == 0) terms[at] = row;
}
// snippet-end terms

}  // namespace tile
