// The matrices of C = alpha * op(A) * op(B) + beta * C as the kernels see them, and what every
// launcher does.
#pragma once

#include <type_traits>

#include "tile/host/cuda_check.hpp"
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

/// C, and what becomes of an element of it.
template <class T>
struct Output {
  T* data;
  std::int64_t ld;
  float alpha, beta;

  /// The new value of an element: `sum` is op(A)'s row times op(B)'s column, and `old` where the
  /// element lies. With beta 0 it is not read, because 0 * NaN is NaN.
  __device__ float scaled(float sum, const T* old) const {
    return beta == 0 ? alpha * sum : alpha * sum + beta * static_cast<float>(*old);
  }
  __device__ void store(std::int64_t row, std::int64_t col, float sum) const {
    T* element = data + row * ld + col;
    *element = static_cast<T>(scaled(sum, element));
  }
};

/// All that a kernel is told.
template <class T>
struct Product {
  Operand<T> a, b;
  Output<T> c;
  std::int64_t m, n, k;
  const T* bias;          // [n], or null
  Activation activation;  // both for kernels that do not leave them to add_bias_and_activate()

  Product(const Problem& p, const Buffers& buffers)
      : a{static_cast<const T*>(buffers.a), p.transpose_a ? 1 : p.lda, p.transpose_a ? p.lda : 1},
        b{static_cast<const T*>(buffers.b), p.transpose_b ? 1 : p.ldb, p.transpose_b ? p.ldb : 1},
        c{static_cast<T*>(buffers.c), p.ldc, p.alpha, p.beta},
        m(p.m),
        n(p.n),
        k(p.alpha == 0 ? 0 : p.k),  // A and B may be anything then, even NaN
        bias(static_cast<const T*>(buffers.bias)),
        activation(p.activation) {}
};

/// Where a tile of C begins.
struct Corner {
  std::int64_t row, col;
};

/// The corner of this block's tile. The blocks take the tiles in rows, as text is read. Blocks are
/// counted along x only: along y a grid ends at 65,535.
__device__ inline Corner corner_of_block(std::int64_t n, int tile_rows, int tile_cols) {
  const std::int64_t tiles_in_a_row = (n + tile_cols - 1) / tile_cols;
  return {blockIdx.x / tiles_in_a_row * tile_rows, blockIdx.x % tiles_in_a_row * tile_cols};
}

/// What every launcher begins with: checks the arguments, and counts a block for each tile of C.
/// None is not an error: there is nothing to launch then.
inline tile::Status blocks_for_tiles(const Problem& p, const Buffers& buffers,
                                     tile::EnumSet<tile::DType> types, int tile_rows, int tile_cols,
                                     unsigned* blocks) {
  *blocks = 0;
  if (tile::Status s = validate(p, buffers, types); !s.ok()) return s;
  const std::int64_t down = p.m / tile_rows + (p.m % tile_rows != 0);
  const std::int64_t across = p.n / tile_cols + (p.n % tile_cols != 0);
  return tile::blocks_for("m and n", down * across, 1, blocks);
}

/// Calls `launch` with the two directions of the operands as types: whether A, and whether B, is
/// contiguous along k.
template <class Launch>
tile::Status with_directions(const Problem& p, Launch launch) {
  using std::false_type, std::true_type;
  if (p.transpose_a) {
    return p.transpose_b ? launch(false_type{}, true_type{}) : launch(false_type{}, false_type{});
  }
  return p.transpose_b ? launch(true_type{}, true_type{}) : launch(true_type{}, false_type{});
}

/// A launcher whose kernel adds the bias and activates by itself. Calls `launch` with the number of
/// blocks, one for each tile of C, and with what the kernel is told.
template <class T, class Launch>
tile::Status launch_fused_on_tiles(const Problem& problem, const Buffers& buffers,
                                   tile::EnumSet<tile::DType> types, int tile_rows, int tile_cols,
                                   Launch launch) {
  unsigned blocks = 0;
  tile::Status status = blocks_for_tiles(problem, buffers, types, tile_rows, tile_cols, &blocks);
  if (!status.ok() || blocks == 0) return status;
  return launch(blocks, Product<T>(problem, buffers));
}

/// A launcher whose kernel computes the product alone, calling `launch` likewise. Bias and
/// activation follow in a second kernel.
template <class T, class Launch>
tile::Status launch_on_tiles(const Problem& problem, const Buffers& buffers,
                             tile::EnumSet<tile::DType> types, int tile_rows, int tile_cols,
                             void* stream, Launch launch) {
  unsigned blocks = 0;
  tile::Status status = blocks_for_tiles(problem, buffers, types, tile_rows, tile_cols, &blocks);
  if (!status.ok() || blocks == 0) return status;
  if (tile::Status s = launch(blocks, Product<T>(problem, buffers)); !s.ok()) return s;
  return add_bias_and_activate(problem, buffers, stream);
}

}  // namespace matmul
