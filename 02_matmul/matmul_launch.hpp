// What every launcher begins with: the matrices for its kernel, the grid, and the kernel's template
// arguments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "matmul.cuh"
#include "tile/host/element_type.hpp"
#include "tile/host/grid.hpp"
#include "tile/host/launch.hpp"

namespace matmul {

template <class T>
Operand<T> op_a(const Problem& p, const Buffers& buffers) {
  return {static_cast<const T*>(buffers.a), p.transpose_a ? 1 : p.lda, p.transpose_a ? p.lda : 1};
}
template <class T>
Operand<T> op_b(const Problem& p, const Buffers& buffers) {
  return {static_cast<const T*>(buffers.b), p.transpose_b ? 1 : p.ldb, p.transpose_b ? p.ldb : 1};
}

/// Bias and activation are left to a second kernel unless the step has fused them.
template <class T, bool kFused = false>
Output<T, kFused> output_c(const Problem& p, const Buffers& buffers) {
  return {static_cast<T*>(buffers.c),          p.ldc,       p.alpha, p.beta,
          static_cast<const T*>(buffers.bias), p.activation};
}

/// The products in each sum: none with alpha 0, when A and B may be anything, even NaN.
inline std::int64_t terms(const Problem& p) { return p.alpha == 0 ? 0 : p.k; }

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
