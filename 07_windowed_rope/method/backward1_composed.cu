// A method's gradients, step 1: each is rotated back.
// Idea: q went into q1 and into q2, so its gradient is a sum: dq1 rotated back by the query's own
//       position, and dq2 by the far one. The same holds for k.
// Limit: four gradients are rounded, written to memory and read again.
#include "method/rotate_twice.cuh"
#include "rotary/rotary.cuh"

namespace windowed_rope::method {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
/// out = R(i)^T near + R(i')^T far. A row's units are its pairs, and after them the elements that
/// do not turn.
template <class T>
__global__ void method_backward_composed_turn(const T* near,          // [batch][length][heads][dim]
                                              const T* far,           // as near
                                              Heads<T> out,           // as near
                                              const float* near_cos,  // [positions][pairs]
                                              const float* near_sin,  // as near_cos
                                              const float* far_cos,   // as near_cos
                                              const float* far_sin,   // as near_cos
                                              const int* positions,   // [batch][length], or null
                                              rope::Layout layout, std::int64_t all, int length,
                                              int heads, int dim, int pairs) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= all) return;
  const int units = dim - pairs;  // pairs + (dim - 2 pairs)
  const int unit = static_cast<int>(at % units), head = static_cast<int>(at / units % heads);
  const std::int64_t of_all = at / units / heads;
  const int token = static_cast<int>(of_all % length), batch = static_cast<int>(of_all / length);
  const T* near_row = near + at / units * dim;
  const T* far_row = far + at / units * dim;
  T* to = out.row(batch, token, head);
  if (unit >= pairs) {
    const int col = pairs + unit;
    to[col] = static_cast<T>(static_cast<float>(near_row[col]) + static_cast<float>(far_row[col]));
    return;
  }
  const int x = layout == rope::Layout::half_split ? unit : 2 * unit;
  const int y = layout == rope::Layout::half_split ? unit + pairs : 2 * unit + 1;
  const std::int64_t entry = std::int64_t{positions ? positions[of_all] : token} * pairs + unit;
  const rope::Pair a =
      rope::rotate({static_cast<float>(near_row[x]), static_cast<float>(near_row[y])},
                   near_cos[entry], -near_sin[entry]);
  const rope::Pair b =
      rope::rotate({static_cast<float>(far_row[x]), static_cast<float>(far_row[y])}, far_cos[entry],
                   -far_sin[entry]);
  to[x] = static_cast<T>(a.x + b.x);
  to[y] = static_cast<T>(a.y + b.y);
}
// snippet-end kernel

/// The gradient of q or of k.
tile::Status rotate_back(const AttentionBackward& p, Place far_place, const void* near,
                         const void* far, std::int64_t length, std::int64_t heads,
                         const int* positions, const TensorView& out, void* stream) {
  // Without keys the tables may be null: all gradients are zeros, and nothing is rotated.
  const int pairs = p.keys == 0 ? 0 : static_cast<int>(p.rotary.rotary_dim / 2);
  const int dim = static_cast<int>(p.head_dim);
  const std::int64_t all = p.batch * length * heads * (dim - pairs);
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("batch, lengths and heads", all, kThreads, &blocks));
  const float *cos = p.rotary.cos, *sin = p.rotary.sin;
  const std::int64_t of_far = table_offset(p, far_place);
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    return tile::launch(method_backward_composed_turn<T>, "method_backward_composed_turn", blocks,
                        kThreads, 0, stream, static_cast<const T*>(near),
                        static_cast<const T*>(far), tile::heads_of<T>(out), cos, sin, cos + of_far,
                        sin + of_far, positions, p.rotary.layout, all, length, heads, dim, pairs);
  });
}

}  // namespace

tile::Status takes_composed(const AttentionBackward& p, const tile::Device&) {
  return check_composed(kBackwardLadder, p);
}

tile::Status composed(const AttentionBackward& p, void* stream) {
  int* positions = nullptr;
  const AttentionBackward inner = attention_of(p, &positions);
  TILE_TRY(rotate_twice(p, inner, positions, stream));
  TILE_TRY(run_last(kBackwardLadder, inner, stream));
  TILE_TRY(rotate_back(p, Place::far_query, inner.dq.data, inner.dq_far.data, p.queries, p.heads,
                       positions, p.dq, stream));
  return rotate_back(p, Place::far_key, inner.dk.data, inner.dk_far.data, p.keys, p.kv_heads,
                     nullptr, p.dk, stream);
}

}  // namespace windowed_rope::method
