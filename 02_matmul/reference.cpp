// The reference on the CPU, with Eigen in double, and the checks of the arguments.
#include <Eigen/Core>
#include <cmath>
#include <string>

#include "matmul.hpp"

namespace matmul {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// op of a matrix that is stored rows x cols without padding.
Matrix op(std::span<const double> values, std::int64_t rows, std::int64_t cols, bool transpose) {
  const Eigen::Map<const Matrix> stored(values.data(), rows, cols);
  if (transpose) return stored.transpose();
  return stored;
}

struct Range {
  std::uintptr_t begin, end;  // bytes
};

Range range(const void* data, std::int64_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {begin, begin + static_cast<std::uintptr_t>(bytes)};
}

bool overlap(Range x, Range y) { return x.begin < y.end && y.begin < x.end; }

// A matrix among the arguments: rows of `cols` elements, `ld` from one to the next.
struct Argument {
  const char* name;
  const char* ld_name;
  const void* data;
  std::int64_t rows, cols, ld;

  bool empty() const { return rows == 0 || cols == 0; }
};

// Checks the leading dimension, and that the matrix ends within 64 bits. Gives its size in bytes.
tile::Status size_of(const Argument& x, std::int64_t element, std::int64_t* bytes) {
  if (x.ld < x.cols) {
    return tile::invalid_argument(
        x.ld_name, std::to_string(x.ld) + " is less than a row of " + std::to_string(x.cols));
  }
  *bytes = 0;
  if (x.empty()) return {};
  std::int64_t elements = 0;
  if (__builtin_mul_overflow(x.rows - 1, x.ld, &elements) ||
      __builtin_add_overflow(elements, x.cols, &elements) ||
      __builtin_mul_overflow(elements, element, bytes)) {
    return tile::invalid_argument(x.name, "its " + std::to_string(x.rows) + " rows, " +
                                              std::to_string(x.ld) +
                                              " elements apart, overflow 64 bits");
  }
  return {};
}

tile::Status check_pointer(const Argument& x, std::int64_t element) {
  if (!x.data) return tile::invalid_argument(x.name, "is null");
  if (reinterpret_cast<std::uintptr_t>(x.data) % static_cast<std::uintptr_t>(element)) {
    return tile::invalid_argument(x.name, "is not aligned to an element");
  }
  return {};
}

}  // namespace

tile::Expected reference(const Problem& p, std::span<const double> a, std::span<const double> b,
                         std::span<const double> c, bool zero_mean) {
  const double u = tile::unit_roundoff(p.type);
  const double alpha = p.alpha, beta = p.beta, k = static_cast<double>(p.k);
  // Sum and magnitude: |A||B| bounds what every order of adding can produce on its way.
  Matrix sum = Matrix::Zero(p.m, p.n), magnitude = sum;
  if (alpha != 0 && p.k > 0) {
    const Matrix op_a = op(a, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.transpose_a);
    const Matrix op_b = op(b, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.transpose_b);
    sum.noalias() = op_a * op_b;
    magnitude.noalias() = op_a.cwiseAbs() * op_b.cwiseAbs();
  }
  const double gamma = zero_mean ? 4 * std::sqrt(k) * u : k * u / (1 - k * u);
  // A product below the smallest normal number is off by up to half the smallest denormal.
  constexpr double kTiny = 0x1p-149;

  tile::Expected expected{{p.m, p.n}, {}, {}};
  for (std::int64_t row = 0; row < p.m; ++row) {
    for (std::int64_t col = 0; col < p.n; ++col) {
      const double scaled = alpha == 0 ? 0 : alpha * sum(row, col);
      const double old = beta == 0 ? 0 : beta * c[static_cast<std::size_t>(row * p.n + col)];
      // alpha rounds once, so does beta, so does their sum; each time what came before is rounded,
      // with its error.
      const double error =
          (1 + u) * (1 + u) *
          (gamma * std::abs(alpha) * magnitude(row, col) +
           2 * u * (std::abs(scaled) + std::abs(old)) + kTiny * (k * std::abs(alpha) + 3));
      expected.value.push_back(scaled + old);
      expected.bound.push_back(error);
    }
  }
  return expected;
}

tile::Status validate(const Problem& p, const Buffers& buffers) {
  if (tile::Status s = tile::check_requirements(kTypes, {}, p.type); !s.ok()) return s;
  return validate_matrices(p, buffers);
}

tile::Status validate_matrices(const Problem& p, const Buffers& buffers) {
  const struct {
    const char* name;
    std::int64_t value;
  } extents[] = {{"m", p.m}, {"n", p.n}, {"k", p.k}};
  for (const auto& extent : extents) {
    if (extent.value < 0) {
      return tile::invalid_argument(extent.name, std::to_string(extent.value) + " is negative");
    }
  }

  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  const Argument a{"a",  "lda", buffers.a, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k,
                   p.lda};
  const Argument b{"b",  "ldb", buffers.b, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n,
                   p.ldb};
  const Argument c{"c", "ldc", buffers.c, p.m, p.n, p.ldc};
  std::int64_t a_bytes = 0, b_bytes = 0, c_bytes = 0;
  if (tile::Status s = size_of(a, element, &a_bytes); !s.ok()) return s;
  if (tile::Status s = size_of(b, element, &b_bytes); !s.ok()) return s;
  if (tile::Status s = size_of(c, element, &c_bytes); !s.ok()) return s;

  if (c.empty()) return {};
  if (tile::Status s = check_pointer(c, element); !s.ok()) return s;
  if (p.k == 0 || p.alpha == 0) return {};  // A and B are not read
  if (tile::Status s = check_pointer(a, element); !s.ok()) return s;
  if (tile::Status s = check_pointer(b, element); !s.ok()) return s;
  if (overlap(range(c.data, c_bytes), range(a.data, a_bytes))) {
    return tile::invalid_argument("c", "overlaps a");
  }
  if (overlap(range(c.data, c_bytes), range(b.data, b_bytes))) {
    return tile::invalid_argument("c", "overlaps b");
  }
  return {};
}

}  // namespace matmul
