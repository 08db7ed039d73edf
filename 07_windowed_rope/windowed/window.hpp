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

 private:
  __host__ __device__ static constexpr int less(int a, int b) { return a < b ? a : b; }
};

}  // namespace windowed_rope
