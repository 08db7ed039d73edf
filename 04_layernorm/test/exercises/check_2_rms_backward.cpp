// Checks exercise 04.2. Not part of the task.
#include <algorithm>
#include <array>

#include "test/exercises/checks.hpp"

using layernorm::BackwardProblem;
using layernorm::kUnit;
using layernorm::Values;
using tile::DeviceBuffer;
using tile::Expected;

namespace {

constexpr std::int64_t kThreads = 256, kWarp = 32;

enum class OutputAt { apart, on_x, on_dy };

struct Task {
  BackwardProblem p;
  float eps;
  Values x, gamma, dy, rstd, rstd_error;

  Task(std::int64_t rows, std::int64_t cols, bool has_gamma, float epsilon, double center = 0)
      : p{.type = tile::DType::fp32,
          .rows = rows,
          .cols = cols,
          .norm = layernorm::Norm::rms,
          .ldx = cols + 3,
          .lddy = cols + 5,
          .lddx = cols + 1},
        eps(epsilon),
        x(tile::normal(rows * cols, tile::DType::fp32, 1, center)),
        dy(tile::normal(rows * cols, tile::DType::fp32, 2, 0.25)) {
    if (has_gamma) gamma = tile::uniform(cols, p.type, 3, -2, 2);
    const Expected found =
        reference(layernorm::ForwardProblem{p.type, rows, cols, p.norm, eps}, x, {}, {}).rstd;
    rstd = found.value;
    rstd_error = found.bound;
  }

  std::string text() const {
    return "rows = " + std::to_string(p.rows) + ", cols = " + std::to_string(p.cols) +
           ", eps = " + std::to_string(eps) + (gamma.empty() ? ", no gamma" : "");
  }

  double gamma_at(std::size_t col) const { return gamma.empty() ? 1 : gamma[col]; }

  // The reference takes rstd as given. One that was found in fp32 is off by a part of itself, r,
  // and dx = rstd w - rstd^3 x sum (w x) / n by r of the first term and 3 r, and 3 r^2 + r^3, of
  // the second. A kernel that multiplies in another order rounds no more often.
  Expected right() const {
    Expected expected = reference(p, x, gamma, {}, rstd, dy).dx;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t row = i / cols();
      const double r = rstd_error[row] / rstd[row];
      const double first = rstd[row] * w(i), second = first - expected.value[i];
      expected.bound[i] +=
          r * std::abs(first) + ((1 + r) * (1 + r) * (1 + r) - 1) * std::abs(second);
    }
    return expected;
  }

  std::size_t cols() const { return static_cast<std::size_t>(p.cols); }
  double w(std::size_t i) const { return gamma_at(i % cols()) * dy[i]; }
  double xhat(std::size_t i) const { return x[i] * rstd[i / cols()]; }

  // The sum of `term` over those elements of i's row for which `belongs` is true of their columns.
  template <class Term, class Belongs>
  double sum(std::size_t i, Term term, Belongs belongs) const {
    const std::size_t first = i / cols() * cols();
    double result = 0;
    for (std::size_t col = 0; col < cols(); ++col) {
      if (belongs(col)) result += term(first + col);
    }
    return result;
  }
  // The mean of `term` over the row of element i.
  template <class Term>
  double mean(std::size_t i, Term term) const {
    return sum(i, term, [](std::size_t) { return true; }) / static_cast<double>(cols());
  }
};

// What comes out if element i is what `element` gives. A wrong one has larger errors.
template <class Element>
Expected if_it_were(const Task& t, Element element) {
  Expected expected = t.right();
  for (std::size_t i = 0; i < expected.value.size(); ++i) {
    expected.value[i] = element(i);
    expected.bound[i] = 8 * expected.bound[i] + 64 * kUnit * std::abs(expected.value[i]);
  }
  return expected;
}

