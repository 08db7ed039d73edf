// The references on the CPU, with Eigen in double.
#include "reference.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "harness/parallel.hpp"
#include "harness/rounding.hpp"

namespace softmax {
namespace {

using Array = Eigen::ArrayXd;
using Row = Eigen::Map<const Array>;
using Result = Eigen::Map<Array>;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- Errors of a kernel ----
//
// A kernel computes in fp32, where an operation multiplies its exact result by 1 + d, |d| <= u. The
// logarithm of that is at most u (1 + u) away from 0, which is kUnit. Errors are added up below as
// such logarithms: a value v whose errors add up to r is off by at most |v| (e^r - 1). That of a
// sum of positive terms is at most the mean of the terms' e^r - 1, each term weighted with its
// share of the sum.

constexpr double kUnit = 0x1.00001p-24;
// ex2.approx and exp2f are off by 2 ulps (PTX ISA, "ex2"; CUDA C++ Programming Guide, "Mathematical
// Functions"), of up to 2u each.
constexpr double kExp2 = 4 * kUnit;
constexpr double kLog = 2 * kUnit;  // of the logarithm, 1 ulp
// An exponential may be flushed to zero below the smallest normal number. Products are not: they
// are off by half the smallest denormal.
constexpr double kTinyExponential = 0x1p-126;
constexpr double kTinyProduct = 0x1p-150;

/// The result of a calculation in fp32 before rounding: infinity, if it is too large.
class Range {
 public:
  explicit Range(tile::DType type)
      : infinite_(type == tile::DType::fp64 ? kInfinity
                                            : tile::rounding_of(tile::DType::fp32).infinite) {}
  double operator()(double x) const {
    return std::abs(x) >= infinite_ ? std::copysign(kInfinity, x) : x;
  }

