// Rotation of rows in shared memory.
#pragma once

#include "rotary/rotary_unit.cuh"
#include "tile/shared_tile.cuh"

namespace windowed_rope {

// snippet-begin turn
/// Rotates the rows of a tile, the first one at first_position. Each pair of chunks belongs to one
/// thread.
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
    const auto c = *reinterpret_cast<const rope::Numbers<8>*>(cos + entry);
    const auto s = *reinterpret_cast<const rope::Numbers<8>*>(sin + entry);
    const auto x = tile.at(row, unit), y = tile.at(row, unit + kUnits);
    rope::Unit<T, rope::Layout::half_split> pairs;
    pairs.chunk[0] = {tile::ptx::load_shared(x)}, pairs.chunk[1] = {tile::ptx::load_shared(y)};
    pairs.rotate(c, s);
    tile::ptx::store_shared(x, pairs.chunk[0].words);
    tile::ptx::store_shared(y, pairs.chunk[1].words);
  }
}
// snippet-end turn

}  // namespace windowed_rope
