// The reference on the CPU, with Eigen in double.
#include "reference.hpp"

#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <numbers>

#include "harness/parallel.hpp"
#include "harness/rounding.hpp"

namespace matmul {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

using Vector = Eigen::VectorXd;

// op of a matrix that is stored rows x cols without padding.
Matrix op(std::span<const double> values, std::int64_t rows, std::int64_t cols, bool transpose) {
  const Eigen::Map<const Matrix> stored(values.data(), rows, cols);
  if (transpose) return stored.transpose();
  return stored;
}

// ---- Bounds ----

constexpr double kUnit = tile::unit_roundoff(tile::DType::fp32);
// A product below the smallest normal number is off by up to half the smallest denormal.
constexpr double kTiny = 0x1p-149;

// snippet-begin sum
/// How far a sum of k products may be from the exact sum of the products of the rounded factors,
/// relative to |A||B|.
double sum_error(tile::DType type, std::int64_t count, bool zero_mean) {
  const auto k = static_cast<double>(count);
  if (type == tile::DType::e4m3) {
    // Measured on an H200: wgmma adds 32 products, which are exact, and the sum so far, each cut
    // off at 2^-13 of the greatest of these 33. None is greater than |A||B|.
    constexpr double kCut = 0x1p-13;
    // With mean zero the sum is 1.6 |A||B| / sqrt(k) (the magnitude of a normal product is 0.64 of
    // its deviation), and at most five times that, too. The cuts of k products have either sign and
    // grow like sqrt(k); those of the sum go towards zero, k / 32 times by half a cut on average.
    if (zero_mean) return 8 * kCut * (1 + std::sqrt(k) / 64);
    return 33 * kCut * std::ceil(k / 32);
  }
  if (zero_mean) return 4 * std::sqrt(k) * kUnit;
  // fp32 rounds each product into the sum, k times. Tensor cores multiply the shorter types exactly
  // and add some products to the sum at one time: each of these addends is cut off at a bit below
  // the last one of the greatest, which loses up to u of that, and the result is cut off at 24
  // bits, which loses up to 2u of it. So n products cost n + 1 + 2 units, with n = 8 (4 for tf32)
  // on an A100. Later cards add more at one time and cut off less (Fasi et al., "Numerical behavior
  // of NVIDIA tensor cores", 2021; Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores",
  // 2025). Whether a product is exact does not matter here: a fused multiply-add is within this.
  double units = k;
  if (type != tile::DType::fp32) units += 3 * std::ceil(k / (type == tile::DType::tf32 ? 4 : 8));
  return units * kUnit / (1 - units * kUnit);
}
// snippet-end sum

/// The relative error of a term from rounding its two factors: (1 + u)^2 - 1. Inputs of the shorter
/// types are rounded already.
double input_error(tile::DType type) {
  if (type != tile::DType::tf32) return 0;
  const double u = tile::unit_roundoff(type);
  return 2 * u + u * u;
}

/// What a sum of products loses where factors are rounded as denormals, by up to half the smallest:
/// that of the other factor. `a` and `b` are the sums of a row's and a column's magnitudes.
double input_underflow(tile::DType type, std::int64_t k, double a, double b) {
  if (type != tile::DType::tf32) return 0;
  constexpr double kHalf = 0x1p-137;
  return kHalf * (a + b + static_cast<double>(k) * kHalf);
}

// ---- Activations ----

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::none: break;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::gelu:
      if (x < -40) return 0;  // smaller than any type's smallest number; at -infinity the limit
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  }
  return x;
}

