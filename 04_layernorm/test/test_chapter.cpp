// Chapter 04's tests: the reference, and the table of steps.
#include <algorithm>
#include <numeric>

#include "test_support.hpp"

namespace layernorm {
namespace {

constexpr double kUnit = 0x1p-24;

// doctest's Approx takes all small numbers for the same.
bool near(double x, double y) { return std::abs(x - y) <= 1e-3 * y; }

// The definition, element by element.
struct Definition {
  Values y, mean, rstd;
};
Definition define(const Problem& p, const Inputs& in) {
  Definition result;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    auto x = [&](std::int64_t col) { return in.x[static_cast<std::size_t>(row * p.cols + col)]; };
    const auto n = static_cast<double>(p.cols);
    double mean = 0, variance = 0;
    if (p.norm == Norm::layer) {
      for (std::int64_t col = 0; col < p.cols; ++col) mean += x(col) / n;
      result.mean.push_back(mean);
    }
    for (std::int64_t col = 0; col < p.cols; ++col) {
      variance += (x(col) - mean) * (x(col) - mean) / n;
    }
    result.rstd.push_back(1 / std::sqrt(variance + p.eps));
    for (std::int64_t col = 0; col < p.cols; ++col) {
      const auto i = static_cast<std::size_t>(col);
      result.y.push_back((in.gamma.empty() ? 1 : in.gamma[i]) * (x(col) - mean) *
                             result.rstd.back() +
                         (in.beta.empty() ? 0 : in.beta[i]));
    }
  }
  return result;
}

void check_near(const Values& got, const Values& wanted, double most) {
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - wanted[i]) <= most * (1 + std::abs(wanted[i])));
  }
}

// Central differences of the loss sum dy y.
Values differences(const Problem& p, const Inputs& in, Values Inputs::*of) {
  constexpr double kH = 6e-6;  // balances the third derivative and the rounding of doubles
  const Problem forward = toward(p, Direction::forward);
  auto loss = [&](const Inputs& at) {
    const Values y = reference(forward, at.x, at.gamma, at.beta).y.value;
    return std::inner_product(y.begin(), y.end(), in.dy.begin(), 0.0);
  };
  Values result;
  for (std::size_t i = 0; i < (in.*of).size(); ++i) {
    Inputs above = in, below = in;
    (above.*of)[i] += kH;
    (below.*of)[i] -= kH;
    result.push_back((loss(above) - loss(below)) / (2 * kH));
  }
  return result;
}

// Statistics as doubles.
Inputs with_exact_statistics(const Problem& p, Inputs in) {
  const ForwardReference found = reference(p, in.x, {}, {});
  in.mean = found.mean.value;
  in.rstd = found.rstd.value;
  return in;
}

