// Pairs that fill chunks of 16 bytes, and their rotation.
#pragma once

#include "rotary/rotary.cuh"
#include "tile/rows.cuh"

namespace rope {

// snippet-begin unit
/// What a thread rotates of each of its heads. half_split: a chunk of x and one of y, which lies
/// half a row further. interleaved: one chunk, with x and y side by side.
template <class T, Layout kLayout>
struct Unit {
  static constexpr int kWidth = tile::Vector<T>::kCount;
  static constexpr int kChunks = kLayout == Layout::half_split ? 2 : 1;
  static constexpr int kPairs = kChunks * kWidth / 2;

  tile::Chunk<T, kWidth> chunk[kChunks];

  __device__ __forceinline__ void rotate(const Numbers<kPairs>& c, const Numbers<kPairs>& s) {
    float value[kChunks][kWidth];
#pragma unroll
    for (int j = 0; j < kChunks; ++j) chunk[j].to_floats(value[j]);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float& x = kChunks == 2 ? value[0][i] : value[0][2 * i];
      float& y = kChunks == 2 ? value[kChunks - 1][i] : value[0][2 * i + 1];
      const Pair rotated = rope::rotate({x, y}, c.of[i], s.of[i]);
      x = rotated.x, y = rotated.y;
    }
#pragma unroll
    for (int j = 0; j < kChunks; ++j) chunk[j] = tile::Chunk<T, kWidth>::from_floats(value[j]);
  }
};
// snippet-end unit

}  // namespace rope
