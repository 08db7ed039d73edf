// How the rows of heads lie in memory: tensors of [batch][length][heads][head_dim].
#pragma once

#include <cstdint>

namespace tile {

/// Elements of a tensor from one batch entry to the next, from one head to the next, from one row
/// to the next. The elements of a head's row are contiguous.
struct Strides {
  std::int64_t batch = 0, head = 0, row = 0;

  bool operator==(const Strides&) const = default;
};

/// Those of [batch][length][heads][head_dim] without gaps.
constexpr Strides packed_strides(std::int64_t length, std::int64_t heads, std::int64_t head_dim) {
  return {length * heads * head_dim, head_dim, heads * head_dim};
}

}  // namespace tile
