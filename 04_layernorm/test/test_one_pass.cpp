// Chapter 04's tests: where the variance in one pass, as the mean of the squares less the square of
// the mean, is lost to rounding. No step's is (test_values.cpp).
// `04_layernorm_test --test-case="one pass*" --success` prints how far off it is, in parts of the
// bound.
#include <algorithm>

#include "test_support.hpp"

namespace layernorm {
namespace {

constexpr double kKappas[] = {1, 10, 100, 1000, 10'000};
constexpr std::int64_t kOnePassCols[] = {16, 33, 257, 1000, 4096};

// Normal rows around `kappa`, so that mean / sigma is about kappa.
struct Rows {
  ForwardProblem p;
  Inputs in;
  ForwardReference expected;

  Rows(std::int64_t cols, double kappa) : p{DType::fp32, cols < 1000 ? 50 : 10, cols} {
    in.x = tile::normal(p.rows * cols, DType::fp32, 11, kappa);
    expected = reference(p, in.x, in.gamma, in.beta);
  }
};

// The sum in fp32 as `threads` threads of a block find it: each adds up its own numbers, and a tree
// the threads' sums. With one thread: plainly one after another.
float sum_of(const std::vector<float>& values, std::size_t threads) {
  std::vector<float> sums(threads, 0.f);
  for (std::size_t i = 0; i < values.size(); ++i) sums[i % threads] += values[i];
  for (std::size_t distance = threads / 2; distance > 0; distance /= 2) {
    for (std::size_t i = 0; i < distance; ++i) sums[i] += sums[i + distance];
  }
  return sums[0];
}

// The rstd of each row from sum x^2 / n - mean^2, all in fp32.
Values one_pass(const Rows& rows, std::size_t threads) {
  Values rstd;
  const auto cols = static_cast<std::size_t>(rows.p.cols);
  for (std::size_t first = 0; first < rows.in.x.size(); first += cols) {
    std::vector<float> x, squares;  // squares that lie in memory are rounded, on any machine
    for (std::size_t i = first; i < first + cols; ++i) {
      x.push_back(static_cast<float>(rows.in.x[i]));
      squares.push_back(x.back() * x.back());
    }
    const auto n = static_cast<float>(cols);
    const float mean = sum_of(x, threads) / n;
    const float variance = sum_of(squares, threads) / n - mean * mean;
    rstd.push_back(1 / std::sqrt(variance + rows.p.eps));
  }
  return rstd;
}

}  // namespace

TEST_SUITE("chapter") {
  // The bound of rstd has room for kappa u 4 sqrt(n), with n = cols: what Welford's recurrence may
  // be off by. One pass is off by some kappa^2 u of the variance, and more the longer its sums are.
  // Where a block adds up thousands of numbers in a tree, that may be within the bound at kappa =
  // 100, and is no longer at 1,000.
  TEST_CASE("one pass: the bound refuses it where rows lie far from zero") {
    for (const double kappa : kKappas) {
      for (const std::int64_t cols : kOnePassCols) {
        CAPTURE(kappa);
        CAPTURE(cols);
        const Rows rows(cols, kappa);
        for (const std::size_t threads : {1, 256}) {
          CAPTURE(threads);
          const Values rstd = one_pass(rows, threads);
          const Comparison result = tile::compare("rstd", rstd, rows.expected.rstd);
          CAPTURE(result.worst_ratio);
          const bool in_a_tree = threads > 1;
          if (kappa <= 1) CHECK(result.ok());
          if (kappa == 100 && (cols <= 257 || !in_a_tree)) CHECK(result.mismatches > 0);
          if (kappa >= 1000) CHECK(result.mismatches > 0);
          // In the end the difference is nothing but rounding, and negative as often as not.
          const bool negative = std::ranges::any_of(rstd, [](double x) { return std::isnan(x); });
          if (kappa >= 10'000) CHECK(negative);
        }
      }
    }
  }
}

}  // namespace layernorm
