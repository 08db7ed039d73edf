// Bias and activation in a kernel of their own, after the product, for steps that do not fuse them.
// It reads and writes all of C once more. It is also what remains of a problem without a product.
#include "matmul.cuh"
#include "tile/host/launch.hpp"

namespace matmul {
namespace {

constexpr int kThreads = 256;

/// C = activation(beta C + bias). Each thread takes 16 bytes of a row at a time, element by element
/// if they are not `aligned` or reach over its end.
template <class T>
__global__ void matmul_bias_activation(T* c,           // [m][n], rows `ld` elements apart
                                       const T* bias,  // [n], or null
                                       float beta, Activation activation, bool aligned,
                                       std::int64_t ld, std::int64_t m, std::int64_t n) {
  using Vector = tile::Vector<T>;
  constexpr int kCount = Vector::kCount;
  const std::int64_t in_a_row = (n + kCount - 1) / kCount;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (std::int64_t i = first; i < m * in_a_row; i += gridDim.x * std::int64_t{kThreads}) {
    const std::int64_t col = i % in_a_row * kCount;
    T* from = c + i / in_a_row * ld + col;
    auto activated = [&](T old, int e) {
      const float scaled = beta == 0 ? 0 : beta * static_cast<float>(old);
      const float added = bias ? static_cast<float>(bias[col + e]) : 0.f;
      return static_cast<T>(activate(activation, scaled + added));
    };
    if (aligned && col + kCount <= n) {
      Vector vector{};
      if (beta != 0) vector = *reinterpret_cast<const Vector*>(from);
#pragma unroll
      for (int e = 0; e < kCount; ++e) vector.element[e] = activated(vector.element[e], e);
      *reinterpret_cast<Vector*>(from) = vector;
    } else {
      for (int e = 0; e < kCount && col + e < n; ++e) {
        from[e] = activated(beta == 0 ? T(0.f) : from[e], e);
      }
    }
  }
}

template <class T>
tile::Status launch(const Problem& p, const Buffers& buffers, float beta, void* stream) {
  using Vector = tile::Vector<T>;
  const bool aligned = reinterpret_cast<std::uintptr_t>(buffers.c) % sizeof(Vector) == 0 &&
                       p.ldc % Vector::kCount == 0;
  int blocks = 0;
  TILE_TRY(tile::blocks_that_fit(p.m * ((p.n + Vector::kCount - 1) / Vector::kCount), kThreads,
                                 &blocks));
  return tile::launch(matmul_bias_activation<T>, "matmul_bias_activation", blocks, kThreads, 0,
                      stream, static_cast<T*>(buffers.c), static_cast<const T*>(buffers.bias), beta,
                      p.activation, aligned, p.ldc, p.m, p.n);
}

}  // namespace

static tile::Status launch(const Problem& p, const Buffers& buffers, float beta, void* stream) {
  const tile::DType type = type_of_c(p);
  return tile::with_element_type(
      type == tile::DType::tf32 ? tile::DType::fp32 : type,  // as it is stored
      [&](auto element) { return launch<decltype(element)>(p, buffers, beta, stream); });
}

tile::Status add_bias_and_activate(const Problem& p, const Buffers& buffers, void* stream) {
  if (!buffers.bias && p.activation == Activation::none) return {};
  return launch(p, buffers, 1, stream);
}

tile::Status without_product(const Problem& p, const Buffers& buffers, void* stream) {
  return launch(p, buffers, p.beta, stream);
}

}  // namespace matmul
