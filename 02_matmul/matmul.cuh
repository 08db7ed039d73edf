// The matrices as the kernels see them, the activations, and the order in which tiles are taken.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "matmul.hpp"

namespace matmul {

/// op(A) or op(B). A transpose moves no data: it exchanges the two strides.
template <class T>
struct Operand {
  const T* data;
  std::int64_t row_stride;  // elements from one row of op(.) to the next
  std::int64_t col_stride;  // and from one column to the next; one of the two is 1

  __device__ T operator()(std::int64_t row, std::int64_t col) const {
    return data[row * row_stride + col * col_stride];
  }
};

__device__ inline float gelu(float x) {
  // 0.5 (1 + tanh u) is 1 / (1 + exp(-2u)), which loses no digits where tanh u is near -1. Below
  // -16 the result is 0 in fp32, as exp(-2u) is infinite; at -infinity it would be NaN.
  const float from = x < -16.f ? -16.f : x;
  const float twice_u = from * (1.5957691f + 0.07135482f * from * from);  // 2 sqrt(2/pi) = 1.5957…
  return __fdividef(from, 1 + __expf(-twice_u));
}

__device__ inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::none: break;
    case Activation::relu: return x < 0 ? 0 : x;  // fmaxf(0, x) would be 0 for a NaN
    case Activation::gelu: return gelu(x);
  }
  return x;
}

// snippet-begin output
/// C, and how an element of it is computed from a sum. A kernel without kFused is much shorter.
template <class T, bool kFused = false>
struct Output {
  T* data;
  std::int64_t ld;
  float alpha, beta;
  const T* bias = nullptr;                   // [n], or null
  Activation activation = Activation::none;  // of the sum and the bias

  /// The new value of an element: `sum` is op(A)'s row times op(B)'s column, and `old` where the
  /// element lies. With beta 0 it is not read, because 0 * NaN is NaN.
  __device__ float scaled(float sum, const T* old) const {
    return beta == 0 ? alpha * sum : alpha * sum + beta * static_cast<float>(*old);
  }
  /// The same with the bias of this column, and activated, if these are fused.
  __device__ float value(float sum, const T* old, std::int64_t col) const {
    sum = scaled(sum, old);
    return !kFused ? sum : activate(activation, bias ? sum + static_cast<float>(bias[col]) : sum);
  }
  __device__ void store(std::int64_t row, std::int64_t col, float sum) const {
    T* element = data + row * ld + col;
    *element = static_cast<T>(value(sum, element, col));
  }
};
// snippet-end output

// snippet-begin corner
/// Where a tile of C begins.
struct Corner {
  std::int64_t row, col;
};

/// Tiles are taken in rows, as text is read. Blocks count along x: along y a grid ends at 65,535.
__device__ inline Corner corner_of_block(std::int64_t n, int tile_rows, int tile_cols) {
  const std::int64_t tiles_in_a_row = (n + tile_cols - 1) / tile_cols;
  return {blockIdx.x / tiles_in_a_row * tile_rows, blockIdx.x % tiles_in_a_row * tile_cols};
}
// snippet-end corner

/// The corner of a tile if they are taken in columns of kHeight, see step 6. There are fewer than
/// 2^31.
template <int kM, int kN, unsigned kHeight = 8>
__device__ Corner corner_in_groups(unsigned tile, std::int64_t m, std::int64_t n) {
  const auto down = static_cast<unsigned>((m + kM - 1) / kM);
  const auto across = static_cast<unsigned>((n + kN - 1) / kN);
  const unsigned height = min(kHeight, down);
  const unsigned group = tile / (height * across), in_group = tile % (height * across);
  const unsigned rows = min(height, down - group * height);  // the last group may be lower
  return {std::int64_t{group * height + in_group % rows} * kM, std::int64_t{in_group / rows} * kN};
}

}  // namespace matmul