BackwardReference backward_of(const Problem& p, const Inputs& in) {
  return backward_reference(p, in.x, in.gamma, in.mean, in.rstd, in.dy);
}

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("the reference is the definition") {
    for (const Norm norm : kNorms) {
      for (const std::int64_t cols : {1, 2, 7, 64}) {
        for (const bool affine : {true, false}) {
          const Problem p = with_eps(plain(DType::fp64, 5, cols, norm), 0.25f);
          const Inputs in = normal(p, affine, affine);
          const Definition wanted = define(p, in);
          const ForwardReference got = reference(p, in.x, in.gamma, in.beta);
          check_near(got.y.value, wanted.y, 1e-14);
          check_near(got.mean.value, wanted.mean, 1e-14);
          check_near(got.rstd.value, wanted.rstd, 1e-14);
          CHECK(got.y.shape == std::vector<std::int64_t>{5, cols});
          CHECK(got.rstd.shape == std::vector<std::int64_t>{5});
        }
      }
    }
  }

  TEST_CASE("the numbers of a row worked out by hand") {
    // Mean 2, variance 2; and for RMSNorm a mean square of 6.
    const Values x{0, 2, 4, 1, 3}, gamma{1, 2, 3, 4, 5}, beta{1, 0, 0, 0, -1};
    Problem p = with_eps(plain(DType::fp32, 1, 5), 2);
    ForwardReference got = reference(p, x, gamma, beta);
    CHECK(got.mean.value == Values{2});
    CHECK(got.rstd.value == Values{0.5});
    CHECK(got.y.value == Values{0, 0, 3, -2, 1.5});
    p.norm = Norm::rms;
    p.eps = 3;
    got = reference(p, x, gamma, {});
    CHECK(got.mean.value.empty());
    check_near(got.rstd.value, {1.0 / 3}, 1e-15);
    check_near(got.y.value, {0, 4.0 / 3, 4, 4.0 / 3, 5}, 1e-15);
  }

  TEST_CASE("the gradients are the derivatives") {
    for (const Norm norm : kNorms) {
      for (const float eps : {1e-5f, 0.5f}) {
        for (const std::int64_t cols : {1, 2, 9}) {
          const Problem p =
              with_eps(toward(plain(DType::fp64, 4, cols, norm), Direction::backward), eps);
          // A lone element is its own mean: LayerNorm does not depend on it. But its third
          // derivative is large where eps is small.
          if (cols == 1 && norm == Norm::layer && eps < 0.1f) continue;
          Inputs in = with_exact_statistics(p, normal(p));
          in.beta = Values(norm == Norm::layer ? static_cast<std::size_t>(cols) : 0, 0.5);
          const BackwardReference got = backward_of(p, in);
          check_near(got.dx.value, differences(p, in, &Inputs::x), 1e-7);
          check_near(got.dgamma.value, differences(p, in, &Inputs::gamma), 1e-7);
          check_near(got.dbeta.value, differences(p, in, &Inputs::beta), 1e-7);
        }
      }
    }
  }

  TEST_CASE("without gamma the gradient is that of a gamma of ones") {
    for (const Norm norm : kNorms) {
      const Problem p = toward(plain(DType::fp64, 4, 9, norm), Direction::backward);
      Inputs in = with_exact_statistics(p, normal(p));
      in.gamma.assign(9, 1.0);
      const BackwardReference ones = backward_of(p, in);
      in.gamma.clear();
      const BackwardReference none = backward_of(p, in);
      CHECK(none.dx.value == ones.dx.value);
      CHECK(none.dgamma.value == ones.dgamma.value);
      CHECK(none.dbeta.value == ones.dbeta.value);
    }
  }

  TEST_CASE("LayerNorm's gradient has no mean, and with eps 0 is at right angles to xhat") {
    const Problem p = with_eps(toward(plain(DType::fp64, 3, 50), Direction::backward), 0);
    const Inputs in = with_exact_statistics(p, normal(p));
    const Values dx = backward_of(p, in).dx.value;
    for (std::size_t row = 0; row < 3; ++row) {
      double sum = 0, product = 0;
      for (std::size_t i = row * 50; i < (row + 1) * 50; ++i) {
        sum += dx[i];
        product += dx[i] * (in.x[i] - in.mean[row]) * in.rstd[row];
      }
      CHECK(std::abs(sum) < 1e-12);
      CHECK(std::abs(product) < 1e-12);
    }
  }

  TEST_CASE("gradients with respect to gamma and beta are sums over all rows") {
    for (const Norm norm : kNorms) {
      const Problem p = toward(plain(DType::fp64, 37, 5, norm), Direction::backward);
      const Inputs in = with_exact_statistics(p, normal(p));
      const BackwardReference all = backward_of(p, in);
      Values dgamma(5, 0.0), dbeta(norm == Norm::layer ? 5 : 0, 0.0);
      for (std::size_t row = 0; row < 37; ++row) {
        for (std::size_t col = 0; col < 5; ++col) {
          const double mean = norm == Norm::layer ? in.mean[row] : 0, dy = in.dy[row * 5 + col];
          dgamma[col] += dy * (in.x[row * 5 + col] - mean) * in.rstd[row];
          if (norm == Norm::layer) dbeta[col] += dy;
        }
      }
      check_near(all.dgamma.value, dgamma, 1e-13);
      check_near(all.dbeta.value, dbeta, 1e-13);
    }
    const Problem none = toward(plain(DType::fp32, 0, 3), Direction::backward);
    const BackwardReference zero = backward_reference(none, {}, {}, {}, {}, {});
    CHECK(zero.dgamma.value == Values(3, 0.0));
    CHECK(zero.dgamma.bound == Values(3, 0.0));
    CHECK(zero.dbeta.value == Values(3, 0.0));
    CHECK(zero.dbeta.bound == Values(3, 0.0));
  }

  // ---- Bounds ----

  TEST_CASE("the bounds of the forward pass are what their derivation says") {
    // A row of +1 and -1, 100 of them, shifted by 50: sigma is 1, R nearly 50, mean |x| is 50.
    const Problem p = with_eps(plain(DType::fp32, 1, 100), 0);
    Values x;
    for (int i = 0; i < 100; ++i) x.push_back(i % 2 ? 51 : 49);
    const ForwardReference got = reference(p, x, {}, {});
    const double roundings = 40 + 8, mean = roundings * kUnit * 50;
    CHECK(near(got.mean.bound[0], mean));
    const double variance = 2 * roundings * kUnit * std::sqrt(2501.0) + (40 + 10) * kUnit;
    const double rstd = variance / 2 + 4 * kUnit;
    CHECK(near(got.rstd.bound[0], rstd));
    // xhat is 1: rstd, the mean, two roundings of xhat and of x rstd - mean rstd; gamma; beta.
    const double y = rstd + mean + 2 * kUnit + 101 * kUnit + 2 * kUnit;
    CHECK(near(got.y.bound[1], y));

    Problem rms = p;
    rms.norm = Norm::rms;
    const ForwardReference without = reference(rms, x, {}, {});
    const double rms_rstd = (50 * kUnit / 2 + 4 * kUnit) / std::sqrt(2501.0);
    CHECK(near(without.rstd.bound[0], rms_rstd));
    const double xhat = 51 / std::sqrt(2501.0);
    CHECK(near(without.y.bound[1], xhat * (50 / 2.0 + 4 + 2 + 2) * kUnit));
  }

  TEST_CASE("the bounds of the backward pass are what their derivation says") {
    // 64 columns of xhat = 1 or -1, from mean 0; w is 1 or -2 in pairs of columns.
    const Problem p = toward(plain(DType::fp32, 100, 64), Direction::backward);
    Inputs in;
    for (int i = 0; i < 6400; ++i) {
      in.x.push_back(i % 2 ? 2 : -2);
      in.dy.push_back(i % 4 < 2 ? 1 : -2);
    }
    in.mean.assign(100, 0.0);
    in.rstd.assign(100, 0.5);
    const BackwardReference got = backward_of(p, in);
    // xhat: two roundings and one in x rstd.
    const double xhat = 3 * kUnit;
    // mean w is -1/2, mean |w| is 3/2; mean w xhat is 0, mean |w xhat| is 3/2.
    const double w_mean = (32 + 4) * kUnit * 1.5, wx_mean = (32 + 5) * kUnit * 1.5 + 1.5 * xhat;
    const double parts = 1 + 0.5 + 0;
    CHECK(near(got.dx.bound[0], 0.5 * (w_mean + wx_mean + 4 * kUnit * parts)));
    // Of 100 terms 1 or 2.
    CHECK(near(got.dgamma.bound[0], (40 + 1) * kUnit * 100 + 100 * xhat));
    CHECK(near(got.dbeta.bound[0], 40 * kUnit * 100));
    CHECK(near(got.dbeta.bound[2], 40 * kUnit * 200));
  }

  TEST_CASE("results are rounded to their type, statistics are not") {
    const Values x{49, 51};
    const Problem p32 = with_eps(plain(DType::fp32, 1, 2), 0);
    for (const DType type : {DType::fp16, DType::bf16}) {
      Problem p = p32;
      p.type = type;
      const ForwardReference wide = reference(p32, x, {}, {}), narrow = reference(p, x, {}, {});
      CHECK(narrow.mean.bound == wide.mean.bound);
      CHECK(narrow.rstd.bound == wide.rstd.bound);
      const double more = narrow.y.bound[0] - wide.y.bound[0];
      CHECK(near(more, tile::unit_roundoff(type)));
    }
  }

  TEST_CASE("where nothing is certain there is no bound, and no result passes") {
    // A variance that is nothing but roundings of the mean.
    const Problem p = with_eps(plain(DType::fp32, 1, 3), 0);
    const float third = 1.f / 3;
    const double next = std::nextafter(third, 1.f);
    ForwardReference got = reference(p, Values{third, third, next}, {}, {});
    CHECK(!std::isfinite(got.y.bound[0]));
    CHECK(!std::isfinite(got.rstd.bound[0]));
    CHECK(!tile::compare("y", got.y.value, got.y).ok());
    // Squares that overflow.
    got = reference(with_eps(p, 1), Values{1e20, 2e20, 3e20}, {}, {});
    CHECK(!tile::compare("y", got.y.value, got.y).ok());
  }

  TEST_CASE("NaN and infinities in the reference") {
    const Values beta{1, 2, 3};
    for (const double bad : {kNaN, kInfinity, -kInfinity}) {
      const Values x{1, bad, 2, 1, 2, 4};
      const ForwardReference layer = reference(plain(DType::fp32, 2, 3), x, {}, beta);
      for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(layer.y.value[i]) == (i < 3));
      CHECK(!std::isfinite(layer.mean.value[0]));
      CHECK(std::isnan(layer.rstd.value[0]));
      CHECK(std::isfinite(layer.rstd.value[1]));
      const ForwardReference rms = reference(plain(DType::fp32, 2, 3, Norm::rms), x, {}, {});
      CHECK(std::isnan(rms.y.value[1]));
      if (std::isnan(bad)) continue;
      CHECK(rms.rstd.value[0] == 0);
      CHECK(rms.y.value[0] == 0);
      CHECK(rms.rstd.bound[0] == 0);
    }
  }

  TEST_CASE("the workspace is that of any backward pass") {
    for (const DType type : {DType::fp32, DType::fp16, DType::bf16}) {
      for (const std::int64_t rows : {0, 1, 1000, 100'000}) {
        for (const std::int64_t cols : {0, 1, 70, 10'000}) {
          const Problem p = toward(plain(type, rows, cols), Direction::backward);
          CHECK(workspace_bytes(p) >= 0);
          CHECK(workspace_bytes(toward(p, Direction::forward)) == 0);
        }
      }
    }
    // What validate() refuses may get any number, but gets one.
    static_cast<void>(workspace_bytes(toward(plain(DType::fp32, -1, -1), Direction::backward)));
    static_cast<void>(
        workspace_bytes(toward(plain(DType::fp32, INT64_MAX, INT64_MAX), Direction::backward)));
  }

  TEST_CASE("every step has a name, an idea, all types and a direction") {
    for (const Step& step : kSteps) {
      CAPTURE(step.name);
      CHECK(!step.name.empty());
      CHECK(!step.idea.empty());
      CHECK(tile::listed(step.types) == "fp32, fp16, bf16");
      CHECK(std::ranges::any_of(kDirections, [&](Direction direction) {
        return step.supports(toward(plain(DType::fp32, 1, 1), direction)).ok();
      }));
    }
    for (const Direction direction : kDirections) {
      CHECK(std::ranges::any_of(kSteps, [&](const Step& step) {
        return step.supports(toward(plain(DType::fp32, 1, 1), direction)).ok();
      }));
    }
  }
}

}  // namespace layernorm
