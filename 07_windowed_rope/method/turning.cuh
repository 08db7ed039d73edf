// Both rotations of a method's rows at once, by two of three tables.
#pragma once

#include "method/method.hpp"
#include "windowed/windowed_rope.cuh"

namespace windowed_rope {

/// The tables of a token's own position, and those for far keys.
enum class Place { own, far_query, far_key };

template <class Problem>
std::int64_t table_offset(const Problem& p, Place place) {
  return static_cast<std::int64_t>(place) * p.table_positions * (p.rotary_dim / 2);
}

/// Rows of q or of k that are rotated by their own positions, and for far keys by a second table.
/// All of their 16-bit elements are rotated, in half-split pairs; head_dim is a multiple of 16.
struct Turning {
  tile::DType type;
  std::int64_t batch, length, heads, head_dim;
  const float *cos, *sin;  // [3][table_positions][head_dim / 2]
  const int* positions;    // [batch][length]; null: they count from 0
  std::int64_t far_table;  // where the second table begins
};
template <class Problem, class Buffers>
Turning turning_of_queries(const Problem& p, const Buffers& b, const int* positions) {
  return {p.type,  p.batch,    p.queries,
          p.heads, p.head_dim, b.cos,
          b.sin,   positions,  table_offset(p, Place::far_query)};
}
template <class Problem, class Buffers>
Turning turning_of_keys(const Problem& p, const Buffers& b) {
  return {p.type,     p.batch,    p.keys,
          p.kv_heads, p.head_dim, b.cos,
          b.sin,      nullptr,    table_offset(p, Place::far_key)};
}
/// Reads each row once. The results are without gaps; all addresses are aligned to 16 bytes.
tile::Status turn_twice(const Turning& turning, const void* from, const Strides& strides, void* own,
                        void* far, void* stream);

/// out = R(i)^T near + R(i')^T far, for gradients. `near` and `far` are contiguous; each row is
/// read once.
tile::Status rotate_back(const Turning& turning, const void* near, const void* far, void* out,
                         const Strides& strides, void* stream);

/// Whether turn_twice() takes a method's rows.
template <class Problem, class Buffers>
tile::Status check_turning(const Problem& p, const Buffers& b) {
  if (p.layout != rope::Layout::half_split) return tile::unsupported("layout", "is interleaved");
  if (p.rotary_dim != p.head_dim) {
    return tile::unsupported("rotary_dim", "is not the head dimension");
  }
  if (p.head_dim % 16 != 0) return tile::unsupported("head_dim", "is no multiple of 16");
  return check_chunks(p, b);
}

}  // namespace windowed_rope
