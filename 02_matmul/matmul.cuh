// The matrices as the kernels see them, the activations, and what every launcher begins with.
#pragma once

#include <type_traits>

#include "matmul.hpp"
#include "tile/basics.cuh"

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
template <class T>
Operand<T> op_a(const Problem& p, const Buffers& buffers) {
  return {static_cast<const T*>(buffers.a), p.transpose_a ? 1 : p.lda, p.transpose_a ? p.lda : 1};
}
template <class T>
Operand<T> op_b(const Problem& p, const Buffers& buffers) {
  return {static_cast<const T*>(buffers.b), p.transpose_b ? 1 : p.ldb, p.transpose_b ? p.ldb : 1};
}

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
/// Bias and activation are left to a second kernel unless the step has fused them.
template <class T, bool kFused = false>
Output<T, kFused> output_c(const Problem& p, const Buffers& buffers) {
  return {static_cast<T*>(buffers.c),          p.ldc,       p.alpha, p.beta,
          static_cast<const T*>(buffers.bias), p.activation};
}

/// The products in each sum: none with alpha 0, when A and B may be anything, even NaN.
inline std::int64_t terms(const Problem& p) { return p.alpha == 0 ? 0 : p.k; }

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

/// A block for each tile of C.
inline tile::Status blocks_for_tiles(const Problem& p, int tile_rows, int tile_cols,
                                     unsigned* blocks) {
  const std::int64_t down = (p.m - 1) / tile_rows + 1, across = (p.n - 1) / tile_cols + 1;
  return tile::blocks_for("m and n", down * across, 1, blocks);
}

/// Calls `launch` with the directions of the operands as types: whether A, and whether B, is
/// contiguous along k.
template <class Launch>
tile::Status with_directions(const Problem& p, Launch launch) {
  using std::false_type, std::true_type;
  if (p.transpose_a) {
    return p.transpose_b ? launch(false_type{}, true_type{}) : launch(false_type{}, false_type{});
  }
  return p.transpose_b ? launch(true_type{}, true_type{}) : launch(true_type{}, false_type{});
}

/// The same, and whether all tiles are whole as a third.
template <class Launch>
tile::Status with_directions(const Problem& p, Launch launch, bool whole) {
  return with_directions(p, [&](auto a_along_k, auto b_along_k) {
    return whole ? launch(a_along_k, b_along_k, std::true_type{})
                 : launch(a_along_k, b_along_k, std::false_type{});
  });
}

/// The same, after a value of the element type, of which only the type matters.
template <class Launch, class... Whole>
tile::Status with_16_bits(const Problem& p, Launch launch, Whole... whole) {
  const auto with_element = [&](auto... choices) {
    return p.type == tile::DType::fp16 ? launch(__half{}, choices...)
                                       : launch(__nv_bfloat16{}, choices...);
  };
  return with_directions(p, with_element, whole...);
}

}  // namespace matmul
