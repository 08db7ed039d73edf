// Chapter 03's tests: infinities and NaN, masks, outputs that are inputs, and what is true of every
// gradient.
#include <algorithm>

#include "test_support.hpp"

namespace softmax {
namespace {

double& at(Values& values, std::int64_t cols, std::int64_t row, std::int64_t col) {
  return values[static_cast<std::size_t>(row * cols + col)];
}

template <class Problem>
bool is_visible(const Problem& p, std::int64_t row, std::int64_t col) {
  return !p.causal || col <= row % p.queries + p.cols - p.queries;
}

// With NaN where no step may read.
template <class Problem>
Values hidden_by_nan(const Problem& p, Values values) {
  for (std::int64_t row = 0; row < p.rows; ++row) {
    for (std::int64_t col = 0; col < p.cols; ++col) {
      if (!is_visible(p, row, col)) at(values, p.cols, row, col) = kNaN;
    }
  }
  return values;
}

double dot(const Values& x, const Values& y) {
  REQUIRE(x.size() == y.size());
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// The columns of a part of a warp, a warp and a block, with vectors and without.
template <class Step>
std::vector<std::int64_t> some_columns(const Step& step) {
  return columns_of(step, {5, 37, 40, 264, 1031, 1032});
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("rows without weight are 0, and -infinity alone has none") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, {5, 37, 40, 264, 1031, 1032, 33'000})) {
          const auto p = plain(step, type, 6, cols, log);
          if (!cases.runs(step, p)) continue;
          Values x(static_cast<std::size_t>(6 * cols), -kInfinity);
          // Row 0 has nothing; of the others all but these threads' parts have nothing either. The
          // weights of row 3 are very negative, but they are the greatest.
          at(x, cols, 1, 0) = 3;
          at(x, cols, 2, cols - 1) = -5;
          at(x, cols, 3, cols / 2) = -20480;
          at(x, cols, 3, cols - 1) = -20480;
          for (std::int64_t col = 0; col < cols; col += 3) at(x, cols, 4, col) = 1e4;
          at(x, cols, 5, 1) = -0.5;
          tile::round_to(x, type);
          const Values y = check_step(step, p, inputs_of(p, x));
          if (!is_forward(p)) continue;
          // As the contract says, and not only the reference.
          const double none = p.log ? -kInfinity : 0, all = p.log ? 0 : 1;
          Values wanted(static_cast<std::size_t>(3 * cols), none);
          at(wanted, cols, 1, 0) = all;
          at(wanted, cols, 2, cols - 1) = all;
          const bool as_promised = std::equal(wanted.begin(), wanted.end(), y.begin());
          CHECK(as_promised);
        }
      }
    });
  }

  TEST_CASE("NaN and infinity spread over their row and no other") {
    for_each_step([](const auto& step, DType type) {
      Cases cases(step, type);
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : some_columns(step)) {
          for (const double bad : {kNaN, kInfinity}) {
            const auto p = plain(step, type, 9, cols, log);
            if (!cases.runs(step, p)) continue;
            auto check_once = [&](const Inputs& in) { return check_step(step, p, in); };
            const Inputs usual = normal(p);
            auto with_bad = [&](Values values) {
              at(values, cols, 1, 0) = bad;
              at(values, cols, 3, cols / 2) = bad;
              at(values, cols, 5, cols - 1) = bad;
              for (std::int64_t col = 0; col < cols; ++col) at(values, cols, 7, col) = bad;
              return values;
            };
            if (!is_forward(p)) {
              check_once({usual.first, with_bad(usual.dy)});
              check_once({with_bad(usual.first), usual.dy});
              continue;
            }
            // As the contract says, and not only the reference.
            const Values y = check_once({with_bad(usual.first)});
            std::int64_t wrong = 0;
            for (std::size_t i = 0; i < y.size(); ++i) {
              const bool bad_row = i / static_cast<std::size_t>(cols) % 2 == 1;
              wrong += std::isnan(y[i]) != bad_row;
            }
            CHECK(wrong == 0);
          }
        }
      }
    });
  }

  TEST_CASE("causal: a query sees the keys up to its own, and reads no other") {
    struct Scores {
      std::int64_t rows, cols, queries;
    };
    constexpr Scores kScores[] = {
        {7, 7, 7},   {20, 33, 20}, {20, 40, 10},  // as many keys as queries, or more
        {6, 40, 3},  {18, 41, 6},  {4, 300, 2},    {5, 1032, 5},  {3, 1033, 1},
        {9, 264, 9}, {12, 5, 12},  {14, 3, 7},     {20, 17, 10},  // queries without keys
        {66, 8, 33}, {2, 5000, 2}, {2, 33'000, 2}, {2, 36'864, 2}};
    for_each_step([&](const auto& step, DType type) {
      Cases cases(step, type);
      std::vector<Scores> scores(std::begin(kScores), std::end(kScores));
      const std::int64_t own = step.shows.small[1];
      scores.insert(scores.end(), {{2, own, 2}, {3, own, 1}, {3, own, 3}});
      std::size_t turn = 0;
      for (const bool log : {false, true}) {
        for (const Scores& s : scores) {
          // With vectors if possible, and without.
          const bool with_padding = step.takes ? ++turn % 4 == 0 : ++turn % 2 == 0;
          const auto tight = causal(plain(step, type, s.rows, s.cols, log), s.queries);
          const auto p = with_padding ? padded(tight, {3, 1, 2}) : tight;
          const Three offsets = with_padding ? Three{1, 0, 3} : Three{0, 0, 0};
          if (!cases.runs(step, p, offsets)) continue;
          Inputs in = normal(p);
          in.first = hidden_by_nan(p, in.first);
          if (!is_forward(p)) in.dy = hidden_by_nan(p, in.dy);
          const Values result = check_step(step, p, in, offsets);
          const double hidden = is_forward(p) && p.log ? -kInfinity : 0;
          std::int64_t wrong = 0;
          for (std::int64_t i = 0; i < p.rows * p.cols; ++i) {
            const double value = result[static_cast<std::size_t>(i)];
            wrong +=
                is_visible(p, i / p.cols, i % p.cols) ? !std::isfinite(value) : value != hidden;
          }
          CHECK(wrong == 0);
        }
      }
    });
  }

  TEST_CASE("causal rows with NaN are NaN where they are visible") {
    for_each_step([](const auto& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, {37, 40, 1032})) {
          const auto p = causal(plain(step, type, 10, cols, log), 5);
          if (!takes(step, p)) continue;
          Inputs in = normal(p);
          at(in.first, cols, 1, 0) = kNaN;
          at(in.first, cols, 6, 2) = kNaN;
          in.first = hidden_by_nan(p, in.first);
          check_step(step, p, in);
        }
      }
    });
  }

  TEST_CASE("a query that sees all keys is a row without a mask") {
    for_each_step([](const auto& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : some_columns(step)) {
          const auto p = causal(plain(step, type, 3, cols, log), 1);
          if (takes(step, p)) check_step(step, p, normal(p));
        }
      }
    });
  }

  TEST_CASE("the output may be an input, with the same rows") {
    for_each_step([](const auto& step, DType type) {
      const std::int64_t paddings[] = {0, vector_length(type), 3, 2 * vector_length(type), 1};
      Cases cases(step, type);
      std::size_t turn = 0;
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : columns_of(step, {37, 40, 264, 1031, 1032, 33'000})) {
          for (const bool over_dy : {false, true}) {
            const std::int64_t padding = paddings[++turn % std::size(paddings)];
            auto p = padded(plain(step, type, 3, cols, log), {padding, padding, padding});
            if (!takes(step, p)) p = plain(step, type, 3, cols, log);
            if ((is_forward(p) && over_dy) || !cases.runs(step, p)) continue;
            CAPTURE(step.name);
            CAPTURE(over_dy);
            const std::string problem = describe(p);
            CAPTURE(problem);
            const Inputs in = normal(p);
            const Layout layout = layout_of(p, lds(p).output, 0);
            DeviceBuffer both = DeviceBuffer::in_out("both", layout, over_dy ? in.dy : in.first);
            DeviceBuffer other = DeviceBuffer::input("other", is_forward(p) ? Layout{type} : layout,
                                                     over_dy ? in.first : in.dy);
            auto buffers = over_dy ? buffers_of(p, other.raw(), both.raw(), both.raw())
                                   : buffers_of(p, both.raw(), other.raw(), both.raw());
            const DeviceBuffer workspace = give_workspace(step, p, &buffers);
            const Status done = tile::run_step(step, p, buffers);
            REQUIRE_MESSAGE(done.ok(), done.message);
            const bool as_apart = both.download() == run(step, p, in);
            CHECK(as_apart);
            for (const DeviceBuffer* buffer : {&both, &other}) {
              const Status intact = buffer->check();
              CHECK_MESSAGE(intact.ok(), intact.message);
            }
          }
        }
      }
    });
  }

  TEST_CASE("no gradient, no gradient") {
    tile::for_each_step(kBackwardTests, [](const auto& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : some_columns(step)) {
          CAPTURE(step.name);
          CAPTURE(cols);
          const BackwardProblem p = plain(step, type, 3, cols, log);
          if (!takes(step, p)) continue;
          const Inputs in = normal(p);
          CHECK(run(step, p, {in.first, Values(in.dy.size(), 0.0)}) == Values(in.dy.size(), 0.0));
        }
      }
    });
  }

  TEST_CASE("the gradients of a row add up to nothing") {
    // Adding a number to the whole row changes no output.
    tile::for_each_step(kBackwardTests, [](const auto& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : some_columns(step)) {
          CAPTURE(step.name);
          CAPTURE(cols);
          const BackwardProblem p = plain(step, type, 1, cols, log);
          if (!takes(step, p)) continue;
          const Inputs in = normal(p);
          const Values dx = run(step, p, in);
          const Values bound = reference(p, in.first, in.dy).bound;
          double sum = 0, most = 0, of_y = 0, terms = 0;
          for (std::size_t i = 0; i < dx.size(); ++i) {
            sum += dx[i];
            most += bound[i];
            of_y += log ? std::exp(in.first[i]) : in.first[i];
            terms += log ? in.dy[i] : in.first[i] * in.dy[i];
          }
          // The probabilities are rounded, and so do not add up to 1.
          CHECK(std::abs(of_y - 1) < 0.02);
          CHECK(std::abs(sum) <= most + 1.0001 * std::abs(terms * (1 - of_y)));
        }
      }
    });
  }

  TEST_CASE("the backward pass is the forward pass's transpose") {
    // <dy, J v> = <J^T dy, v>, with J v from differences of the forward reference in double.
    tile::for_each_step(kBackwardTests, [](const auto& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : some_columns(step)) {
          for (const float scale : {1.f, 0.3f}) {
            CAPTURE(step.name);
            const BackwardProblem p = scaled(plain(step, type, 2, cols, log), scale);
            if (!takes(step, p)) continue;
            const std::string problem = describe(p);
            CAPTURE(problem);
            const Values x = tile::normal(2 * cols, type, 11);
            const Inputs in = inputs_of(p, x);
            const Values v = tile::normal(2 * cols, type, 51);
            constexpr double kStep = 6e-6;
            auto moved = [&](double by) {
              ForwardProblem forward = forward_of(p);
              forward.type = DType::fp64;
              Values moved_x = x;
              for (std::size_t i = 0; i < x.size(); ++i) moved_x[i] += by * v[i];
              return reference(forward, moved_x).value;
            };
            const Values above = moved(kStep), below = moved(-kStep);
            Values jv(x.size());
            for (std::size_t i = 0; i < x.size(); ++i) jv[i] = (above[i] - below[i]) / (2 * kStep);

            const Values dx = run(step, p, in);
            // The kernel has y rounded. dx moves by dy's share and by all of y's through the sum.
            const Values bound = reference(p, in.first, in.dy).bound;
            const double u = tile::unit_roundoff(type);
            double tolerance = 1e-8;
            for (std::size_t row = 0; row < 2; ++row) {
              const std::size_t n = static_cast<std::size_t>(cols), begin = row * n;
              double terms = 0, rounded_terms = 0;
              for (std::size_t i = begin; i < begin + n; ++i) {
                terms += log ? in.dy[i] : in.first[i] * in.dy[i];
                rounded_terms += log ? 0 : u * std::abs(in.first[i] * in.dy[i]);
              }
              for (std::size_t i = begin; i < begin + n; ++i) {
                const double moves =
                    log ? u * std::abs(in.first[i]) * std::exp(in.first[i]) * std::abs(terms)
                        : std::abs(in.first[i]) * (u * std::abs(in.dy[i] - terms) + rounded_terms);
                tolerance += (bound[i] + 1.1 * scale * moves + 0x1p-25) * std::abs(v[i]);
              }
            }
            CHECK(std::abs(dot(in.dy, jv) - dot(dx, v)) <= tolerance);
          }
        }
      }
    });
  }
}

}  // namespace softmax
