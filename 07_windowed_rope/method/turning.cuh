// Both rotations of a method's rows at once, by two of three tables, and the way back.
#pragma once

#include "method/method.hpp"
#include "windowed/launch.hpp"

namespace windowed_rope::method {

using tile::TensorView;

/// The tables of a token's own position, and those for far keys.
enum class Place { own, far_query, far_key };

inline std::int64_t table_offset(const tile::Attention& p, Place place) {
  return static_cast<std::int64_t>(place) * p.rotary.table_positions * (p.rotary.rotary_dim / 2);
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
inline Turning turning_of_queries(const tile::Attention& p, const int* positions) {
  return {p.type,       p.batch,    p.queries,
          p.heads,      p.head_dim, p.rotary.cos,
          p.rotary.sin, positions,  table_offset(p, Place::far_query)};
}
inline Turning turning_of_keys(const tile::Attention& p) {
  return {p.type,       p.batch,    p.keys,
          p.kv_heads,   p.head_dim, p.rotary.cos,
          p.rotary.sin, nullptr,    table_offset(p, Place::far_key)};
}

/// Reads each row once. All addresses are aligned to 16 bytes.
tile::Status turn_rows_twice(const Turning& turning, const TensorView& from, const TensorView& own,
                             const TensorView& far, void* stream);

/// out = R(i)^T near + R(i')^T far, for gradients. `near` and `far` are contiguous; each row is
/// read once.
tile::Status rotate_back(const Turning& turning, const void* near, const void* far,
                         const TensorView& out, void* stream);

/// dq = scale (R(i)^T dq1 + R(i')^T dq2), from the sums in fp32.
tile::Status rotate_sums_back(const Turning& queries, const float4* near, const float4* far,
                              float scale, const TensorView& dq, void* stream);

}  // namespace windowed_rope::method
