// The references on the CPU, with Eigen in double.
#include "reference.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/parallel.hpp"
#include "harness/rounding.hpp"

namespace layernorm {
namespace {

using Array = Eigen::ArrayXd;
using Row = Eigen::Map<const Array>;
using Result = Eigen::Map<Array>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- Errors of a kernel ----
//
// A kernel computes in fp32, where an operation gives its exact result times 1 + d, |d| <= u. Sums
// stand below as bounds of absolute errors, and factors (1 + u)^k as 1 + rounded(k).

constexpr double kUnit = tile::unit_roundoff(tile::DType::fp32);
// What a result in the range of denormals, whose digits are fewer, may be off by.
constexpr double kTiny = 0x1p-149;
// rsqrtf is off by 2 ulps (CUDA C++ Programming Guide, "Mathematical Functions"), of up to 2u each.
constexpr double kRsqrt = 4 * kUnit;

double rounded(double roundings) { return roundings * kUnit / (1 - roundings * kUnit); }

/// How many roundings the sum of n terms is worth, in whatever order they are added. One after
/// another they round n - 1 times, which for n up to 16 is less than this. Of more roundings some
/// cancel: as many in one direction as 4 sqrt(n) are four standard deviations (Higham and Mary, "A
/// new approach to probabilistic rounding error analysis", 2019). A sum in parts has fewer: sqrt(n)
/// threads of sqrt(n) terms each, whose sums a tree adds, stay below it for certain.
double additions(double n) { return 4 * std::sqrt(n); }

/// Of the mean of x - x_0: that difference, the sum, and at most three for its division by n, by
/// way of a rounded 1 / n. Welford's recurrence rounds every sum, and a quotient before that is the
/// smaller the later it comes: 3/k in step k, in all less than 3 (2 + log n) more. Merging two
/// parts takes four roundings. In parts of n / threads terms and a tree of merges it all stays
/// below 8 more than a sum of n terms.
double mean_roundings(double n) { return additions(n) + 9; }

/// Of the variance, whose terms are all positive: the sum; of a term the difference, twice because
/// it is squared, and the square, or for a merge six; three for the division; one for eps.
double variance_roundings(double n) { return additions(n) + 10; }

/// Squares sum up beyond this, and some partial result may overflow, which makes the row NaN, or 0.
constexpr double kLargestSquares = 0x1p125;

/// Mean and rstd of a row, and within which limits a kernel finds them.
struct Statistics {
  double mean = 0, mean_error = 0;           // as it is stored
  double origin = 0, from_origin_error = 0;  // of mean - origin, which y is computed from
  double rstd, rstd_low, rstd_high;

  Statistics(const ForwardProblem& p, Row x, Origin from) {
    const auto n = static_cast<double>(x.size());
    const bool layer = p.norm == Norm::layer;
    if (layer && from == Origin::first) origin = x[0];
    const double square = (x - origin).square().mean();  // R^2
    double from_mean = 0;
    if (layer) {
      mean = x.mean();
      // The numbers that are summed up are as large as the row is wide, wherever it lies.
      from_origin_error = rounded(mean_roundings(n)) * (x - origin).abs().mean() + kTiny;
      mean_error = from_origin_error + kUnit * (std::abs(mean) + from_origin_error);
    }
    const double variance = layer ? (x - mean).square().mean() : square;
    if (layer) {
      // With a mean that is off by e, the variance is too large by e^2, because the differences
      // from the exact mean add up to 0. Not so in Welford's recurrence, whose differences d_k are
      // from the mean of the numbers before. A rounding in the mean of k numbers, about u R, stays
      // in all later means, k/i of it in that of i. It moves the sum of squares by k sum 2 d_i / i
      // times itself, which by Cauchy and Schwarz is at most 2 sqrt(2 k n) sigma, for sum d_i^2 is
      // at most 2 n sigma^2. Four standard deviations of all n are 8 n sqrt(n) u R sigma: in the
      // variance 2 e sigma, if e is the error of a mean of numbers as large as R. Parts of sqrt(n)
      // numbers and a tree of merges stay below it.
      const double e = rounded(mean_roundings(n)) * std::sqrt(square) + kTiny;
      from_mean = 2 * e * std::sqrt(variance) + e * e;
    }
    const double exact = variance + p.eps;
    const double relative = rounded(variance_roundings(n));
    const double high = (exact + from_mean) * (1 + relative) + 4 * kTiny;
    // What is added to eps is not negative.
    const double low = std::max((exact - from_mean) * (1 - relative) - 4 * kTiny,
                                static_cast<double>(p.eps) * (1 - kUnit));
    rstd = 1 / std::sqrt(exact);
    rstd_low = (1 - kRsqrt) / std::sqrt(high);
    rstd_high = (1 + kRsqrt) / std::sqrt(low);
    // There is no bound: eps is 0 and the variance nothing but roundings, or the sum may overflow.
    // compare() refuses such a bound.
    const double summed = layer && from == Origin::first ? variance : square;
    if (std::isfinite(summed) && summed * n > kLargestSquares) rstd_high = kInfinity;
  }

