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

/// Applies alpha, beta, bias and activation to a consumer's part of C, which begins at (row, col).
/// Each has a loop of its own, as in step 13. What lies outside of C gets anything: it is not
/// stored.
template <class T, int kSums>
__device__ void finish(float (&sums)[kSums], const Output<T>& c, const T* bias,
                       Activation activation, std::int64_t row, std::int64_t col, std::int64_t m,
                       std::int64_t n) {
  const FirstSum first(row, col, m, n);
  scale_sums(sums, c, first);
  if (bias) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int x = tile::ptx::element_of_wgmma(0, i).col;
      if (x < first.cols_left) sums[i] += static_cast<float>(bias[first.col + x]);
    }
  }
  if (activation == Activation::relu) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = activate(Activation::relu, sums[i]);
  } else if (activation == Activation::gelu) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = activate(Activation::gelu, sums[i]);
  }
}

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

/// Stores the columns behind the last whole 16 bytes of a row, which OutputBoxes leaves out: a part
/// of a group of eight columns, of which a thread has two in each of two rows.
template <class T, int kSums>
__device__ void store_rest(const float (&sums)[kSums], const Output<T>& c, std::int64_t row,
                           std::int64_t col, std::int64_t m, std::int64_t n) {
  const std::int64_t rest = n - n % kTogether;
  if (rest == n || rest < col || col + 2 * kSums <= rest) return;
  float group[4];
#pragma unroll
  for (int i = 0; i < kSums; i += 4) {  // registers have no index: all groups are asked
    if (col + 2 * i != rest) continue;
#pragma unroll
    for (int j = 0; j < 4; ++j) group[j] = sums[i + j];
  }
  const FirstSum first(row, rest, m, n);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const tile::ptx::Element at = tile::ptx::element_of_wgmma(0, j);
    if (at.row >= first.rows_left || at.col >= first.cols_left) continue;
    c.data[(first.row + at.row) * c.ld + first.col + at.col] = static_cast<T>(group[j]);
  }
}

}  // namespace matmul
