// Bias and activation in a kernel of their own, after the product, for steps that do not fuse them.
// It reads and writes all of C once more. It is also what remains of a problem without a product,
// and an activation that keeps its argument.
#include "activation.hpp"
#include "matmul.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"

namespace matmul {
namespace {

constexpr int kThreads = 256;

/// C = activation(beta X + bias), where X may be C. Each thread takes 16 bytes of a row at a time,
/// element by element if they are not `aligned` or reach over its end.
template <class T>
__global__ void matmul_bias_activation(tile::Rows<const T> x,  // [m][n]
                                       tile::Rows<T> c,        // [m][n]
                                       const T* bias,          // [n], or null
                                       float beta, Activation activation, bool aligned,
                                       std::int64_t m, std::int64_t n) {
  using Vector = tile::Vector<T>;
  constexpr int kCount = Vector::kCount;
  const std::int64_t in_a_row = (n + kCount - 1) / kCount;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (std::int64_t i = first; i < m * in_a_row; i += gridDim.x * std::int64_t{kThreads}) {
    const std::int64_t col = i % in_a_row * kCount;
    const T* from = x[i / in_a_row] + col;
    T* to = c[i / in_a_row] + col;
    auto activated = [&](T old, int e) {
      const float scaled = beta == 0 ? 0 : beta * static_cast<float>(old);
      const float sum = bias ? scaled + static_cast<float>(bias[col + e]) : scaled;
      return static_cast<T>(activate(activation, sum));
    };
    if (aligned && col + kCount <= n) {
      Vector vector{};
      if (beta != 0) vector = *reinterpret_cast<const Vector*>(from);
#pragma unroll
      for (int e = 0; e < kCount; ++e) vector.element[e] = activated(vector.element[e], e);
      *reinterpret_cast<Vector*>(to) = vector;
    } else {
      for (int e = 0; e < kCount && col + e < n; ++e) {
        to[e] = activated(beta == 0 ? T(0.f) : from[e], e);
      }
    }
  }
}

template <class T>
tile::Status launch(tile::Rows<const T> x, tile::Rows<T> c, const T* bias, float beta,
                    Activation activation, std::int64_t m, std::int64_t n, void* stream) {
  using Vector = tile::Vector<T>;
  const auto has_vectors = [](const T* data, std::int64_t ld) {
    return reinterpret_cast<std::uintptr_t>(data) % sizeof(Vector) == 0 && ld % Vector::kCount == 0;
  };
  const bool aligned = has_vectors(x.data, x.ld) && has_vectors(c.data, c.ld);
  int blocks = 0;
  TILE_TRY(
      tile::blocks_that_fit(m * ((n + Vector::kCount - 1) / Vector::kCount), kThreads, &blocks));
  return tile::launch(matmul_bias_activation<T>, "matmul_bias_activation", blocks, kThreads, 0,
                      stream, x, c, bias, beta, activation, aligned, m, n);
}

}  // namespace

static tile::Status launch(const Problem& p, const Buffers& buffers, float beta, void* stream) {
  const tile::DType type = type_of_c(p);
  return tile::with_element_type(
      type == tile::DType::tf32 ? tile::DType::fp32 : type,  // as it is stored
      [&](auto element) {
        using T = decltype(element);
        auto* c = static_cast<T*>(buffers.c);
        return launch<T>({c, p.ldc}, {c, p.ldc}, static_cast<const T*>(buffers.bias), beta,
                         p.activation, p.m, p.n, stream);
      });
}

tile::Status add_bias_and_activate(const Problem& p, const Buffers& buffers, void* stream) {
  if (!buffers.bias && p.activation == Activation::none) return {};
  return launch(p, buffers, 1, stream);
}

tile::Status without_product(const Problem& p, const Buffers& buffers, void* stream) {
  return launch(p, buffers, p.beta, stream);
}

tile::Status activate(const ActivateProblem& p, const ActivateBuffers& b, void* stream) {
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return launch<T>({static_cast<const T*>(b.x), p.ldx}, {static_cast<T*>(b.y), p.ldy}, nullptr, 1,
                     p.activation, p.rows, p.cols, stream);
  });
}

}  // namespace matmul
