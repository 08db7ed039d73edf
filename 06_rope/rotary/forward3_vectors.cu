// Step 3: 16 bytes at a time, and q and k in one launch.
// Idea: a thread has a unit of a row: some pairs whose elements fill chunks of 16 bytes. It rotates
//       that unit of several heads of its token, which share the sines and cosines.
// Change: chunks, four loads under way at once; heads of q and of k in one numbering.
// Limit: memory.
#include "rotary/launch.hpp"
#include "rotary/rotary_unit.cuh"

namespace rope {
namespace {

constexpr int kThreads = 256;
// Heads of a thread, so that 4 chunks are under way at once.
template <Layout kLayout>
constexpr int kHeads = kLayout == Layout::half_split ? 2 : 4;

// snippet-begin kernel
/// The heads of q are divided into q_groups groups and those of k into the others. Group g of n
/// groups has the heads g, g + n, g + 2 n, …
template <class T, Layout kLayout>
__global__ void __launch_bounds__(kThreads)
    rotary_vectors(Heads<const T> q,  // [batch][length][heads][head_dim]
                   Heads<const T> k,  // [batch][length][kv_heads][head_dim]
                   Heads<T> q_out,    // as q
                   Heads<T> k_out,    // as k
                   const float* cos,  // [positions][pairs]
                   const float* sin,  // [positions][pairs]
                   Positions positions, unsigned all, int heads, int kv_heads, int units,
                   int groups, int q_groups, int pairs, float sign) {
  using Unit = rope::Unit<T, kLayout>;
  const unsigned at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= all) return;
  // Neighbours have the units of a head, then those of the next head: they load whole rows.
  const int unit = static_cast<int>(at % units), group = static_cast<int>(at / units % groups);
  const int of_all = static_cast<int>(at / units / groups);
  const int token = of_all % positions.length, batch = of_all / positions.length;
  const int turning = pairs / Unit::kPairs;  // units; the ones after them have one chunk
  const int chunks = unit < turning ? Unit::kChunks : 1;
  const int col = (unit + (unit < turning ? 0 : (Unit::kChunks - 1) * turning)) * Unit::kWidth;
  // The thread's heads of q, or of k: the first, and the step from one to the next.
  const bool is_q = group < q_groups;
  const int first = is_q ? group : group - q_groups, step = is_q ? q_groups : groups - q_groups;
  const int last = is_q ? heads : kv_heads;
  const T* const from = (is_q ? q : k).row(batch, token, first) + col;
  T* const to = (is_q ? q_out : k_out).row(batch, token, first) + col;
  const std::int64_t from_step = step * (is_q ? q : k).stride.head;
  const std::int64_t to_step = step * (is_q ? q_out : k_out).stride.head;

  Unit of_head[kHeads<kLayout>];
  float nowhere[Unit::kWidth];  // the row of a token without a position
#pragma unroll
  for (float& each : nowhere) each = NAN;
#pragma unroll
  for (int i = 0; i < kHeads<kLayout>; ++i) {
#pragma unroll
    for (int j = 0; j < Unit::kChunks; ++j) {
      if (first + i * step < last && j < chunks) {
        of_head[i].chunk[j] = of_head[i].chunk[j].load(from + i * from_step + j * pairs);
      }
    }
  }
  const int position = positions.of(batch, token);
  Numbers<Unit::kPairs> c, s;
  if (position >= 0 && unit < turning) {
    const std::int64_t entry = std::int64_t{position} * pairs + unit * Unit::kPairs;
    c = *reinterpret_cast<const Numbers<Unit::kPairs>*>(cos + entry);
    s = *reinterpret_cast<const Numbers<Unit::kPairs>*>(sin + entry);
#pragma unroll
    for (float& each : s.of) each *= sign;
  }
#pragma unroll
  for (int i = 0; i < kHeads<kLayout>; ++i) {
    if (position >= 0 && unit < turning) of_head[i].rotate(c, s);
#pragma unroll
    for (int j = 0; j < Unit::kChunks; ++j) {
      if (position < 0) of_head[i].chunk[j] = of_head[i].chunk[j].from_floats(nowhere);
      if (first + i * step < last && j < chunks) {
        of_head[i].chunk[j].store(to + i * to_step + j * pairs);
      }
    }
  }
}
// snippet-end kernel

/// How many threads a launch has.
struct Grid {
  int units, groups, q_groups;
  std::int64_t all;
};
template <class T, Layout kLayout>
Grid grid_of(const RotaryProblem& p) {
  using Unit = rope::Unit<T, kLayout>;
  const auto groups_of = [](std::int64_t heads) {
    return static_cast<int>((heads + kHeads<kLayout> - 1) / kHeads<kLayout>);
  };
  const int units = static_cast<int>(p.rotary_dim / 2 / Unit::kPairs +
                                     (p.head_dim - p.rotary_dim) / Unit::kWidth);
  const int q_groups = groups_of(p.heads), groups = q_groups + groups_of(p.kv_heads);
  std::int64_t all = 0;
  if (__builtin_mul_overflow(p.batch * p.length, std::int64_t{units} * groups, &all)) {
    all = INT64_MAX;
  }
  return {units, groups, q_groups, all};
}

/// Calls `work` with values of the element type and of a constant for the layout.
template <class Work>
tile::Status with_type_and_layout(const RotaryProblem& p, Work work) {
  return tile::with_element_type(p.type, [&](auto element) {
    using Half = std::integral_constant<Layout, Layout::half_split>;
    using Interleaved = std::integral_constant<Layout, Layout::interleaved>;
    return p.layout == Layout::half_split ? work(element, Half{}) : work(element, Interleaved{});
  });
}

}  // namespace

tile::Status takes_vectors(const RotaryProblem& p, const RotaryBuffers& buffers,
                           const tile::Device&) {
  TILE_TRY(check_has_tables(p, buffers));
  TILE_TRY(check_chunks(p, buffers));
  return with_type_and_layout(p, [&](auto element, auto layout) -> tile::Status {
    using Unit = rope::Unit<decltype(element), layout.value>;
    if (p.rotary_dim / 2 % Unit::kPairs != 0 || (p.head_dim - p.rotary_dim) % Unit::kWidth != 0) {
      return tile::unsupported("rotary_dim", std::to_string(p.rotary_dim) + " of " +
                                                 std::to_string(p.head_dim) +
                                                 " do not fill chunks of 16 bytes");
    }
    if (grid_of<decltype(element), layout.value>(p).all > 0x7fffffff) {
      return tile::unsupported("batch, length and heads", "need more than 2^31 - 1 threads");
    }
    return {};
  });
}

tile::Status vectors(const RotaryProblem& p, const RotaryBuffers& buffers, void* stream) {
  return with_type_and_layout(p, [&](auto element, auto layout) -> tile::Status {
    using T = decltype(element);
    const Grid grid = grid_of<T, layout.value>(p);
    const auto blocks = static_cast<unsigned>((grid.all + kThreads - 1) / kThreads);
    return tile::launch(rotary_vectors<T, layout.value>, "rotary_vectors", blocks, kThreads, 0,
                        stream, heads_of<const T>(buffers.q, p.q),
                        heads_of<const T>(buffers.k, p.k), heads_of<T>(buffers.q_out, p.q_out),
                        heads_of<T>(buffers.k_out, p.k_out), buffers.cos, buffers.sin,
                        positions_of(p, buffers), grid.all, p.heads, p.kv_heads, grid.units,
                        grid.groups, grid.q_groups, p.rotary_dim / 2, sign_of(p.pass));
  });
}

}  // namespace rope
