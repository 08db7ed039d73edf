// Backward postprocess: dQ from its sums in fp32 (tile/host/dq_sums.hpp).
#pragma once

#include "tile/host/attention_launch.hpp"
#include "tile/ptx/convert.cuh"

namespace tile {

inline constexpr int kRoundingThreads = 128;

/// dQ = scale times the sums. A thread has 8 columns of rows r and r + 8.
template <class T>
__global__ void attention_backward_one_pass_dq(
    const float4* sums,  // [batch][heads][rows / 16][dim / 8][lane]
    Heads<T> dq,         // [batch][queries][heads][dim]
    int queries, int heads, int dim, float scale) {
  const int term_rows = (queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;
  // From the last rows on, whose sums the L2 may still hold.
  const std::int64_t at = std::int64_t{gridDim.x - 1 - blockIdx.x} * kRoundingThreads + threadIdx.x;
  const int lane_row = static_cast<int>(at % 8), chunk = static_cast<int>(at / 8 % (dim / 8));
  const std::int64_t row16 = at / dim;  // 16 rows have dim threads
  const int of_head = static_cast<int>(row16 / (term_rows / 16));
  const int query = static_cast<int>(row16 % (term_rows / 16)) * 16 + lane_row;
  float4 from[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    from[i] = sums[(row16 * (dim / 8) + chunk) * 32 + lane_row * 4 + i];
  }
  const auto rows = dq.rows(of_head / heads, of_head % heads);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (query + half * 8 >= queries) continue;
    std::uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pair[i] = half == 0 ? ptx::pack<T>(scale * from[i].x, scale * from[i].y)
                          : ptx::pack<T>(scale * from[i].z, scale * from[i].w);
    }
    *reinterpret_cast<uint4*>(rows[query + half * 8] + chunk * 8) = {pair[0], pair[1], pair[2],
                                                                     pair[3]};
  }
}

/// Launches it for all queries, if there are any. The type has 16 bits, and the head dimension is a
/// power of two from 16.
inline Status launch_round_dq(const Attention& p, const float4* sums, const TensorView& dq,
                              void* stream) {
  const std::int64_t rows = std::int64_t{tiles_of(p.queries, kRowsOfTerms)} * kRowsOfTerms;
  const int block_rows = 16 * kRoundingThreads / static_cast<int>(p.head_dim);
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, p.heads, rows, block_rows, &blocks));
  const auto launch_for = [&](auto element) {
    using T = decltype(element);
    return launch(attention_backward_one_pass_dq<T>, "attention_backward_one_pass_dq", blocks,
                  kRoundingThreads, 0, stream, sums, heads_of<T>(dq), p.queries, p.heads,
                  p.head_dim, p.scale);
  };
  return p.type == DType::fp16 ? launch_for(__half{}) : launch_for(__nv_bfloat16{});
}

}  // namespace tile
