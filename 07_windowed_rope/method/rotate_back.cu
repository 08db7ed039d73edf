// Shared by a method's backward steps: a kernel that reads each row of two gradients once and
// rotates them back into one.
#include "method/turning.cuh"
#include "rotary/rotary_unit.cuh"

namespace windowed_rope::method {
namespace {

constexpr int kThreads = 256;

/// out = R(i)^T near + R(i')^T far. A thread has a unit of a row: 8 pairs.
template <class T>
__global__ void method_backward_chunks_turn(const T* near,           // [batch][length][heads][dim]
                                            const T* far,            // as near
                                            Heads<T> out,            // as near
                                            const float* cos,        // [3][positions][dim / 2]
                                            const float* sin,        // as cos
                                            const int* stand,        // [batch][length], or null
                                            std::int64_t far_table,  // where it begins
                                            std::int64_t all, int length, int heads, int dim) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= all) return;
  const int units = dim / 16, unit = static_cast<int>(at % units);
  const std::int64_t row = at / units, of_all = row / heads;
  const int token = static_cast<int>(of_all % length), batch = static_cast<int>(of_all / length);
  using Chunk = tile::Chunk<T, 8>;
  Chunk chunk[2][2];  // of near and far; of x and y, which lies half a row further
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const std::int64_t from = row * dim + unit * 8 + j * dim / 2;
    chunk[0][j] = Chunk::load(near + from), chunk[1][j] = Chunk::load(far + from);
  }
  const std::int64_t entry = std::int64_t{stand ? stand[of_all] : token} * (dim / 2) + unit * 8;
  float sum[2][8] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t first = entry + i * far_table;
    const auto c = *reinterpret_cast<const rope::Numbers<8>*>(cos + first);
    const auto s = *reinterpret_cast<const rope::Numbers<8>*>(sin + first);
    float value[2][8];
#pragma unroll
    for (int j = 0; j < 2; ++j) chunk[i][j].to_floats(value[j]);
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) {
      const rope::Pair back =
          rope::rotate({value[0][pair], value[1][pair]}, c.of[pair], -s.of[pair]);
      sum[0][pair] += back.x, sum[1][pair] += back.y;
    }
  }
  T* const to = out.row(batch, token, static_cast<int>(row % heads)) + unit * 8;
  Chunk::from_floats(sum[0]).store(to);
  Chunk::from_floats(sum[1]).store(to + dim / 2);
}

}  // namespace

tile::Status rotate_back(const Turning& t, const void* near, const void* far, const TensorView& out,
                         void* stream) {
  unsigned blocks = 0;
  const std::int64_t all = t.batch * t.length * t.heads * (t.head_dim / 16);
  if (tile::Status s = tile::blocks_for("batch, lengths and heads", all, kThreads, &blocks);
      !s.ok() || blocks == 0) {
    return s;
  }
  const auto launch = [&](auto element) {
    using T = decltype(element);
    return tile::launch(method_backward_chunks_turn<T>, "method_backward_chunks_turn", blocks,
                        kThreads, 0, stream, static_cast<const T*>(near),
                        static_cast<const T*>(far), tile::heads_of<T>(out), t.cos, t.sin,
                        t.positions, t.far_table, all, static_cast<int>(t.length),
                        static_cast<int>(t.heads), static_cast<int>(t.head_dim));
  };
  return t.type == tile::DType::fp16 ? launch(__half{}) : launch(__nv_bfloat16{});
}

}  // namespace windowed_rope::method
