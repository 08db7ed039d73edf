// Chapter 04's tests: every step on every type, in values and properties.
#include <algorithm>
#include <numeric>

#include "test_support.hpp"

namespace layernorm {
namespace {

// Large ones scaled down by powers of two until none is above `most`.
Values tamed(Values values, double most) {
  for (double& x : values) {
    while (std::abs(x) > most) x /= 2;
  }
  return values;
}

double dot(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("rows far from zero, where the mean hides the variance") {
    // kappa is mean |x| / sigma: 100 and 1,000.
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      for (const double center : {100.0, -1000.0, 1000.0}) {
        for (const std::int64_t cols :
             lengths_for(step, type, {16, 33, 64, 257, 264, 1000, 4096, 8200})) {
          const auto p = problem_for(step, type, cols < 1000 ? 50 : 2, cols);
          if (!cases.take(step, p)) continue;
          Inputs in = normal(p);
          in.x = tile::normal(p.rows * p.cols, type, 11, center);
          check_step(step, p, with_statistics(p, std::move(in)));
        }
      }
    });
  }

  TEST_CASE("a row of one element, and rows of equal elements") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      for (const std::int64_t cols : lengths_for(step, type, {1, 2, 7, 64, 301, 1000, 1032})) {
        for (const Norm norm : kNorms) {
          const auto p = problem_for(step, type, 8, cols, norm);
          if (!cases.take(step, p)) continue;
          Inputs in = normal(p);
          const Values constants =
              tile::rounded(Values{0.0, 0.1, -1.0, 1e-3, 1000.0, -12345.0, 1e-30, 3.0}, type);
          for (std::size_t i = 0; i < in.x.size(); ++i) {
            in.x[i] = constants[i / static_cast<std::size_t>(cols)];
          }
          in = with_statistics(p, std::move(in));
          check_step(step, p, in);
          if constexpr (kIsForward<std::decay_t<decltype(p)>>) {
            // One element is its own mean, whichever way it is computed.
            if (cols > 1 || norm == Norm::rms) continue;
            const Outputs out = run(step, p, in);
            for (std::size_t i = 0; i < in.x.size(); ++i) {
              CHECK(out.matrix[i] == in.beta[0]);
              CHECK(out.mean[i] == in.x[i]);
            }
          }
        }
      }
    });
  }

  TEST_CASE("large rows of equal elements, and of elements that hardly differ") {
    // sum x / n is not x if the sum or 1 / n rounds, and one digit of 30,000 makes an xhat of 0.5.
    for_each_step(
        [](const auto& step, DType type) {
          for (const std::int64_t cols :
               lengths_for(step, type, {3, 33, 64, 1000, 1001, 1032, 4097, 10'008})) {
            const auto p = problem_for(step, type, 6, cols);
            if (!takes(step, p)) continue;
            Inputs in = normal(p);
            const Values equal = tile::rounded(Values{3e4, -1e4 / 3, 7e4 / 3}, type);
            for (std::size_t i = 0; i < in.x.size(); ++i) {
              const std::size_t row = i / static_cast<std::size_t>(cols);
              in.x[i] = equal[row % 3];
              // In the last three rows one element in 13 is the type's next number.
              if (row >= 3 && i % 13 == 5) in.x[i] *= 1 - 1.5 * tile::unit_roundoff(type);
            }
            tile::round_to(in.x, type);
            check_step(step, p, with_statistics(p, std::move(in)));
          }
        },
        OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("rows of equal elements as large as the type has") {
    for_each_step(
        [](const auto& step, DType type) {
          using Problem = std::decay_t<decltype(problem_for(step, type, 0, 0))>;
          const double largest = type == DType::fp16   ? 0x1.ffcp15
                                 : type == DType::bf16 ? 0x1.fep127
                                                       : 0x1.fffffep127;
          for (const std::int64_t cols : lengths_for(step, type, {1, 3, 77, 1000, 1003, 1032})) {
            const Problem p = problem_for(step, type, 3, cols);
            if (!takes(step, p)) continue;
            Inputs in = normal(p);
            for (double& x : in.x) x = std::copysign(largest, in.x[0]);
            in = with_statistics(p, std::move(in));
            check_step(step, p, in);
            const Outputs out = run(step, p, in);
            if constexpr (kIsForward<Problem>) {
              CHECK(out.mean == Values(3, in.x[0]));
              for (std::size_t i = 0; i < out.matrix.size(); ++i) {
                CHECK(out.matrix[i] == in.beta[i % in.beta.size()]);
              }
            } else {
              CHECK(out.dgamma == Values(in.gamma.size(), 0.0));
            }
          }
        },
        OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("eps of 0, and eps greater than the variance") {
    for_each_step([](const auto& step, DType type) {
      using Problem = std::decay_t<decltype(problem_for(step, type, 0, 0))>;
      for (const float eps : {0.f, 1e-12f, 0.1f, 1e10f}) {
        for (const Norm norm : kNorms) {
          for (const std::int64_t cols : lengths_for(step, type, {72, 77})) {
            Problem p = problem_for(step, type, rows_for(step, 12), cols, norm);
            if (!takes(step, p)) continue;
            if constexpr (kIsForward<Problem>) p.eps = eps;
            check_step(step, p, with_statistics(p, normal(p), eps));
          }
        }
      }
      if constexpr (kIsForward<Problem>) {
        // 0 / 0 in every element. Zeros have a variance of 0 however they are summed up.
        for (const Norm norm : kNorms) {
          for (const std::int64_t cols : lengths_for(step, type, {40})) {
            const ForwardProblem p = with_eps(problem_for(step, type, 3, cols, norm), 0);
            Inputs in = normal(p);
            std::fill_n(in.x.begin() + cols, cols, 0.0);
            const ForwardReference expected = reference(p, in.x, in.gamma, in.beta);
            CHECK(expected.rstd.value[1] == kInfinity);
            CHECK(std::isnan(expected.y.value[static_cast<std::size_t>(cols)]));
            check_step(step, p, in);
          }
        }
      }
    });
  }

  TEST_CASE("NaN and infinity in x stay in their row, and in the columns' sums") {
    for_each_step([](const auto& step, DType type) {
      for (const std::int64_t cols : lengths_for(step, type, {67, 64, 1032})) {
        for (const Norm norm : kNorms) {
          const auto p = problem_for(step, type, 9, cols, norm);
          if (!takes(step, p)) continue;
          Inputs in = normal(p);
          auto x = [&](std::int64_t row, std::int64_t col) -> double& {
            return in.x[static_cast<std::size_t>(row * cols + col)];
          };
          x(1, 5) = kNaN;
          x(3, 0) = kInfinity;
          x(5, cols - 1) = -kInfinity;
          x(7, 2) = kInfinity;
          x(7, 3) = -kInfinity;
          // First with the statistics of the rows as they were, so that only some columns see it.
          check_step(step, p, in);
          if (kIsForward<std::decay_t<decltype(p)>>) continue;
          check_step(step, p, with_statistics(p, in));
        }
      }
    });
  }

  TEST_CASE("NaN and infinity in dy, gamma and beta") {
    for_each_step([](const auto& step, DType type) {
      for (const std::int64_t cols : lengths_for(step, type, {67, 72})) {
        for (const double bad : {kNaN, kInfinity, -kInfinity}) {
          const auto p = problem_for(step, type, 9, cols);
          if (!takes(step, p)) continue;
          Inputs in = normal(p);
          in.gamma[7] = bad;
          check_step(step, p, in);
          in = normal(p);
          if (kIsForward<std::decay_t<decltype(p)>>) {
            in.beta[66] = bad;
          } else {
            in.dy[3 * static_cast<std::size_t>(cols) + 11] = bad;
          }
          check_step(step, p, in);
        }
      }
    });
  }

  TEST_CASE("zeros, denormals and large numbers") {
    for_each_step([](const auto& step, DType type) {
      // Squares must not overflow, nor fp16 where rstd is the root of 1 / eps.
      const double most_x = 0x1p56, most_dy = type == DType::fp16 ? 16 : 0x1p50;
      for (const std::int64_t cols : lengths_for(step, type, {1, 2, 5, 31, 64})) {
        for (const Norm norm : kNorms) {
          const auto p = problem_for(step, type, rows_for(step, 31), cols, norm);
          if (!takes(step, p)) continue;
          Inputs in = normal(p);
          in.x = tamed(tile::adversarial_finite(p.rows * cols, type), most_x);
          if (!in.dy.empty()) {
            in.dy = tamed(tile::adversarial_finite(p.rows * cols, type), most_dy);
            std::ranges::reverse(in.dy);
          }
          check_step(step, p, with_statistics(p, std::move(in)));
        }
      }
    });
  }

  TEST_CASE("results that are too large for the type are infinite") {
    for_each_step(
        [](const auto& step, DType type) {
          if (type != DType::fp16) return;
          for (const std::int64_t length : lengths_for(step, type, {64})) {
            const std::int64_t cols = length + length % 2;  // each column has one number
            // The mean of 1 and -1 is 0, their rstd nearly 1. dy is all ones, but for its first
            // row.
            const auto p = problem_for(step, type, 100, cols);
            Inputs in = normal(p);
            const auto n = static_cast<std::size_t>(cols);
            for (std::size_t i = 0; i < in.x.size(); ++i) in.x[i] = i % 2 ? -1 : 1;
            in.gamma.assign(n, 60000.0);
            if constexpr (kIsForward<std::decay_t<decltype(p)>>) {
              in.beta.assign(n, 30000.0);
            } else {
              in.dy.assign(in.dy.size(), 1000.0);
              in = with_statistics(p, std::move(in));
              const BackwardReference expected =
                  reference(p, in.x, in.gamma, in.mean, in.rstd, in.dy);
              CHECK(expected.dgamma.value[1] == -kInfinity);
              CHECK(expected.dbeta.value[0] == kInfinity);
            }
            check_step(step, p, in);
          }
        },
        OwnKernel::need_not_run, tile::Types::all);
  }

  TEST_CASE("a gradient of zero gives zeros") {
    tile::for_each_step(kTestedBackwardLadder, [](const auto& step, DType type) {
      for (const std::int64_t cols : lengths_for(step, type, {45, 1032})) {
        for (const Norm norm : kNorms) {
          const BackwardProblem p = problem_for(step, type, rows_for(step, 40), cols, norm);
          if (!takes(step, p)) continue;
          Inputs in = normal(p);
          in.dy.assign(in.dy.size(), 0.0);
          const Outputs out = run(step, p, in);
          for (const Values* values : {&out.matrix, &out.dgamma, &out.dbeta}) {
            CHECK(std::ranges::all_of(*values, [](double x) { return x == 0; }));
          }
        }
      }
    });
  }

  TEST_CASE("LayerNorm's gradient has no mean, and is at right angles to xhat") {
    // y does not change when x is shifted, nor for eps = 0 when it is stretched.
    tile::for_each_step(kTestedBackwardLadder, [](const auto& step, DType type) {
      CAPTURE(step.name);
      for (const std::int64_t cols : lengths_for(step, type, {33, 600})) {
        const BackwardProblem p = problem_for(step, type, 5, cols);
        if (!takes(step, p)) continue;
        const Inputs in = with_statistics(p, normal(p), 0);
        const Outputs out = run(step, p, in);
        const BackwardReference expected = reference(p, in.x, in.gamma, in.mean, in.rstd, in.dy);
        for (std::int64_t row = 0; row < p.rows; ++row) {
          const auto r = static_cast<std::size_t>(row);
          double sum = 0, product = 0, magnitude = 0, sum_bound = 0, product_bound = 0;
          for (std::int64_t col = 0; col < cols; ++col) {
            const auto i = static_cast<std::size_t>(row * cols + col);
            const double xhat = (in.x[i] - in.mean[r]) * in.rstd[r];
            sum += out.matrix[i];
            product += out.matrix[i] * xhat;
            magnitude += std::abs(out.matrix[i]);
            // mean and rstd are rounded: xhat has a mean of up to 2^-24 and a little more, and a
            // mean square that far from 1. The kernel's own roundings are as many and larger.
            sum_bound += 2 * expected.dx.bound[i];
            product_bound += 2 * expected.dx.bound[i] * (1 + std::abs(xhat));
          }
          CHECK(std::abs(sum) <= sum_bound);
          CHECK(std::abs(product) <= product_bound);
          CHECK(sum_bound < 0.1 * magnitude);
        }
      }
    });
  }

  TEST_CASE("the gradients are those of the forward pass: <dy, J v> = <J^T dy, v>") {
    tile::for_each_step(kTestedBackwardLadder, [](const auto& step, DType type) {
      CAPTURE(step.name);
      for (const std::int64_t cols : lengths_for(step, type, {45, 56})) {
        for (const Norm norm : kNorms) {
          const BackwardProblem p = problem_for(step, type, rows_for(step, 21), cols, norm);
          if (!takes(step, p)) continue;
          const Inputs in = normal(p);
          const Outputs out = run(step, p, in);
          const BackwardReference expected = reference(p, in.x, in.gamma, in.mean, in.rstd, in.dy);
          // J v by central differences of the forward pass in double, x by x + h v and so on.
          const bool layer = norm == Norm::layer;
          const Values vx = tile::normal(p.rows * p.cols, DType::fp64, 21),
                       vgamma = tile::normal(p.cols, DType::fp64, 22),
                       vbeta = tile::normal(layer ? p.cols : 0, DType::fp64, 23);
          const Values beta(vbeta.size(), 0.5);
          constexpr double kH = 6e-6;
          auto moved = [&](double h) {
            auto along = [h](Values values, const Values& v) {
              for (std::size_t i = 0; i < v.size(); ++i) values[i] += h * v[i];
              return values;
            };
            return reference(ForwardProblem{DType::fp64, p.rows, p.cols, norm}, along(in.x, vx),
                             along(in.gamma, vgamma), along(beta, vbeta))
                .y.value;
          };
          const Values above = moved(kH), below = moved(-kH);
          double forward = 0;
          for (std::size_t i = 0; i < above.size(); ++i) {
            forward += in.dy[i] * (above[i] - below[i]) / (2 * kH);
          }
          double backward = dot(out.matrix, vx) + dot(out.dgamma, vgamma);
          if (layer) backward += dot(out.dbeta, vbeta);
          double bound = 0;
          auto add = [&bound](const Expected& e, const Values& v) {
            for (std::size_t i = 0; i < v.size(); ++i) bound += e.bound[i] * std::abs(v[i]);
          };
          add(expected.dx, vx), add(expected.dgamma, vgamma);
          if (layer) add(expected.dbeta, vbeta);
          // mean and rstd are rounded once, the kernel rounds more often. The differences are good
          // to some 1e-9.
          CHECK(std::abs(forward - backward) <= 2 * bound + 1e-7);
          if (cols < 100) CHECK(std::abs(forward) > 5 * bound);
        }
      }
    });
  }
}

}  // namespace layernorm
