// Which kinds of keys a tile has. Kernels that take a tile at a time use this, and tests and
// figures.
#pragma once

#include "windowed/window.hpp"

namespace windowed_rope {

/// Mask::any_sees() of a part, which may show nothing, or begin after the last key.
__host__ __device__ constexpr bool any_sees(const Mask& part, int first_query, int queries,
                                            int first_key, int keys) {
  const int left = part.keys - first_key;
  return part.left + part.right >= 0 &&
         part.any_sees(first_query, queries, first_key, keys < left ? keys : left);
}

// snippet-begin kinds
/// Which kinds of keys a tile has, for the queries from first_query on and the keys from
/// first_key on. A tile with both kinds is mixed.
struct Kinds {
  bool near, far;
};
__host__ __device__ constexpr Kinds kinds_of(const Window& window, const Mask& mask,
                                             int first_query, int queries, int first_key,
                                             int keys) {
  const auto any = [&](int part) {
    return any_sees(window.part(mask, part), first_query, queries, first_key, keys);
  };
  return {any(2), any(0) || any(1)};
}
// snippet-end kinds

}  // namespace windowed_rope
