// The positions as the kernels see them, numbers of the tables, and the rotation of a pair.
#pragma once

#include "rotary/rotary.hpp"
#include "tile/heads.cuh"

namespace rope {

using tile::Heads;

/// The positions of tokens.
struct Positions {
  const int* ids;  // [batch][length], or null
  int first, count, length;

  /// Negative if the tables do not have the position.
  __device__ __forceinline__ int of(int batch, int token) const {
    const int position = ids ? ids[std::int64_t{batch} * length + token] : first + token;
    return position < count ? position : -1;
  }
};

/// kCount numbers of a table, in one load or two.
template <int kCount>
struct alignas(kCount * sizeof(float) < 16 ? kCount * sizeof(float) : 16) Numbers {
  float of[kCount];
};

// snippet-begin turn
struct Pair {
  float x, y;
};

/// The pair as a complex number x + iy, times c + is.
__device__ __forceinline__ Pair rotate(Pair pair, float c, float s) {
  return {fmaf(pair.x, c, -pair.y * s), fmaf(pair.y, c, pair.x * s)};
}
// snippet-end turn

}  // namespace rope
