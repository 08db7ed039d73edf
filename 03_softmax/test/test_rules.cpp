// Chapter 03's tests: infinities and NaN, masks, outputs that are inputs, and what is true of every
// gradient.
#include <algorithm>

#include "test_support.hpp"

namespace softmax {
namespace {

double& at(Values& values, std::int64_t cols, std::int64_t row, std::int64_t col) {
  return values[static_cast<std::size_t>(row * cols + col)];
}

bool is_visible(const Problem& p, std::int64_t row, std::int64_t col) {
  return !p.causal || col <= row % p.queries + p.cols - p.queries;
}

// With NaN where nobody may read.
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
constexpr std::int64_t kCols[] = {5, 37, 40, 264, 1031, 1032};

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("rows without weight are 0, and -infinity alone has none") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : {5, 37, 40, 264, 1031, 1032, 33'000}) {
          if (!selection.takes_next()) continue;
          const Problem p = plain(type, 6, cols, mode);
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
          const Values y = check_step(step, p, inputs_of(p, x), {0, 0, 0}, {poison_in_turn()});
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
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : kCols) {
          for (const double bad : {kNaN, kInfinity}) {
            if (!selection.takes_next()) continue;
            auto check_once = [&step](const Problem& p, const Inputs& in) {
              return check_step(step, p, in, {0, 0, 0}, {poison_in_turn()});
            };
            const Problem p = plain(type, 9, cols, mode);
            const Inputs usual = normal(p);
            auto with_bad = [&](Values values) {
              at(values, cols, 1, 0) = bad;
              at(values, cols, 3, cols / 2) = bad;
              at(values, cols, 5, cols - 1) = bad;
              for (std::int64_t col = 0; col < cols; ++col) at(values, cols, 7, col) = bad;
              return values;
            };
            if (!is_forward(p)) {
              check_once(p, {usual.first, with_bad(usual.dy)});
              check_once(p, {with_bad(usual.first), usual.dy});
              continue;
            }
            // As the contract says, and not only the reference.
            const Values y = check_once(p, {with_bad(usual.first)});
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
    tile::for_each_step(kSteps, [&](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      std::size_t turn = 0;
      for (const Mode mode : kModes) {
        for (const Scores& s : kScores) {
          if (!selection.takes_next()) continue;
          // With vectors if possible, and without.
          const bool with_padding = ++turn % 2;
          const Problem tight = causal(plain(type, s.rows, s.cols, mode), s.queries);
          const Problem p = with_padding ? padded(tight, {3, 1, 2}) : tight;
          Inputs in = normal(p);
          in.first = hidden_by_nan(p, in.first);
          if (!is_forward(p)) in.dy = hidden_by_nan(p, in.dy);
          const Values result = check_step(
              step, p, in, with_padding ? Three{1, 0, 3} : Three{0, 0, 0}, {poison_in_turn()});
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
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : {37, 40, 1032}) {
          const Problem p = causal(plain(type, 10, cols, mode), 5);
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
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : kCols) {
          const Problem p = plain(type, 3, cols, mode);
          check_step(step, causal(p, 1), normal(p));
        }
      }
    });
  }

  TEST_CASE("the output may be an input, with the same rows") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      const std::int64_t paddings[] = {0, vector_length(type), 3, 2 * vector_length(type), 1};
      tile::Selection selection(step.types, type);
      std::size_t turn = 0;
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : {37, 40, 264, 1031, 1032, 33'000}) {
          const std::int64_t padding = paddings[++turn % std::size(paddings)];
          for (const bool over_dy : {false, true}) {
            if (mode.direction == Direction::forward && over_dy) continue;
            if (!selection.takes_next()) continue;
            const Problem p = padded(plain(type, 3, cols, mode), {padding, padding, padding});
            CAPTURE(step.name);
            CAPTURE(over_dy);
            const std::string problem = describe(p);
            CAPTURE(problem);
            const Inputs in = normal(p);
            const Layout layout = layout_of(p, p.cols + padding, 0);
            DeviceBuffer both = DeviceBuffer::in_out("both", layout, over_dy ? in.dy : in.first);
            DeviceBuffer other = DeviceBuffer::input("other", is_forward(p) ? Layout{type} : layout,
                                                     over_dy ? in.first : in.dy);
            Buffers buffers{.x = both.raw(), .y = both.raw()};
            if (!is_forward(p)) {
              buffers = {.y = over_dy ? other.raw() : both.raw(),
                         .dy = over_dy ? both.raw() : other.raw(),
                         .dx = both.raw()};
            }
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
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : kCols) {
          CAPTURE(step.name);
          CAPTURE(cols);
          const Problem p = plain(type, 3, cols, {Direction::backward, log});
          const Inputs in = normal(p);
          CHECK(run(step, p, {in.first, Values(in.dy.size(), 0.0)}) == Values(in.dy.size(), 0.0));
        }
      }
    });
  }

  TEST_CASE("the gradients of a row add up to nothing") {
    // Adding a number to the whole row changes no output.
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : kCols) {
          CAPTURE(step.name);
          CAPTURE(cols);
          const Problem p = plain(type, 1, cols, {Direction::backward, log});
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
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : kCols) {
          for (const float scale : {1.f, 0.3f}) {
            CAPTURE(step.name);
            const Problem p = scaled(plain(type, 2, cols, {Direction::backward, log}), scale);
            const std::string problem = describe(p);
            CAPTURE(problem);
            const Values x = tile::normal(2 * cols, type, 11);
            const Inputs in = inputs_of(p, x);
            const Values v = tile::normal(2 * cols, type, 51);
            constexpr double kStep = 6e-6;
            auto moved = [&](double by) {
              Problem forward = p;
              forward.type = DType::fp64;
              forward.direction = Direction::forward;
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
