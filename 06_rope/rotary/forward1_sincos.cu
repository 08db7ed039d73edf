// Step 1: an angle for each pair.
// Idea: one thread rotates one pair: pair i of a row at position p by the angle p f_i. It computes
//       the angle, its sine and its cosine. The angle is a product in double: late in a long text
//       an angle in fp32 is off by thousandths.
// Limit: arithmetic in double, which is slow on most cards, and the same sines and cosines are
//        computed again for each head in each layer.
#include <tuple>

#include "rotary/launch.hpp"
#include "rotary/rotary.cuh"

namespace rope {
namespace {

constexpr int kThreads = 256;
constexpr double kTurnsOfRadian = 0.15915494309189535;  // 1 / (2 pi)

// snippet-begin kernel
/// One tensor. A row's units are its pairs, and after them the elements that are not rotated.
template <class T>
__global__ void rotary_sincos(Heads<const T> in,          // [batch][length][heads][head_dim]
                              Heads<T> out,               // as in
                              const double* frequencies,  // [pairs]
                              Positions positions, Layout layout, std::int64_t all, int heads,
                              int head_dim, int pairs, float factor, float sign) {
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
  // Whole turns change nothing. Without them the rest is exact enough in fp32.
  const double turns = position * (frequencies[unit] * kTurnsOfRadian);
  const float half_turns = static_cast<float>(2 * (turns - rint(turns)));
  const float c = position < 0 ? NAN : factor * cospif(half_turns);
  const float s = position < 0 ? NAN : factor * sign * sinpif(half_turns);
  const int x = layout == Layout::half_split ? unit : 2 * unit;
  const int y = layout == Layout::half_split ? unit + pairs : 2 * unit + 1;
  const Pair rotated = rotate({static_cast<float>(from[x]), static_cast<float>(from[y])}, c, s);
  to[x] = static_cast<T>(rotated.x);
  to[y] = static_cast<T>(rotated.y);
}
// snippet-end kernel

}  // namespace

tile::Status takes_sincos(const RotaryProblem&, const RotaryBuffers& buffers, const tile::Device&) {
  if (!buffers.frequencies) return tile::unsupported("frequencies", "is null");
  return {};
}

tile::Status sincos(const RotaryProblem& p, const RotaryBuffers& buffers, void* stream) {
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
      TILE_TRY(tile::launch(rotary_sincos<T>, "rotary_sincos", blocks, kThreads, 0, stream,
                            heads_of<const T>(in, in_strides), heads_of<T>(out, out_strides),
                            buffers.frequencies, positions_of(p, buffers), p.layout, all, heads,
                            p.head_dim, pairs, static_cast<float>(p.attention_factor),
                            sign_of(p.pass)));
    }
    return {};
  });
}

}  // namespace rope