/// The error of activation(x) in fp32 if x has this one.
double activation_error(Activation activation, double x, double error) {
  if (std::isinf(x)) return kTiny;  // so is the result, or it is 0 of either sign
  if (activation == Activation::none) return error;
  if (activation == Activation::relu) return x + error < 0 ? 0 : error;  // no slope is above 1
  // A kernel computes x / (1 + exp(-w)), w = x (c + d x^2). w has five roundings; __expf(w) is off
  // by 2 + 1.173 |w| ulps, of up to 2u each (CUDA C++ Programming Guide, "Intrinsic Functions"). So
  // the exponential is off by (4 + 7.4 |w|) u, of which the result feels at most all for x < 0, and
  // for x > 0 the share 1 / (1 + exp(w)), of which |w| makes less than 0.3. The sum and the
  // division, of 2 ulps, add 5u. For x < 0, |w gelu(x)| is below 0.3. So it is 12u of the result,
  // and 2.4u. gelu's slope is below 1.13.
  const double inherited = 1.13 * error;
  const double own = 12 * kUnit * (std::abs(activated(activation, x)) + inherited) + 2.4 * kUnit;
  return inherited + own;
}

/// The derivative of an activation, and the error of a kernel's.
struct Slope {
  double value, error;
};
Slope slope_of(Activation activation, double x) {
  if (std::isnan(x) && activation != Activation::none) return {x, 0};
  if (activation == Activation::none) return {1, 0};
  if (activation == Activation::relu) return {x > 0 ? 1. : 0., 0};
  // gelu is x s(w), s the logistic function, so its slope is s(w) + s(w) s(-w) x w'. A kernel takes
  // 16 for what is greater, where s(-w) is 0 in fp32.
  if (x < -16) return {0, 0};
  if (x > 16) return {1, 5 * kUnit};
  const double c = 2 * std::sqrt(2 / std::numbers::pi), d = 0.044715 * c;
  const double w = x * (c + d * x * x), x_slope = x * (c + 3 * d * x * x);
  const double s = 1 / (1 + std::exp(-w)), other = 1 / (1 + std::exp(w));
  const double curved = s * other * x_slope;
  // A kernel computes e = exp(-|w|) and r = 1 / (1 + e). As above, e is off by (4 + 7.4 |w|) u. Of
  // that r inherits the share e r, which is s or s(-w), the smaller one, and 5u come from the sum
  // and the division. For x > 0, s is r; otherwise e r, which rounds once more. e r^2 x w' inherits
  // at most all of e's error, twice 5u, and has eight roundings. Both are added. Below 2^-126 e may
  // be 0, and x w' is less than 2^10.
  const double of_e = 4 + 7.4 * std::abs(w), less = std::min(s, other);
  return {s + curved,
          kUnit * (6 * s + less * of_e + (18 + of_e) * std::abs(curved) + std::abs(s + curved)) +
              0x1p-116};
}

/// With infinity where the type has it.
double stored(double value, const tile::Rounding& out) {
  return std::abs(value) >= out.infinite
             ? std::copysign(std::numeric_limits<double>::infinity(), value)
             : value;
}

}  // namespace