// dx with some sums in the place of those over the whole row: `belongs(col, other)` says whether
// `other` is in the sum that column `col` gets.
template <class Belongs>
Expected of_sums(const Task& t, Belongs belongs) {
  const auto n = static_cast<double>(t.cols());
  return if_it_were(t, [&](std::size_t i) {
    auto mine = [&](std::size_t other) { return belongs(i % t.cols(), other); };
    const double squares = t.sum(
        i, [&](auto j) { return t.x[j] * t.x[j]; }, mine);
    const double products = t.sum(
        i, [&](auto j) { return t.w(j) * t.x[j]; }, mine);
    const double rstd = 1 / std::sqrt(squares / n + t.eps);
    return rstd * (t.w(i) - t.x[i] * rstd * rstd * products / n);
  });
}

std::string explain(const Task& t, const Values& got, OutputAt output) {
  const auto n = static_cast<double>(t.cols());
  auto w_xhat = [&](std::size_t i) { return t.w(i) * t.xhat(i); };
  auto rstd = [&](std::size_t i) { return t.rstd[i / t.cols()]; };
  auto it_is = [&](std::string_view explanation, auto element) {
    return tile::Mistake{explanation, if_it_were(t, element)};
  };
  std::vector<tile::Mistake> mistakes = {
      it_is("this is rstd w: rstd depends on x as well", [&](auto i) { return rstd(i) * t.w(i); }),
      it_is(
          "the mean of w is subtracted, as in LayerNorm: it came from the mean, which is not here",
          [&](auto i) {
            const double of_w = t.mean(i, [&](auto j) { return t.w(j); });
            return rstd(i) * (t.w(i) - of_w - t.xhat(i) * t.mean(i, w_xhat));
          }),
      it_is("the second term is added: the derivative of rstd is negative",
            [&](auto i) { return rstd(i) * (t.w(i) + t.xhat(i) * t.mean(i, w_xhat)); }),
      it_is("the second term is twice too large: does the 2 of the square meet a 1 / 2?",
            [&](auto i) { return rstd(i) * (t.w(i) - 2 * t.xhat(i) * t.mean(i, w_xhat)); }),
      it_is("the sum of w xhat is not divided by n",
            [&](auto i) { return rstd(i) * (t.w(i) - n * t.xhat(i) * t.mean(i, w_xhat)); }),
      it_is("the outer rstd is missing",
            [&](auto i) { return t.w(i) - t.xhat(i) * t.mean(i, w_xhat); }),
      it_is("one of the factors rstd is missing: the derivative of rstd has three",
            [&](auto i) { return rstd(i) * (t.w(i) - t.x[i] * t.mean(i, w_xhat)); }),
      it_is("eps is missing in the second term: the sum of x^2 is not n / rstd^2",
            [&](auto i) {
              const double squares = t.mean(i, [&](auto j) { return t.x[j] * t.x[j]; });
              const double products = t.mean(i, [&](auto j) { return t.w(j) * t.x[j]; });
              return rstd(i) * (t.w(i) - t.x[i] * products / squares);
            }),
      it_is("eps is missing: under a root of the mean square alone",
            [&](auto i) {
              const double squares = t.mean(i, [&](auto j) { return t.x[j] * t.x[j]; });
              const double products = t.mean(i, [&](auto j) { return t.w(j) * t.x[j]; });
              return (t.w(i) - t.x[i] * products / squares) / std::sqrt(squares);
            }),
  };
  if (!t.gamma.empty()) {
    auto dy_xhat = [&](std::size_t i) { return t.dy[i] * t.xhat(i); };
    mistakes.push_back(it_is("gamma is missing: w is gamma dy", [&](auto i) {
      return rstd(i) * (t.dy[i] - t.xhat(i) * t.mean(i, dy_xhat));
    }));
    mistakes.push_back(
        it_is("gamma is missing in the sum: each term has the gamma of its own column",
              [&](auto i) { return rstd(i) * (t.w(i) - t.xhat(i) * t.mean(i, dy_xhat)); }));
    mistakes.push_back(
        it_is("the sum is multiplied by the gamma of the element that is written", [&](auto i) {
          const double outer = t.gamma_at(i % t.cols());
          return rstd(i) * (t.w(i) - outer * t.xhat(i) * t.mean(i, dy_xhat));
        }));
  }
  if (t.p.cols > 1) {
    mistakes.push_back({"every thread uses its own sums: what the others have is missing",
                        of_sums(t, [](std::size_t col, std::size_t other) {
                          return col % kThreads == other % kThreads;
                        })});
  }
  if (t.p.cols > kWarp) {
    mistakes.push_back({"every warp uses its own sums: what the other warps have is missing",
                        of_sums(t, [](std::size_t col, std::size_t other) {
                          return col % kThreads / kWarp == other % kThreads / kWarp;
                        })});
  }
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  if (output != OutputAt::apart) {
    return std::string("\nHint: dx is ") + (output == OutputAt::on_x ? "x" : "dy") +
           " here, and apart from both it was right. Is an element of dx written while somebody "
           "still has to read the old one?";
  }
  const bool unwritten = std::ranges::any_of(got, [](double x) {
    return std::ranges::any_of(tile::kOutputPoisons,
                               [x](tile::Poison poison) { return tile::is_poison(x, poison); });
  });
  if (t.p.cols > kWarp && !unwritten) {
    return "\nHint: shorter rows were right. Are both sums complete in all threads before anybody "
           "uses them, and has each of them a shared array of its own?";
  }
  return {};
}

