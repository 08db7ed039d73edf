// Shared by a method's backward steps: a kernel that reads the sums of dq1 and dq2 once and rotates
// them back into dq.
#include "method/turning.cuh"
#include "rotary/rotary_unit.cuh"

namespace windowed_rope::method {
namespace {

constexpr int kThreads = 128;

/// dq = scale (R(i)^T dq1 + R(i')^T dq2). A thread has 8 pairs of rows r and r + 8.
template <class T>
__global__ void method_backward_sums_dq(const float4* near,      // DqSums of windowed attention
                                        const float4* far,       // as near
                                        Heads<T> dq,             // [batch][queries][heads][dim]
                                        const float* cos,        // [3][positions][dim / 2]
                                        const float* sin,        // as cos
                                        const int* stand,        // [batch][queries]
                                        std::int64_t far_table,  // where it begins
                                        int queries, int heads, int dim, float scale) {
  const int term_rows = (queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int units = dim / 16, unit = static_cast<int>(at / 8 % units);
  const int lane_row = static_cast<int>(at % 8);
  const std::int64_t row16 = at / 8 / units;
  const int of_head = static_cast<int>(row16 / (term_rows / 16));
  const int first = static_cast<int>(row16 % (term_rows / 16)) * 16 + lane_row;
  float value[2][2][2][8];  // of rows r and r + 8; of near and far; of x and y
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4* from =
          (i == 0 ? near : far) + (row16 * 2 + j) * units * 32 + unit * 32 + lane_row * 4;
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) {
        const float4 sum = from[lane];
        value[0][i][j][2 * lane] = sum.x, value[0][i][j][2 * lane + 1] = sum.y;
        value[1][i][j][2 * lane] = sum.z, value[1][i][j][2 * lane + 1] = sum.w;
      }
    }
  }
  const int batch = of_head / heads;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first + half * 8;
    if (query >= queries) continue;
    const std::int64_t entry =
        std::int64_t{stand[std::int64_t{batch} * queries + query]} * (dim / 2) + unit * 8;
    float sum[2][8] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto c = *reinterpret_cast<const rope::Numbers<8>*>(cos + entry + i * far_table);
      const auto s = *reinterpret_cast<const rope::Numbers<8>*>(sin + entry + i * far_table);
#pragma unroll
      for (int pair = 0; pair < 8; ++pair) {
        const auto& of_part = value[half][i];
        const rope::Pair back = rope::rotate({of_part[0][pair], of_part[1][pair]},
                                             scale * c.of[pair], -scale * s.of[pair]);
        sum[0][pair] += back.x, sum[1][pair] += back.y;
      }
    }
    T* const to = dq.row(batch, query, of_head % heads) + unit * 8;
    tile::Chunk<T, 8>::from_floats(sum[0]).store(to);
    tile::Chunk<T, 8>::from_floats(sum[1]).store(to + dim / 2);
  }
}

}  // namespace

tile::Status rotate_sums_back(const Turning& t, const float4* near, const float4* far, float scale,
                              const TensorView& dq, void* stream) {
  const auto dim = static_cast<int>(t.head_dim);
  const std::int64_t rows = std::int64_t{tiles_of(t.length, kRowsOfTerms)} * kRowsOfTerms;
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(t, t.heads, rows, 32 * kThreads / dim, &blocks));
  return with_16_bits_and_head_dim(t.type, t.head_dim, [&](auto element, auto) {
    using T = decltype(element);
    return tile::launch(method_backward_sums_dq<T>, "method_backward_sums_dq", blocks, kThreads, 0,
                        stream, near, far, tile::heads_of<T>(dq), t.cos, t.sin, t.positions,
                        t.far_table, t.length, t.heads, dim, scale);
  });
}

}  // namespace windowed_rope::method
