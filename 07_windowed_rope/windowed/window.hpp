// Which of two scores counts for a query and a key. Kernels, tests and figures all use this.
#pragma once

#include "tile/mask.hpp"

namespace windowed_rope {

using tile::Mask;

// snippet-begin window
/// A key is near if it is less than `width` from where the query stands, before or after. For near
/// keys the score is q1 k1, for all others q2 k2.
struct Window {
  int width;  // from 0, where nothing is near, to kMaxLength, where nothing is far

  __host__ __device__ constexpr bool is_near(const Mask& mask, int query, int key) const {
    const int distance = mask.position(query) - key;
    return distance < width && -distance < width;
  }
  // snippet-end window

  // snippet-begin parts
  // What a mask lets a query see falls into three parts, each a mask of its own: far before the
  // query, far after it, and near. A causal mask has nothing after the query.
  static constexpr int kParts = 3;
  __host__ __device__ static constexpr bool is_near(int part) { return part == 2; }
  __host__ __device__ constexpr Mask part(Mask mask, int part) const {
    if (part == 0) mask.right = less(mask.right, -width);
    if (part == 1) mask.left = less(mask.left, width > 0 ? -width : -1);  // not in part 0 as well
    if (part == 2) mask.left = less(mask.left, width - 1), mask.right = less(mask.right, width - 1);
    return mask;
  }
  // snippet-end parts

  /// Mask::any_sees() of a part, which may show nothing, or begin after the last key.
  __host__ __device__ static constexpr bool any_sees(const Mask& part, int first_query, int queries,
                                                     int first_key, int keys) {
    return part.left + part.right >= 0 &&
           part.any_sees(first_query, queries, first_key, less(keys, part.keys - first_key));
  }

  // snippet-begin kinds
  /// Which kinds of keys a tile has, for the queries from first_query on and the keys from
  /// first_key on. A tile with both kinds is mixed.
  struct Kinds {
    bool near, far;
  };
  __host__ __device__ constexpr Kinds kinds(const Mask& mask, int first_query, int queries,
                                            int first_key, int keys) const {
    const auto any = [&](int of_part) {
      return any_sees(part(mask, of_part), first_query, queries, first_key, keys);
    };
    return {any(2), any(0) || any(1)};
  }
  // snippet-end kinds

 private:
  __host__ __device__ static constexpr int less(int a, int b) { return a < b ? a : b; }
};

}  // namespace windowed_rope
