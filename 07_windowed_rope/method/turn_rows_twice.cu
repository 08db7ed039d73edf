// Shared by a method's steps: a kernel that reads each row of q or k once and rotates it by two
// tables.
#include "method/turning.cuh"
#include "rotary/rotary_unit.cuh"

namespace windowed_rope::method {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void method_turn_twice(Heads<const T> from,     // [batch][length][heads][dim]
                                  Heads<T> own,            // as from
                                  Heads<T> far,            // as from
                                  const float* cos,        // [3][positions][dim / 2]
                                  const float* sin,        // as cos
                                  const int* stand,        // [batch][length], or null
                                  std::int64_t far_table,  // where it begins in cos and sin
                                  std::int64_t all, int length, int heads, int dim) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= all) return;
  const int units = dim / 16, unit = static_cast<int>(at % units);
  const int head = static_cast<int>(at / units % heads);
  const std::int64_t of_all = at / units / heads;
  const int token = static_cast<int>(of_all % length), batch = static_cast<int>(of_all / length);
  rope::Unit<T, rope::Layout::half_split> read;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    read.chunk[j] = read.chunk[j].load(from.row(batch, token, head) + unit * 8 + j * dim / 2);
  }
  const std::int64_t entry = std::int64_t{stand ? stand[of_all] : token} * (dim / 2) + unit * 8;
#pragma unroll
  for (const bool is_far : {false, true}) {
    const std::int64_t first = entry + (is_far ? far_table : 0);
    auto rotated = read;
    rotated.rotate(*reinterpret_cast<const rope::Numbers<8>*>(cos + first),
                   *reinterpret_cast<const rope::Numbers<8>*>(sin + first));
    T* to = (is_far ? far : own).row(batch, token, head) + unit * 8;
    rotated.chunk[0].store(to);
    rotated.chunk[1].store(to + dim / 2);
  }
}

}  // namespace

tile::Status turn_rows_twice(const Turning& t, const TensorView& from, const TensorView& own,
                             const TensorView& far, void* stream) {
  unsigned blocks = 0;
  const std::int64_t all = t.batch * t.length * t.heads * (t.head_dim / 16);
  if (tile::Status s = tile::blocks_for("batch, lengths and heads", all, kThreads, &blocks);
      !s.ok() || blocks == 0) {
    return s;
  }
  const auto launch = [&](auto element) {
    using T = decltype(element);
    return tile::launch(method_turn_twice<T>, "method_turn_twice", blocks, kThreads, 0, stream,
                        tile::heads_of<const T>(from), tile::heads_of<T>(own),
                        tile::heads_of<T>(far), t.cos, t.sin, t.positions, t.far_table, all,
                        static_cast<int>(t.length), static_cast<int>(t.heads),
                        static_cast<int>(t.head_dim));
  };
  return t.type == tile::DType::fp16 ? launch(__half{}) : launch(__nv_bfloat16{});
}

}  // namespace windowed_rope::method