void check(const Task& t, OutputAt output = OutputAt::apart) {
  INFO(t.text());
  auto layout = [&](std::int64_t ld) {
    return tile::matrix_layout(t.p.type, t.p.rows, t.p.cols, ld);
  };
  auto matrix = [&](const char* name, const Values& values, std::int64_t ld, bool written) {
    return written ? DeviceBuffer::in_out(name, layout(ld), values)
                   : DeviceBuffer::input(name, layout(ld), values);
  };
  BackwardProblem p = t.p;
  if (output == OutputAt::on_x) p.lddx = p.ldx;
  if (output == OutputAt::on_dy) p.lddx = p.lddy;
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const DeviceBuffer x = matrix("x", t.x, p.ldx, output == OutputAt::on_x),
                       dy = matrix("dy", t.dy, p.lddy, output == OutputAt::on_dy),
                       gamma = layernorm::input("gamma", t.gamma),
                       apart = DeviceBuffer::output("dx", layout(p.lddx), poison);
    const DeviceBuffer& dx = output == OutputAt::apart ? apart : output == OutputAt::on_x ? x : dy;
    layernorm::BackwardBuffers buffers;
    buffers.x = x.raw();
    buffers.gamma = t.gamma.empty() ? nullptr : gamma.raw();
    buffers.dy = dy.raw();
    buffers.dx = dx.raw();
    tile::run_answer([&] { return layernorm::rms_backward(p, t.eps, buffers); },
                     std::array{&x, &dy, &gamma, &apart});
    const Values got = dx.download();
    tile::require_right("dx", got, t.right(), [&] { return explain(t, got, output); });
  }
}

}  // namespace

TEST_CASE("04.2 the gradient of RMSNorm") {
  // With an eps like the mean square of x, it makes a difference.
  constexpr float kEps = 0.5f;
  for (const std::int64_t cols : {8, 32, 1, 3, 31}) check(Task(3, cols, true, kEps));
  for (const std::int64_t cols : {33, 64, 255, 256, 257, 1000, 4099}) {
    check(Task(3, cols, true, kEps));
    check(Task(2, cols, false, 1e-5f));
  }
  check(Task(1, 300, true, 0));
  check(Task(37, 70, true, 1e-5f, 100));  // xhat is almost all ones
  for (const OutputAt output : {OutputAt::on_x, OutputAt::on_dy}) {
    for (const std::int64_t cols : {20, 600}) check(Task(5, cols, true, kEps), output);
  }
}