tile::Expected reference(const Problem& p, std::span<const double> a, std::span<const double> b,
                         std::span<const double> c, bool zero_mean, std::span<const double> bias,
                         bool fused, double scale, bool exact) {
  const double alpha = p.alpha == 0 ? 0 : p.alpha * scale, beta = p.beta;
  // Sum and magnitude: |A||B| bounds what every order of adding can produce on its way.
  Matrix sum = Matrix::Zero(p.m, p.n), magnitude = sum;
  Vector a_magnitude = Vector::Zero(p.m), b_magnitude = Vector::Zero(p.n);
  if (alpha != 0 && p.k > 0) {
    const Matrix op_a = op(a, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.transpose_a);
    const Matrix op_b = op(b, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.transpose_b);
    if (exact) {  // in fp32, too, which takes half as long
      sum = (op_a.cast<float>() * op_b.cast<float>()).cast<double>();
    } else {
      constexpr std::int64_t kProductsForAThread = 1 << 26;
      const Matrix a_sizes = op_a.cwiseAbs(), b_sizes = op_b.cwiseAbs();
      tile::in_parts(static_cast<std::size_t>(p.m),
                     static_cast<std::size_t>(1 + kProductsForAThread / (1 + p.n * p.k)),
                     [&](std::size_t begin, std::size_t end) {
                       const auto first = static_cast<Eigen::Index>(begin);
                       const auto count = static_cast<Eigen::Index>(end - begin);
                       sum.middleRows(first, count).noalias() =
                           op_a.middleRows(first, count) * op_b;
                       magnitude.middleRows(first, count).noalias() =
                           a_sizes.middleRows(first, count) * b_sizes;
                     });
      a_magnitude = op_a.cwiseAbs().rowwise().sum();
      b_magnitude = op_b.cwiseAbs().colwise().sum().transpose();
    }
  }

  const tile::Rounding out = tile::rounding_of(type_of_c(p));
  // Two scales and alpha make one factor, with two roundings.
  const double of_scales = scale == 1 ? 1 : (1 + kUnit) * (1 + kUnit);
  const double relative =
      (1 + sum_error(p.type, p.k, zero_mean)) * (1 + input_error(p.type)) * of_scales - 1;
  tile::Expected expected{{p.m, p.n}, {}, {}};
  for (std::int64_t row = 0; row < p.m; ++row) {
    for (std::int64_t col = 0; col < p.n; ++col) {
      const double scaled = alpha == 0 ? 0 : alpha * sum(row, col);
      const double old = beta == 0 ? 0 : beta * c[static_cast<std::size_t>(row * p.n + col)];
      double value = scaled + old;
      // alpha rounds once, so does beta, so does their sum; each time what came before is rounded,
      // with its error.
      const double absolute = static_cast<double>(p.k) * kTiny +
                              input_underflow(p.type, p.k, a_magnitude(row), b_magnitude(col));
      double error =
          (1 + kUnit) * (1 + kUnit) *
          (relative * std::abs(alpha) * magnitude(row, col) +
           2 * kUnit * (std::abs(scaled) + std::abs(old)) + absolute * std::abs(alpha) + 3 * kTiny);
      if (!bias.empty() || p.activation != Activation::none) {
        if (!fused) error += out.error(value, error);  // where C is stored before
        if (!bias.empty()) {
          value += bias[static_cast<std::size_t>(col)];
          error += kUnit * (std::abs(value) + error);
        }
        error = activation_error(p.activation, value, error);
        value = activated(p.activation, value);
      }
      error += out.error(value, error);
      expected.value.push_back(stored(value, out));
      expected.bound.push_back(exact ? 0 : error);
    }
  }
  return expected;
}

tile::Expected reference(const ActivateProblem& p, std::span<const double> x) {
  const tile::Rounding out = tile::rounding_of(p.type);
  tile::Expected y{{p.rows, p.cols}, {}, {}};
  for (const double each : x) {
    const double value = activated(p.activation, each);
    const double error = activation_error(p.activation, each, 0);
    y.value.push_back(value);
    y.bound.push_back(p.activation == Activation::gelu ? error + out.error(value, error) : 0);
  }
  return y;
}

ActivateBackwardReference reference(const ActivateBackwardProblem& p, std::span<const double> x,
                                    std::span<const double> dy) {
  const tile::Rounding out = tile::rounding_of(p.type);
  const auto cols = static_cast<std::size_t>(p.cols);
  std::vector<double> sum(cols), magnitude(cols), inherited(cols);
  tile::Expected dx{{p.rows, p.cols}, {}, {}}, dbias{{p.cols}, {}, {}};
  const bool is_exact = p.activation != Activation::gelu;  // dx is dy, or 0
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const Slope slope = slope_of(p.activation, x.empty() ? 0 : x[i]);
    const double value = dy[i] * slope.value;
    const double error =
        is_exact ? 0 : std::abs(dy[i]) * slope.error + kUnit * std::abs(value) + kTiny;
    dx.value.push_back(stored(value, out));
    dx.bound.push_back(is_exact ? 0 : error + out.error(value, error));
    sum[i % cols] += value, magnitude[i % cols] += std::abs(value) + error;
    inherited[i % cols] += error;
  }
  const double roundings = 4 * std::sqrt(static_cast<double>(p.rows)) * kUnit;
  for (std::size_t col = 0; col < cols; ++col) {
    const double error = inherited[col] + roundings / (1 - roundings) * magnitude[col];
    dbias.value.push_back(stored(sum[col], out));
    dbias.bound.push_back(error + out.error(sum[col], error));
  }
  return {dx, dbias};
}

}  // namespace matmul
