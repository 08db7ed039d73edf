// Outputs of parts of the keys, and the kernel that merges them.
#pragma once

#include "launch.hpp"
#include "tile/accumulator.cuh"
#include "tile/ptx/exp2.cuh"

namespace flash_attention {

/// What blocks with a part of the keys each have found.
struct Parts {
  float* o;    // [batch][heads][queries][count][dim]
  float* lse;  // [batch][heads][queries][count]
  int queries, count, dim;

  /// Stores what a warp has of a part: kCols columns from col0 on, of the rows from first_row on.
  /// Row r is query r / pack of head first_head + r % pack, counted through all batch entries.
  template <int kCols>
  __device__ __forceinline__ void store(int part, const tile::Accumulator<16, kCols>& out,
                                        const float (&row_lse)[2], int first_row, int first_head,
                                        int pack, int col0 = 0) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + out.row(r), query = row / pack, head = first_head + row % pack;
      if (query >= queries) continue;
      const std::int64_t at = (std::int64_t{head} * queries + query) * count + part;
      if (col0 == 0 && threadIdx.x % 4 == 0) lse[at] = row_lse[r];
      float* to = o + at * dim + col0;
#pragma unroll
      for (int c = 0; c < kCols / 4; c += 2) {
        *reinterpret_cast<float2*>(to + out.col(c)) = {out.at(r, c), out.at(r, c + 1)};
      }
    }
  }
};

// snippet-begin merge
/// A block for each query, a thread for each column of its output.
template <class T>
__global__ void attention_merge_parts(Parts parts,
                                      Heads<T> o,  // [batch][queries][heads][dim]
                                      float* lse,  // [batch][heads][queries], or null
                                      int heads) {
  const std::int64_t row = blockIdx.x, col = threadIdx.x;
  const float* of_part = parts.lse + row * parts.count;
  float max = -INFINITY;
  for (int part = 0; part < parts.count; ++part) max = fmaxf(max, of_part[part]);
  const float reference = max == -INFINITY ? 0 : max;  // if no part has a visible key
  // exp(lse) is a part's sum of weights. Relative to the greatest one it cannot overflow.
  float sum = 0, out = 0;
#pragma unroll 8
  for (int part = 0; part < parts.count; ++part) {
    const float weight = tile::ptx::exp2_approx(kLog2E * (of_part[part] - reference));
    sum += weight;
    out += weight * parts.o[(row * parts.count + part) * parts.dim + col];
  }
  const int of_head = static_cast<int>(row / parts.queries);
  o.rows(of_head / heads, of_head % heads)[row % parts.queries][col] =
      static_cast<T>(sum == 0 ? 0 : out / sum);
  if (lse && col == 0) lse[row] = reference + logf(sum);
}
// snippet-end merge

}  // namespace flash_attention
