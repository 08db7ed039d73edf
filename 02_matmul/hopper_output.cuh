// A warpgroup's part of C, as wgmma leaves it in registers: finished, and stored by way of shared
// memory.
#pragma once

#include "activation.cuh"
#include "hopper_tiles.cuh"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/stmatrix.cuh"
#include "tile/ptx/swizzle.hpp"
#include "tile/ptx/warpgroup.cuh"

namespace matmul {

inline constexpr int kWgmmaRows = 64;
inline constexpr int kTogether = 8;  // elements in 16 bytes

/// 64 rows and kCols columns of C in shared memory: boxes of 64 x 64, swizzled.
template <int kCols>
struct OutputBoxes {
  static constexpr int kBoxBytes = kWgmmaRows * kBoxElements * 2;
  static constexpr int kBytes = kCols / kBoxElements * kBoxBytes;

  /// TMA stores 16 bytes at a time: at the end of a row it would write beyond the last column (an
  /// H200 does). So the map ends with the last whole 16 bytes.
  static tile::Status make_map(const Problem& p, const Buffers& buffers, tile::TensorMap* map) {
    const tile::BoxedTensor boxed{
        .type = type_of_c(p),
        .data = buffers.c,
        .rank = 2,
        // Of fewer than that nobody uses the map.
        .extents = {std::max<std::int64_t>(kTogether, p.n - p.n % kTogether), p.m},
        .strides = {p.ldc},
        .box = {kBoxElements, kWgmmaRows},
        .swizzle_bytes = 128};
    return tile::make_tensor_map("c", boxed, map);
  }
};

// snippet-begin finish
/// Applies alpha, beta, bias and activation to a consumer's part of C, which begins at (row, col).
template <class T, int kSums>
__device__ void finish(float (&sums)[kSums], const Output<T>& c, const T* bias,
                       Activation activation, std::int64_t row, std::int64_t col, std::int64_t m,
                       std::int64_t n) {
  if (c.beta == 0 && !bias && activation == Activation::none) {  // of no element's place
    if (c.alpha == 1) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] *= c.alpha;
    return;
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const tile::ptx::Element at =
        tile::ptx::element_of_wgmma(static_cast<int>(threadIdx.x) % tile::kWarpgroup, i);
    const std::int64_t y = row + at.row, x = col + at.col;
    if (y >= m || x >= n) continue;
    sums[i] = c.scaled(sums[i], c.data + y * c.ld + x);
    if (bias) sums[i] += static_cast<float>(bias[x]);
    sums[i] = activate(activation, sums[i]);
  }
}
// snippet-end finish

// snippet-begin stage
/// Rounds a consumer's part of C and leaves it at `to`. A warp has 16 rows, and 16 columns at a
/// time are the four tiles of an stmatrix: those of 8 rows below one another have neighbouring
/// sums.
template <class T, int kSums>
__device__ void leave_in_shared_memory(const float (&sums)[kSums], tile::ptx::SharedAddress to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) % tile::kWarpgroup / 32 * 16 + lane % 16;
#pragma unroll
  for (int x = 0; x < 2 * kSums; x += 16) {
    std::uint32_t tiles[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      tiles[t] = tile::ptx::pack<T>(sums[x / 2 + t * 2], sums[x / 2 + t * 2 + 1]);
    }
    const int chunk = x % kBoxElements / 8 + lane / 16;  // of the row, whose address this lane has
    tile::ptx::stmatrix_x4(to + (x / kBoxElements * (kWgmmaRows * kBoxElements * 2) +
                                 row * kBoxElements * 2 + tile::swizzle_128B(row, chunk) * 16),
                           tiles);
  }
}
// snippet-end stage

/// Stores the columns behind the last whole 16 bytes of a row, which OutputBoxes leaves out.
template <class T, int kSums>
__device__ void store_rest(const float (&sums)[kSums], const Output<T>& c, std::int64_t row,
                           std::int64_t col, std::int64_t m, std::int64_t n) {
  const std::int64_t rest = n - n % kTogether;
  if (rest == n || col + 2 * kSums <= rest) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const tile::ptx::Element at =
        tile::ptx::element_of_wgmma(static_cast<int>(threadIdx.x) % tile::kWarpgroup, i);
    const std::int64_t y = row + at.row, x = col + at.col;
    if (y < m && x >= rest && x < n) c.data[y * c.ld + x] = static_cast<T>(sums[i]);
  }
}

}  // namespace matmul
