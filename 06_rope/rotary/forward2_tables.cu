// Step 2: sines and cosines from tables.
// Idea: they depend on the position and the pair only. All heads, all layers and all batch entries
//       share them, so the host computes them once, in double.
// Change: two loads instead of the angle, its sine and its cosine.
// Limit: a thread loads and stores two bytes at a time, and four bytes of each table for them.
#include <tuple>

#include "rotary/launch.hpp"
#include "rotary/rotary.cuh"

namespace rope {
namespace {

constexpr int kThreads = 256;

/// One tensor. A row's units are its pairs, and after them the elements that are not rotated.
template <class T>
__global__ void rotary_tables(Heads<const T> in,  // [batch][length][heads][head_dim]
                              Heads<T> out,       // as in
                              const float* cos,   // [positions][pairs]
                              const float* sin,   // [positions][pairs]
                              Positions positions, Layout layout, std::int64_t all, int heads,
                              int head_dim, int pairs, float sign) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= all) return;
  const int units = head_dim - pairs;  // pairs + (head_dim - 2 pairs)
  const int unit = static_cast<int>(at % units);
  const int head = static_cast<int>(at / units % heads);
  const std::int64_t of_all = at / units / heads;
  const int token = static_cast<int>(of_all % positions.length);
  const int batch = static_cast<int>(of_all / positions.length);
  const T* from = in.row(batch, token, head);
  T* to = out.row(batch, token, head);
  const int position = positions.of(batch, token);
  if (unit >= pairs) {
    const int col = pairs + unit;
    to[col] = position < 0 ? static_cast<T>(NAN) : from[col];
    return;
  }
  // snippet-begin entry
  const std::int64_t entry = std::int64_t{position} * pairs + unit;
  const float c = position < 0 ? NAN : cos[entry];
  const float s = position < 0 ? NAN : sign * sin[entry];
  // snippet-end entry
  const int x = layout == Layout::half_split ? unit : 2 * unit;
  const int y = layout == Layout::half_split ? unit + pairs : 2 * unit + 1;
  const Pair rotated = rotate({static_cast<float>(from[x]), static_cast<float>(from[y])}, c, s);
  to[x] = static_cast<T>(rotated.x);
  to[y] = static_cast<T>(rotated.y);
}

}  // namespace

tile::Status takes_tables(const RotaryProblem& p, const RotaryBuffers& buffers,
                          const tile::Device&) {
  return check_has_tables(p, buffers);
}

tile::Status tables(const RotaryProblem& p, const RotaryBuffers& buffers, void* stream) {
  return tile::with_element_type(p.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    const std::int64_t pairs = p.rotary_dim / 2;
    // q, then k
    for (const auto& [in, in_strides, out, out_strides, heads] :
         {std::tuple{buffers.q, p.q, buffers.q_out, p.q_out, p.heads},
          std::tuple{buffers.k, p.k, buffers.k_out, p.k_out, p.kv_heads}}) {
      const std::int64_t all = p.batch * p.length * heads * (p.head_dim - pairs);
      unsigned blocks = 0;
      TILE_TRY(tile::blocks_for("batch, length and heads", all, kThreads, &blocks));
      TILE_TRY(tile::launch(rotary_tables<T>, "rotary_tables", blocks, kThreads, 0, stream,
                            heads_of<const T>(in, in_strides), heads_of<T>(out, out_strides),
                            buffers.cos, buffers.sin, positions_of(p, buffers), p.layout, all,
                            heads, p.head_dim, pairs, sign_of(p.pass)));
    }
    return {};
  });
}

}  // namespace rope
