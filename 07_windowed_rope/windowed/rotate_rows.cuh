// Rotation of rows in shared memory.
#pragma once

#include "rotary/rotary.cuh"
#include "tile/shared_tile.cuh"

namespace windowed_rope {

/// Rotates the rows of a tile, the first one at first_position. A chunk of x and the one of y, half
/// a row further, belong to one thread.
template <int kThreads, class T, int kRows, int kDim>
__device__ void rotate_rows(const tile::SharedTile<T, kRows, kDim>& tile,
                            const float* cos,  // [positions][kDim / 2]
                            const float* sin,  // as cos
                            int first_position, int rows_left) {
  constexpr int kUnits = kDim / 16;  // of a row: 8 pairs each
  for (int i = threadIdx.x; i < kRows * kUnits; i += kThreads) {
    const int row = i / kUnits, unit = i % kUnits, position = first_position + row;
    // The tables have no rows for tokens that do not exist or stand before the first key.
    if (row >= rows_left || position < 0) continue;
    const std::int64_t entry = std::int64_t{position} * (kDim / 2) + unit * 8;
    // snippet-begin turn
    const auto c = *reinterpret_cast<const rope::Numbers<8>*>(cos + entry);
    const auto s = *reinterpret_cast<const rope::Numbers<8>*>(sin + entry);
    const auto x_at = tile.at(row, unit), y_at = tile.at(row, unit + kUnits);
    uint4 words[2] = {tile::ptx::load_shared(x_at), tile::ptx::load_shared(y_at)};
    auto& [x, y] = reinterpret_cast<tile::Vector<T>(&)[2]>(words);
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) {
      const rope::Pair rotated =
          rope::rotate({static_cast<float>(x.element[pair]), static_cast<float>(y.element[pair])},
                       c.of[pair], s.of[pair]);
      x.element[pair] = static_cast<T>(rotated.x), y.element[pair] = static_cast<T>(rotated.y);
    }
    tile::ptx::store_shared(x_at, words[0]);
    tile::ptx::store_shared(y_at, words[1]);
    // snippet-end turn
  }
}

}  // namespace windowed_rope