  double rstd_error() const { return std::max(rstd_high - rstd, rstd - rstd_low); }
};

/// The error of d rstd in fp32, where d is x - mean. Before its last rounding d is off by d_error,
/// and rstd by rstd_error.
Array xhat_error(const Array& d, const Array& d_error, double rstd_error, double rstd_high) {
  return d.abs() * rstd_error + rounded(2) * (d.abs() + d_error) * rstd_high +
         (d_error + kTiny) * rstd_high + kTiny;
}

/// Adds what storing adds to the bounds, and makes infinite what is beyond the type.
void store(tile::DType type, Result value, Result bound) {
  const tile::Rounding out = tile::rounding_of(type);
  for (Eigen::Index i = 0; i < value.size(); ++i) {
    // Exact results, such as sums of nothing, are values of every type.
    if (bound[i] > 0) bound[i] += out.error(value[i], bound[i]);
    if (std::abs(value[i]) >= out.infinite) value[i] = std::copysign(kInfinity, value[i]);
  }
}

/// An absent gamma or beta.
Array or_constant(std::span<const double> values, std::int64_t cols, double constant) {
  if (values.empty()) return Array::Constant(cols, constant);
  return Row(values.data(), cols);
}

tile::Expected empty_result(std::initializer_list<std::int64_t> shape, std::size_t count) {
  return {shape, std::vector<double>(count), std::vector<double>(count)};
}

/// Calls work(row) for all rows, on all cores.
template <class Problem, class Work>
void for_rows(const Problem& p, const Work& work) {
  const auto cols = static_cast<std::size_t>(std::max<std::int64_t>(1, p.cols));
  tile::in_parts(static_cast<std::size_t>(p.rows), tile::kElementsForAThread / cols + 1,
                 [&](std::size_t begin, std::size_t end) {
                   for (std::size_t row = begin; row < end; ++row) work(row);
                 });
}

}  // namespace

ForwardReference reference(const ForwardProblem& p, std::span<const double> x,
                           std::span<const double> gamma, std::span<const double> beta,
                           Origin origin) {
  const auto rows = static_cast<std::size_t>(p.rows), cols = static_cast<std::size_t>(p.cols);
  const bool layer = p.norm == Norm::layer;
  const std::size_t means = layer ? rows : 0;
  ForwardReference result{empty_result({p.rows, p.cols}, rows * cols),
                          empty_result({static_cast<std::int64_t>(means)}, means),
                          empty_result({p.rows}, rows)};
  if (cols == 0) return result;
  const Array weight = or_constant(gamma, p.cols, 1), shift = or_constant(beta, p.cols, 0);
  for_rows(p, [&](std::size_t row) {
    const Row x_row(&x[row * cols], p.cols);
    const Statistics s(p, x_row, origin);
    if (layer) {
      result.mean.value[row] = s.mean;
      result.mean.bound[row] = s.mean_error;
    }
    result.rstd.value[row] = s.rstd;
    result.rstd.bound[row] = s.rstd_error();

    const Array d = x_row - s.mean;
    // x - x_0 is rounded, or where nothing is subtracted before it, x rstd of x rstd - mean rstd.
    const Array d_error =
        layer ? s.from_origin_error + kUnit * (x_row - s.origin).abs() : Array::Zero(p.cols).eval();
    const Array error = xhat_error(d, d_error, s.rstd_error(), s.rstd_high);
    const Array product = weight * d * s.rstd;
    Result y(&result.y.value[row * cols], p.cols), bound(&result.y.bound[row * cols], p.cols);
    y = product + shift;
    // The product with gamma rounds, and the sum.
    bound = weight.abs() * error + kTiny;
    bound += kUnit * (product.abs() + bound);
    bound += kUnit * (y.abs() + bound);
    store(p.type, y, bound);
  });
  return result;
}

BackwardReference reference(const BackwardProblem& p, std::span<const double> x,
                            std::span<const double> gamma, std::span<const double> mean,
                            std::span<const double> rstd, std::span<const double> dy) {
  const auto rows = static_cast<std::size_t>(p.rows), cols = static_cast<std::size_t>(p.cols);
  const bool layer = p.norm == Norm::layer;
  const std::size_t shifts = layer ? cols : 0;
  BackwardReference result{empty_result({p.rows, p.cols}, rows * cols),
                           empty_result({p.cols}, cols),
                           empty_result({static_cast<std::int64_t>(shifts)}, shifts)};
  if (cols == 0) return result;
  const Array weight = or_constant(gamma, p.cols, 1);
  const auto n = static_cast<double>(cols);

  // (x - mean) rstd and its error, in columns [begin, begin + count) of a row. mean and rstd are
  // exact: they are what the kernel is given.
  struct Xhat {
    Array value, error;
  };
  auto xhat_of = [&](std::size_t row, std::size_t begin, std::int64_t count) -> Xhat {
    const Array x_part = Row(&x[row * cols + begin], count);
    const double m = layer ? mean[row] : 0;
    const Array d = x_part - m;
    return {d * rstd[row], xhat_error(d, Array::Zero(count), 0, std::abs(rstd[row]))};
  };

  for_rows(p, [&](std::size_t row) {
    const Xhat xhat = xhat_of(row, 0, p.cols);
    const Array magnitude = xhat.value.abs();
    const Array w = weight * Row(&dy[row * cols], p.cols);
    // The means of w and of w xhat: the product with gamma, that with xhat, the additions, and at
    // most three roundings for the division.
    const double sums = additions(n);
    const double w_mean = layer ? w.mean() : 0;
    const double w_error = layer ? rounded(sums + 4) * w.abs().mean() + 2 * kTiny : 0;
    const double wx_mean = (w * xhat.value).mean();
    const double wx_error =
        rounded(sums + 5) * (w.abs() * (magnitude + xhat.error)).mean() +
        (w.abs() * xhat.error + kTiny * (1 + magnitude + std::abs(rstd[row]))).mean() + 2 * kTiny;
    // w - mean - xhat mean: errors that are there already, then w's own rounding or that of the
    // product, those of both subtractions, and of the product with rstd.
    const Array inherited =
        w_error + magnitude * wx_error + xhat.error * (std::abs(wx_mean) + wx_error) + 3 * kTiny;
    const Array parts = w.abs() + std::abs(w_mean) + magnitude * std::abs(wx_mean) + inherited;
    Result dx(&result.dx.value[row * cols], p.cols), bound(&result.dx.bound[row * cols], p.cols);
    dx = rstd[row] * (w - w_mean - xhat.value * wx_mean);
    bound = std::abs(rstd[row]) * (inherited + rounded(4) * parts) + kTiny;
    store(p.type, dx, bound);
  });

  // Sums over all rows. Each core has columns of its own.
  const double sums = additions(static_cast<double>(rows));
  auto sum_columns = [&](std::size_t begin, std::size_t end) {
    const auto count = static_cast<std::int64_t>(end - begin);
    Array dgamma = Array::Zero(count), dbeta = dgamma;
    Array dgamma_magnitude = dgamma, dgamma_error = dgamma, dbeta_magnitude = dgamma;
    for (std::size_t row = 0; row < rows; ++row) {
      const Xhat xhat = xhat_of(row, begin, count);
      const Row dy_part(&dy[row * cols + begin], count);
      dgamma += dy_part * xhat.value;
      dgamma_magnitude += dy_part.abs() * (xhat.value.abs() + xhat.error);
      dgamma_error += dy_part.abs() * xhat.error + kTiny;
      dbeta += dy_part;
      dbeta_magnitude += dy_part.abs();
    }
    auto put = [&](tile::Expected& to, const Array& value, const Array& error) {
      Result stored(&to.value[begin], count), bound(&to.bound[begin], count);
      stored = value;
      bound = error;
      store(p.type, stored, bound);
    };
    // atomicAdd in global memory takes a subnormal number for 0, and gives 0 for one (PTX ISA,
    // "red"): of each addition a term and a result.
    const double flushed = 2 * static_cast<double>(rows) * 0x1p-126;
    // The product with xhat, and the additions.
    put(result.dgamma, dgamma, rounded(sums + 1) * dgamma_magnitude + dgamma_error + flushed);
    if (layer) put(result.dbeta, dbeta, rounded(sums) * dbeta_magnitude + flushed);
  };
  tile::in_parts(cols, tile::kElementsForAThread / std::max<std::size_t>(1, rows) + 1, sum_columns);
  return result;
}

}  // namespace layernorm