 private:
  double infinite_;
};

/// How often a term of the sum is scaled down to a greater maximum, at most. In one pass over the
/// row each of a thread's numbers may be the greatest so far: no step that does so has fewer than
/// 256 threads to a row. Then in five rounds of a warp's lanes, with 32 warps and with 16 blocks.
double rescalings(double n) { return std::min(n - 1, std::ceil(n / 256) + 5 + 32 + 16); }

/// exp(-z) is computed as 2^(f (x - max)): the rounding of the difference, of the constant log2(e),
/// of f, which is its product with scale, and of the product of both multiply z by 1 + d. If scale
/// is denormal, f is off by half the smallest denormal more.
double argument_error(double scale) {
  return 4 * kUnit + kTinyProduct / (scale * std::numbers::log2e);
}

/// The visible part of a row of y from that of x.
void forward(const ForwardProblem& p, Row x, Result value, Result bound) {
  const Range in_range(p.type);
  const double scale = p.scale;
  const double max = x.maxCoeff();
  bound.setZero();
  if (x.isNaN().any() || max == kInfinity) {
    value.setConstant(kNaN);
    return;
  }
  if (max == -kInfinity) {
    value.setConstant(p.log ? -kInfinity : 0);
    return;
  }
  const auto n = static_cast<double>(x.size());
  // A difference that overflows is infinite, with an exponential of 0, which it is for scales above
  // 2^-118 in any case.
  const Array z = x.unaryExpr([&](double each) { return scale * in_range(max - each); });
  const Array exponential = z.unaryExpr([](double each) { return std::exp(-each); });
  const double sum = exponential.sum();
  const Array share = exponential / sum;

  // Of the terms of the sum: the argument and the exponential; for each time that the maximum grows
  // one more exponential, whose argument is a part of z, and a product; and each addition rounds,
  // in whatever order.
  const double argument = argument_error(scale);
  const double term_error = kExp2 + (kExp2 + kUnit) * rescalings(n) + (n - 1) * kUnit;
  const double sum_error =
      (share > 0)
          .select(
              share * (argument * z + term_error).unaryExpr([](double r) { return std::expm1(r); }),
              0)
          .sum() +
      n * kTinyExponential / sum;

  if (p.log) {
    // scale (x - max) - log sum: two roundings of the first part, one of the result.
    value = -(z + std::log(sum));
    const Array parts = 2 * kUnit * z + sum_error + kLog * (std::log(sum) + sum_error);
    bound = parts + kUnit * (value.abs() + parts) + kTinyProduct;
  } else {
    // The exponential may be one relative to another maximum and one that corrects it; 1 / sum and
    // the products round. One of those factors or a product may be flushed to zero.
    value = share;
    const double other = 2 * kExp2 + sum_error + 4 * kUnit;
    bound =
        (share > 0).select(
            share * (argument * z + other).unaryExpr([](double r) { return std::expm1(r); }), 0) +
        4 * kTinyExponential;
  }
}

/// The visible part of a row of dx from those of y and dy.
void backward(const BackwardProblem& p, Row y, Row dy, Result value, Result bound) {
  const Range in_range(p.type);
  const double scale = p.scale;
  const auto n = static_cast<double>(y.size());
  const Array terms = p.log ? Array(dy) : Array(y * dy);
  const double sum = terms.sum();
  // A product and n - 1 additions.
  const double sum_error = std::expm1(n * kUnit) * terms.abs().sum() + n * kTinyProduct;
  const double two_roundings = std::expm1(2 * kUnit);
  for (Eigen::Index i = 0; i < y.size(); ++i) {
    double error = sum_error, result = 0;
    if (p.log) {
      // exp(y) is 2^(log2(e) y): two roundings in the exponent.
      const double exponential = in_range(std::exp(y[i]));
      const double relative = exponential == 0 ? 0 : 2 * kUnit * std::abs(y[i]) + kExp2 + kUnit;
      error = exponential * sum_error +
              std::expm1(relative) * exponential * (std::abs(sum) + sum_error) +
              kTinyExponential * (std::abs(sum) + sum_error) + kTinyProduct;
      result = in_range(dy[i] - exponential * sum);
    } else {
      const double difference = in_range(dy[i] - sum);
      error =
          std::abs(y[i]) * (sum_error + kUnit * (std::abs(difference) + sum_error)) + kTinyProduct;
      result = in_range(y[i] * difference);
    }
    // One more rounding here, and that of the product with scale.
    value[i] = in_range(scale * result);
    bound[i] =
        scale * ((1 + two_roundings) * error + two_roundings * std::abs(result)) + kTinyProduct;
  }
}

/// Calls `compute(begin, visible, value, bound)` for each row that has visible columns, which begin
/// at element `begin`, and rounds what it found. All other columns hold `hidden`.
template <class Problem, class Compute>
tile::Expected for_each_row(const Problem& p, double hidden, Compute compute) {
  const auto rows = static_cast<std::size_t>(p.rows), cols = static_cast<std::size_t>(p.cols);
  tile::Expected expected{{p.rows, p.cols}, std::vector<double>(rows * cols, hidden), {}};
  expected.bound.resize(rows * cols);
  const tile::Rounding out = tile::rounding_of(p.type);
  if (rows * cols == 0) return expected;
  auto compute_row = [&](std::size_t row) {
    std::size_t visible = cols;
    if (p.causal) {
      const std::int64_t query = static_cast<std::int64_t>(row) % p.queries;
      visible = static_cast<std::size_t>(std::max<std::int64_t>(0, query + 1 + p.cols - p.queries));
    }
    if (visible == 0) return;
    double* value = &expected.value[row * cols];
    double* bound = &expected.bound[row * cols];
    const auto count = static_cast<Eigen::Index>(visible);
    compute(row * cols, count, Result(value, count), Result(bound, count));
    for (std::size_t i = 0; i < visible; ++i) {
      // Exact results, as of a row without weights, are values of every type.
      if (bound[i] > 0) bound[i] += out.error(value[i], bound[i]);
      if (std::abs(value[i]) >= out.infinite) value[i] = std::copysign(kInfinity, value[i]);
    }
  };
  tile::in_parts(rows, tile::kElementsForAThread / cols + 1,
                 [&](std::size_t begin, std::size_t end) {
                   for (std::size_t row = begin; row < end; ++row) compute_row(row);
                 });
  return expected;
}

}  // namespace

tile::Expected reference(const ForwardProblem& p, std::span<const double> x) {
  return for_each_row(p, p.log ? -kInfinity : 0,
                      [&](std::size_t begin, Eigen::Index visible, Result value, Result bound) {
                        forward(p, Row(&x[begin], visible), value, bound);
                      });
}

tile::Expected reference(const BackwardProblem& p, std::span<const double> y,
                         std::span<const double> dy) {
  return for_each_row(
      p, 0, [&](std::size_t begin, Eigen::Index visible, Result value, Result bound) {
        backward(p, Row(&y[begin], visible), Row(&dy[begin], visible), value, bound);
      });
}

}  // namespace softmax
