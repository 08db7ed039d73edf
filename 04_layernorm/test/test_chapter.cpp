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
Definition define(const ForwardProblem& p, const Inputs& in) {
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
Values differences(const ForwardProblem& p, const Inputs& in, Values Inputs::*of) {
  constexpr double kH = 6e-6;  // balances the third derivative and the rounding of doubles
  auto loss = [&](const Inputs& at) {
    const Values y = reference(p, at.x, at.gamma, at.beta).y.value;
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
Inputs with_exact_statistics(const BackwardProblem& p, Inputs in, float eps = 1e-5f) {
  const ForwardReference found = reference(forward_of(p, eps), in.x, {}, {});
  in.mean = found.mean.value;
  in.rstd = found.rstd.value;
  return in;
}

BackwardReference backward_of(const BackwardProblem& p, const Inputs& in) {
  return reference(p, in.x, in.gamma, in.mean, in.rstd, in.dy);
}

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("the reference is the definition") {
    for (const Norm norm : kNorms) {
      for (const std::int64_t cols : {1, 2, 7, 64}) {
        for (const bool affine : {true, false}) {
          const ForwardProblem p = with_eps({DType::fp64, 5, cols, norm}, 0.25f);
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
    ForwardProblem p = with_eps({DType::fp32, 1, 5}, 2);
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
          const BackwardProblem p{DType::fp64, 4, cols, norm};
          const ForwardProblem forward = forward_of(p, eps);
          // A lone element is its own mean: LayerNorm does not depend on it. But its third
          // derivative is large where eps is small.
          if (cols == 1 && norm == Norm::layer && eps < 0.1f) continue;
          Inputs in = with_exact_statistics(p, normal(p), eps);
          in.beta = Values(norm == Norm::layer ? static_cast<std::size_t>(cols) : 0, 0.5);
          const BackwardReference got = backward_of(p, in);
          check_near(got.dx.value, differences(forward, in, &Inputs::x), 1e-7);
          check_near(got.dgamma.value, differences(forward, in, &Inputs::gamma), 1e-7);
          check_near(got.dbeta.value, differences(forward, in, &Inputs::beta), 1e-7);
        }
      }
    }
  }

  TEST_CASE("without gamma the gradient is that of a gamma of ones") {
    for (const Norm norm : kNorms) {
      const BackwardProblem p{DType::fp64, 4, 9, norm};
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
    const BackwardProblem p{DType::fp64, 3, 50};
    const Inputs in = with_exact_statistics(p, normal(p), 0);
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
      const BackwardProblem p{DType::fp64, 37, 5, norm};
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
    const BackwardProblem none{DType::fp32, 0, 3};
    const BackwardReference zero = reference(none, {}, {}, {}, {}, {});
    CHECK(zero.dgamma.value == Values(3, 0.0));
    CHECK(zero.dgamma.bound == Values(3, 0.0));
    CHECK(zero.dbeta.value == Values(3, 0.0));
    CHECK(zero.dbeta.bound == Values(3, 0.0));
  }

  // ---- Bounds ----

  TEST_CASE("the bounds of the forward pass are what their derivation says") {
    // A row of +1 and -1, 100 of them, shifted by 50: sigma is 1. Less x_0 it is 0 and 2: R is the
    // root of 2, the mean 1.
    const ForwardProblem p = with_eps({DType::fp32, 1, 100}, 0);
    Values x;
    for (int i = 0; i < 100; ++i) x.push_back(i % 2 ? 51 : 49);
    const ForwardReference got = reference(p, x, {}, {});
    const double roundings = 40 + 9, mean = roundings * kUnit * 1;
    CHECK(near(got.mean.bound[0], mean + 50 * kUnit));
    const double variance = 2 * roundings * kUnit * std::sqrt(2.0) + (40 + 10) * kUnit;
    const double rstd = variance / 2 + 4 * kUnit;
    CHECK(near(got.rstd.bound[0], rstd));
    // xhat is 1: rstd, the mean, two roundings of xhat and one of x - x_0; gamma; beta.
    CHECK(near(got.y.bound[1], rstd + mean + 2 * kUnit + 2 * kUnit + 2 * kUnit));

    // From zero R is nearly 50, and the mean 50.
    const ForwardReference zero = reference(p, x, {}, {}, Origin::zero);
    const double zero_mean = roundings * kUnit * 50;
    CHECK(near(zero.mean.bound[0], zero_mean + 50 * kUnit));
    const double zero_rstd = roundings * kUnit * std::sqrt(2501.0) + (25 + 4) * kUnit;
    CHECK(near(zero.rstd.bound[0], zero_rstd));
    CHECK(near(zero.y.bound[1], zero_rstd + zero_mean + 2 * kUnit + 51 * kUnit + 2 * kUnit));

    ForwardProblem rms = p;
    rms.norm = Norm::rms;
    const ForwardReference without = reference(rms, x, {}, {});
    const double rms_rstd = (50 * kUnit / 2 + 4 * kUnit) / std::sqrt(2501.0);
    CHECK(near(without.rstd.bound[0], rms_rstd));
    const double xhat = 51 / std::sqrt(2501.0);
    CHECK(near(without.y.bound[1], xhat * (50 / 2.0 + 4 + 2 + 2) * kUnit));
  }

  TEST_CASE("the bounds of the backward pass are what their derivation says") {
    // 64 columns of xhat = 1 or -1, from mean 0; w is 1 or -2 in pairs of columns.
    const BackwardProblem p{DType::fp32, 100, 64};
    Inputs in;
    for (int i = 0; i < 6400; ++i) {
      in.x.push_back(i % 2 ? 2 : -2);
      in.dy.push_back(i % 4 < 2 ? 1 : -2);
    }
    in.mean.assign(100, 0.0);
    in.rstd.assign(100, 0.5);
    const BackwardReference got = backward_of(p, in);
    // xhat: two roundings.
    const double xhat = 2 * kUnit;
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
    const ForwardProblem p32 = with_eps({DType::fp32, 1, 2}, 0);
    for (const DType type : {DType::fp16, DType::bf16}) {
      ForwardProblem p = p32;
      p.type = type;
      const ForwardReference wide = reference(p32, x, {}, {}), narrow = reference(p, x, {}, {});
      CHECK(narrow.mean.bound == wide.mean.bound);
      CHECK(narrow.rstd.bound == wide.rstd.bound);
      const double more = narrow.y.bound[0] - wide.y.bound[0];
      CHECK(near(more, tile::unit_roundoff(type)));
    }
  }

  TEST_CASE("where nothing is certain there is no bound, and no result passes") {
    // A variance that is nothing but roundings of the mean, unless the row is shifted; and one that
    // fp32 does not hold.
    const ForwardProblem p = with_eps({DType::fp32, 1, 3}, 0);
    const float third = 1.f / 3;
    const double next = std::nextafter(third, 1.f);
    ForwardReference got = reference(p, Values{third, third, next}, {}, {});
    CHECK(got.y.bound[2] < 1e-5);
    got = reference(p, Values{third, third, next}, {}, {}, Origin::zero);
    CHECK(!std::isfinite(got.y.bound[0]));
    CHECK(!std::isfinite(got.rstd.bound[0]));
    got = reference(p, Values{0, 0, 1e-30}, {}, {});
    CHECK(!std::isfinite(got.y.bound[0]));
    CHECK(!tile::compare("y", got.y.value, got.y).ok());
    // Squares that overflow.
    got = reference(with_eps(p, 1), Values{1e20, 2e20, 3e20}, {}, {});
    CHECK(!tile::compare("y", got.y.value, got.y).ok());
  }

  TEST_CASE("NaN and infinities in the reference") {
    const Values beta{1, 2, 3};
    for (const double bad : {kNaN, kInfinity, -kInfinity}) {
      const Values x{1, bad, 2, 1, 2, 4};
      const ForwardReference layer = reference(ForwardProblem{DType::fp32, 2, 3}, x, {}, beta);
      for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(layer.y.value[i]) == (i < 3));
      CHECK(!std::isfinite(layer.mean.value[0]));
      CHECK(std::isnan(layer.rstd.value[0]));
      CHECK(std::isfinite(layer.rstd.value[1]));
      const ForwardReference rms =
          reference(ForwardProblem{DType::fp32, 2, 3, Norm::rms}, x, {}, {});
      CHECK(std::isnan(rms.y.value[1]));
      if (std::isnan(bad)) continue;
      CHECK(rms.rstd.value[0] == 0);
      CHECK(rms.y.value[0] == 0);
      CHECK(rms.rstd.bound[0] == 0);
    }
  }

  TEST_CASE("the workspace has a size for any backward pass") {
    for (const DType type : kTypesOfSteps) {
      for (const std::int64_t rows : {0, 1, 1000, 100'000}) {
        for (const std::int64_t cols : {1, 70, 10'000}) {
          CHECK(workspace_bytes({type, rows, cols}) >= 2 * cols * 4);
        }
        CHECK(workspace_bytes({type, rows, 0}) == 0);
      }
    }
    // What validate() refuses may get any number, but gets one.
    static_cast<void>(workspace_bytes({DType::fp32, -1, -1}));
    CHECK(workspace_bytes({DType::fp32, INT64_MAX, INT64_MAX}) == INT64_MAX);
  }

  // ---- The ladders ----

  TEST_CASE("every step has a name, an idea and its types") {
    auto check = [](const auto& ladder) {
      for (const auto& step : ladder.steps) {
        CAPTURE(step.name);
        CHECK(!step.name.empty());
        CHECK(!step.idea.empty());
        CHECK(tile::listed(step.types) == "fp32, fp16, bf16");
      }
    };
    check(kForwardLadder);
    check(kBackwardLadder);
  }

  TEST_CASE("beyond its limits another step runs in its place") {
    // On each side of a limit, who is asked for and who runs.
    struct Beyond {
      const char *asked, *runs;
      DType type;
      std::int64_t cols, padding, offset;
      OutputAt output = OutputAt::apart;
    };
    const DType fp32 = DType::fp32, bf16 = DType::bf16;
    auto check = [](const auto& ladder, const std::vector<Beyond>& all) {
      for (const Beyond& one : all) {
        const std::size_t asked = find_step(ladder, one.asked);
        REQUIRE(asked < ladder.steps.size());
        const TestedStep<std::decay_t<decltype(ladder)>> step{ladder.steps[asked], &ladder, asked};
        const auto& wanted = ladder.steps[find_step(ladder, one.runs)];
        const Status here = tile::check_requirements(wanted.types, wanted.needs, one.type);
        if (!here.ok()) {
          tile::skip(here.message);
          continue;
        }
        // Fewer rows than these would be split over the card, where clusters could have them.
        const std::int64_t rows = std::max(2, (tile::device().multiprocessors + 15) / 16);
        const auto p = padded(problem_for(step, one.type, rows, one.cols),
                              {one.padding, one.padding, one.padding, one.padding});
        const Call call{.output = one.output, .offsets = {.x = one.offset}};
        CAPTURE(one.asked);
        CAPTURE(one.runs);
        check_step(step, p, normal(p), call);
        const Arrays<std::decay_t<decltype(p)>> arrays(p, normal(p), call, Poison::unwritten_nan);
        tile::Choice choice;
        const Status done = run(ladder, asked, p, arrays.buffers(), nullptr, &choice);
        CHECK_MESSAGE(done.ok(), done.message);
        CHECK(ladder.steps[choice.step].name == one.runs);
        CHECK(choice.why.empty() == (std::string_view(one.asked) == one.runs));
      }
    };
    check(kForwardLadder, {
                              // So many elements does a block hold, aligned and not.
                              {"registers", "registers", fp32, 32'768, 0, 0},
                              {"registers", "welford", fp32, 32'772, 0, 0},
                              {"registers", "registers", bf16, 32'768, 0, 0},
                              {"registers", "welford", bf16, 32'776, 0, 0},
                              {"registers", "registers", fp32, 8191, 0, 0},
                              {"registers", "registers", fp32, 8192, 0, 1},
                              {"registers", "welford", fp32, 8193, 0, 0},
                              {"registers", "welford", fp32, 8196, 1, 0},
                              // 64 bytes to 4 KiB.
                              {"four_rows", "registers", fp32, 12, 0, 0},
                              {"four_rows", "four_rows", fp32, 16, 0, 0},
                              {"four_rows", "four_rows", fp32, 1024, 0, 0},
                              {"four_rows", "registers", fp32, 1028, 0, 0},
                              {"four_rows", "registers", bf16, 24, 0, 0},
                              {"four_rows", "four_rows", bf16, 2048, 0, 0},
                              {"four_rows", "registers", bf16, 2056, 0, 0},
                              {"four_rows", "registers", bf16, 777, 0, 0},
                              {"four_rows", "registers", fp32, 1024, 2, 0},
                              {"four_rows", "registers", bf16, 1024, 0, 1},
                              // More than a block holds, and no more than 16 blocks.
                              {"cluster", "four_rows", fp32, 1024, 0, 0},
                              {"cluster", "registers", fp32, 32'768, 0, 0},
                              {"cluster", "cluster", fp32, 32'772, 0, 0},
                              {"cluster", "cluster", fp32, 262'144, 0, 0},
                              {"cluster", "welford", fp32, 262'148, 0, 0},
                              {"cluster", "welford", fp32, 32'773, 0, 0},
                              {"cluster", "registers", bf16, 1001, 0, 0},
                              {"split", "registers", bf16, 8191, 0, 0},
                              {"split", "split", bf16, 8193, 0, 0},
                              {"split", "cluster", fp32, 262'144, 0, 0},
                              {"split", "split", fp32, 262'148, 0, 0},
                              // Two chunks at least, as many as registers hold, and rows of x and y
                              // that begin alike.
                              {"ends", "ends", bf16, 777, 0, 0},
                              {"ends", "ends", bf16, 777, 0, 0, OutputAt::on_x},
                              {"ends", "ends", bf16, 776, 1, 0},
                              {"ends", "four_rows", bf16, 776, 0, 0},
                              {"ends", "registers", bf16, 777, 0, 1},
                              {"ends", "registers", bf16, 15, 0, 0},
                              {"ends", "ends", bf16, 17, 0, 0},
                              {"ends", "registers", fp32, 7, 0, 0},
                              {"ends", "ends", fp32, 9, 0, 0},
                              {"ends", "ends", bf16, 32'783, 0, 0},
                              {"ends", "split", bf16, 32'785, 0, 0},
                              {"ends", "ends", fp32, 32'775, 0, 0},
                              {"ends", "split", fp32, 32'777, 0, 0},
                              {"persistent", "ends", bf16, 32'783, 0, 0},
                              {"persistent", "persistent", bf16, 32'785, 0, 0},
                              {"persistent", "persistent", bf16, 32'785, 0, 0, OutputAt::on_x},
                              {"persistent", "split", bf16, 32'785, 0, 1},
                              {"persistent", "cluster", fp32, 32'772, 0, 0},
                              {"persistent", "persistent", fp32, 32'777, 0, 0},
                              {"persistent", "persistent", bf16, 32'792, 0, 0},
                          });
    check(kBackwardLadder, {
                               {"persistent", "persistent", fp32, 12'288, 0, 0},
                               {"persistent", "two_stage", fp32, 12'292, 0, 0},
                               {"persistent", "persistent", bf16, 16'384, 0, 0},
                               {"persistent", "two_stage", bf16, 16'392, 0, 0},
                               {"persistent", "persistent", fp32, 12'285, 0, 0},
                               {"persistent", "persistent", fp32, 12'286, 0, 0},
                               {"persistent", "two_stage", fp32, 12'287, 0, 0},
                               {"persistent", "persistent", bf16, 12'281, 0, 0},
                               {"persistent", "persistent", bf16, 12'284, 0, 0},
                               {"persistent", "two_stage", bf16, 12'283, 0, 0},
                               {"persistent", "two_stage", fp32, 1000, 1, 0},
                               {"persistent", "two_stage", bf16, 777, 0, 0, OutputAt::on_x},
                               {"persistent", "two_stage", bf16, 777, 0, 0, OutputAt::on_dy},
                               {"persistent", "persistent", fp32, 1001, 3, 0},
                               {"persistent", "two_stage", fp32, 1000, 0, 1},
                               {"cluster", "persistent", fp32, 12'288, 0, 0},
                               {"cluster", "cluster", fp32, 12'292, 0, 0},
                               {"cluster", "cluster", fp32, 131'072, 0, 0},
                               {"cluster", "two_stage", fp32, 131'076, 0, 0},
                               {"cluster", "persistent", bf16, 16'384, 0, 0},
                               {"cluster", "cluster", bf16, 16'392, 0, 0},
                               {"cluster", "persistent", bf16, 12'281, 0, 0},
                               {"cluster", "cluster", bf16, 12'283, 0, 0},
                               {"cluster", "cluster", fp32, 65'533, 0, 0},
                               {"cluster", "two_stage", fp32, 65'535, 0, 0},
                               {"cluster", "two_stage", fp32, 131'071, 0, 0},
                               {"cluster", "two_stage", bf16, 16'393, 0, 0, OutputAt::on_x},
                               {"cluster", "two_stage", bf16, 16'392, 0, 1},
                               {"split", "two_stage", bf16, 1023, 0, 1},
                               {"split", "split", bf16, 1024, 0, 1},
                               {"split", "persistent", bf16, 12'281, 0, 0},
                               {"split", "cluster", bf16, 12'283, 0, 0},
                               {"split", "split", bf16, 12'283, 1, 0},
                               {"split", "cluster", fp32, 131'072, 0, 0},
                               {"split", "split", fp32, 131'076, 0, 0},
                           });
  }
}

}  // namespace layernorm
