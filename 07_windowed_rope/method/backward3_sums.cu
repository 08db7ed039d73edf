// A method's gradients, step 3: from sums to dq.
// Idea: dq1 and dq2 are sums in memory, in fp32, before they are rounded. The kernel that reads
//       them can also rotate them back and add them, which gives dq.
// Change: that kernel instead of the two that rounded dq1 and dq2 and the one that rotated them;
//         head dimensions 64 and 128.
// Limit: the sums, 8 bytes for each element of dq, are cleared, added to and read.
#include "method/method.cuh"
#include "rotary/rotary_unit.cuh"

namespace windowed_rope {
namespace {

constexpr int kThreads = 128;

/// dq = scale (R(i)^T dq1 + R(i')^T dq2). A thread has 8 pairs of rows r and r + 8.
template <class T>
__global__ void method_backward_sums_dq(const float4* near,      // DqSums
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

tile::Status takes_sums(const MethodBackwardProblem& p, const MethodBackwardBuffers& b,
                        const tile::Device& device) {
  TILE_TRY(takes_chunks(p, b, device));
  return takes_one_pass(attention_of(p), attention_of(p, b, rotated_rows(p, b.workspace)), device);
}

tile::Status dq_of_sums(const MethodBackwardProblem& p, const MethodBackwardBuffers& b,
                        const int* positions, const DqSums& from, void* stream) {
  const auto dim = static_cast<int>(p.head_dim);
  const std::int64_t rows = std::int64_t{tiles_of(p.queries, kRowsOfTerms)} * kRowsOfTerms;
  unsigned blocks = 0;
  if (tile::Status s = blocks_for_tiles(p, p.heads, rows, 32 * kThreads / dim, &blocks);
      !s.ok() || blocks == 0) {
    return s;
  }
  const Turning queries = turning_of_queries(p, b, positions);
  return with_16_bits_and_head_dim(p.type, p.head_dim, [&](auto element, auto) {
    using T = decltype(element);
    return tile::launch(method_backward_sums_dq<T>, "method_backward_sums_dq", blocks, kThreads, 0,
                        stream, from.near, from.far, heads_of<T>(b.dq, p.dq), queries.cos,
                        queries.sin, queries.positions, queries.far_table, p.queries, p.heads, dim,
                        p.scale);
  });
}

tile::Status sums(const MethodBackwardProblem& p, const MethodBackwardBuffers& b, void* stream) {
  RotatedRows rows;
  TILE_TRY(take_workspace(p, b, &rows));
  TILE_TRY(turn_all_twice(p, b, rows, stream));
  DqSums from{};
  TILE_TRY(one_pass_to_sums(attention_of(p), attention_of(p, b, rows), &from, stream));
  TILE_TRY(rotate_back(turning_of_keys(p, b), rows.dk1, rows.dk2, b.dk, p.dk, stream));
  return dq_of_sums(p, b, rows.positions, from, stream);
}

}  // namespace windowed_rope
