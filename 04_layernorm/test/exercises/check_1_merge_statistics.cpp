// Checks exercise 04.1. Not part of the task.
// Shipped: no part has been merged yet
#include <algorithm>
#include <array>
#include <functional>

#include "test/exercises/checks.hpp"

using layernorm::kUnit;
using layernorm::Values;
using tile::Expected;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kLanes = 32;

// What the rows' parts hold.
struct Task {
  std::int64_t rows, parts;
  float eps;
  Values count, mean, squares;

  // Parts of 1 to 100 numbers, which lie around `center` and apart from those of other parts.
  Task(std::int64_t n_rows, std::int64_t n_parts, double center, float epsilon)
      : rows(n_rows),
        parts(n_parts),
        eps(epsilon),
        count(tile::integers(rows * parts, tile::DType::fp32, 1, 1, 100)),
        mean(tile::normal(rows * parts, tile::DType::fp32, 2, center)),
        squares(tile::uniform(rows * parts, tile::DType::fp64, 3, 0.5, 1.5)) {
    for (std::size_t i = 0; i < count.size(); ++i) squares[i] *= count[i] - 1;
    squares = tile::rounded(squares, tile::DType::fp32);
  }

  // The mean and the squares of an empty part were never written.
  void empty(std::int64_t row, std::int64_t part) {
    const auto i = static_cast<std::size_t>(row * parts + part);
    count[i] = 0;
    mean[i] = squares[i] = kNaN;
  }

  std::string text() const {
    return "rows = " + std::to_string(rows) + ", parts = " + std::to_string(parts) +
           ", eps = " + std::to_string(eps);
  }
};

struct Part {
  double count, mean, squares;
};
using Row = std::vector<Part>;  // without the empty parts

Row row_of(const Task& t, std::int64_t row) {
  Row found;
  for (std::int64_t part = 0; part < t.parts; ++part) {
    const auto i = static_cast<std::size_t>(row * t.parts + part);
    if (t.count[i] > 0) found.push_back({t.count[i], t.mean[i], t.squares[i]});
  }
  return found;
}

// The sum over the row of what `term` gives for a part.
template <class Term>
double sum(const Row& row, Term term) {
  double result = 0;
  for (const Part& part : row) result += term(part);
  return result;
}
double numbers(const Row& row) {
  return sum(row, [](const Part& p) { return p.count; });
}
double mean_of(const Row& row) {
  if (row.empty()) return 0;
  return sum(row, [](const Part& p) { return p.count * p.mean; }) / numbers(row);
}
double variance_of(const Row& row) {
  if (row.empty()) return 0;
  const double mean = mean_of(row);
  auto squares = [mean](const Part& p) {
    return p.squares + p.count * (p.mean - mean) * (p.mean - mean);
  };
  return sum(row, squares) / numbers(row);
}

double rounded(double roundings) { return roundings * kUnit / (1 - roundings * kUnit); }

// How far a result may be from the exact one. Both ways must pass: parts merged two at a time, in
// any order, and sums over all parts.
//
// Mean: a merge of two rounds four times, each rounding up to u times the greatest |mean|. The 4k
// roundings of k merges, of which some cancel, are taken for 4 sqrt(4k), as in reference.cpp. A
// product and a division more are below the 8 beside it. Two sums round less often.
//
// Variance: a merge adds d^2 w, d the distance of two means and w = count_a count_b / count. If
// each mean is off by up to e, d is off by up to 2e, and the sum over all merges by sum (4 e |d| w
// + 4 e^2 w). Let n be the count of the row, and v its variance: sum d^2 w is at most n v. And sum
// w is at most 3.5 n, for w is below the smaller of the two counts: one after another the merges
// make n at most, and each level of a tree n / 2, of which there are five after a lane's own parts,
// or seven for up to 128. So by Cauchy and Schwarz the sum is off by at most 4 e sqrt(3.5 n n v) +
// 14 e^2 n. Of sums over all parts this is true as well. All terms are positive, and each rounds
// the difference, twice because it is squared, and in four products and quotients; a merge adds
// twice; three for the division by n, one for eps.
struct Bounds {
  double mean, rstd;

  Bounds(const Task& t, const Row& row) {
    const auto k = static_cast<double>(t.parts);
    double greatest = 0;
    for (const Part& p : row) greatest = std::max(greatest, std::abs(p.mean));
    mean = rounded(4 * std::sqrt(4 * k) + 8) * greatest;

    const double variance = variance_of(row), exact = variance + t.eps;
    const double from_mean = 4 * mean * std::sqrt(3.5 * variance) + 14 * mean * mean;
    const double relative = rounded(4 * std::sqrt(2 * k) + 10);
    const double high = (exact + from_mean) * (1 + relative);
    const double low =
        std::max((exact - from_mean) * (1 - relative), static_cast<double>(t.eps) * (1 - kUnit));
    // rsqrtf is off by two units in the last place: CUDA C++ Programming Guide, "Mathematical
    // Functions".
    const double rsqrt = 4 * kUnit;
    rstd = std::max((1 + rsqrt) / std::sqrt(low) - 1 / std::sqrt(exact),
                    1 / std::sqrt(exact) - (1 - rsqrt) / std::sqrt(high));
  }
};

// What comes out if a row's mean, or rstd, is what `of_row` gives. In fp32 a wrong one has errors
// of about the size that a right one may have.
using OfRow = std::function<double(const Row&, std::int64_t row)>;
enum class Result { mean, rstd };
Expected if_it_were(const Task& t, Result result, const OfRow& of_row, double slack = 4) {
  Expected expected{{t.rows}, {}, {}};
  for (std::int64_t i = 0; i < t.rows; ++i) {
    const Row row = row_of(t, i);
    const Bounds bounds(t, row);
    expected.value.push_back(of_row(row, i));
    expected.bound.push_back(slack * (result == Result::mean ? bounds.mean : bounds.rstd));
  }
  return expected;
}
Expected right(const Task& t, Result result) {
  auto of_row = [&](const Row& row, std::int64_t) {
    return result == Result::mean ? mean_of(row) : 1 / std::sqrt(variance_of(row) + t.eps);
  };
  return if_it_were(t, result, of_row, 1);
}

// The parts of the row for which `kept` is true.
template <class Kept>
Row some_of(const Task& t, std::int64_t row, Kept kept) {
  Task some = t;
  for (std::int64_t part = 0; part < t.parts; ++part) {
    if (!kept(part)) some.empty(row, part);
  }
  return row_of(some, row);
}

// What the case before this one has shown to be right.
enum class Stage { one_part_a_lane, any_number, one_empty, many_empty, far_from_zero };

std::string explain_nan(const Task& t, const Values& got, Stage stage) {
  if (std::ranges::none_of(got, [](double x) { return std::isnan(x); })) return {};
  if (stage == Stage::one_empty) {
    return "\nHint: an empty part makes its row NaN. Its mean was never written, so it may be "
           "NaN, and 0 times NaN is NaN as well";
  }
  if (stage == Stage::any_number && t.parts < kLanes) {
    return "\nHint: of fewer than 32 parts some lanes have none. What do two lanes without a part "
           "have together? 0 / 0 is NaN";
  }
  if (stage == Stage::many_empty) {
    return "\nHint: only rows with several empty parts are wrong. What is the count of nothing but "
           "empty parts? 0 / 0 is NaN";
  }
  return {};
}

std::string explain(const Task& t, Result result, const Values& got, Stage stage) {
  if (stage == Stage::far_from_zero) return layernorm::kLostToRounding;
  if (std::string found = explain_nan(t, got, stage); !found.empty()) return found;

  std::vector<tile::Mistake> mistakes;
  auto mean_is = [&](std::string_view explanation, const OfRow& of_row) {
    if (result != Result::mean) return;
    mistakes.push_back({explanation, if_it_were(t, Result::mean, of_row)});
  };
  auto rstd_is = [&](std::string_view explanation, const OfRow& of_row) {
    if (result != Result::rstd) return;
    mistakes.push_back({explanation, if_it_were(t, Result::rstd, of_row)});
  };
  auto variance_is = [&](std::string_view explanation, const OfRow& of_row) {
    rstd_is(explanation,
            [&](const Row& row, auto i) { return 1 / std::sqrt(of_row(row, i) + t.eps); });
  };

  mean_is("the means are 0: no part has been merged yet", [](auto&, auto) { return 0.0; });
  mean_is("every part counts alike: a long part must weigh more than a short one",
          [](const Row& row, auto) {
            const auto parts = static_cast<double>(row.size());
            return sum(row, [](const Part& p) { return p.mean; }) / parts;
          });
  mean_is("the sum is divided by the number of parts, not by that of numbers",
          [&](const Row& row, auto) {
            return mean_of(row) * numbers(row) / static_cast<double>(t.parts);
          });
  mean_is("only the first 32 parts count: which ones come after a lane's first?",
          [&](auto&, auto i) {
            return mean_of(some_of(t, i, [](auto part) { return part < kLanes; }));
          });
  mean_is("only the parts of lane 0 count: the other lanes have some too", [&](auto&, auto i) {
    return mean_of(some_of(t, i, [](auto part) { return part % kLanes == 0; }));
  });

  variance_is("the variance is still 0", [](auto&, auto) { return 0.0; });
  variance_is(
      "only the squares of the parts are there: each part's mean lies at a distance from the row's",
      [](const Row& row, auto) {
        return sum(row, [](const Part& p) { return p.squares; }) / numbers(row);
      });
  variance_is("only the distances of the parts' means are there: their own squares are missing",
              [](const Row& row, auto) {
                const double own = sum(row, [](const Part& p) { return p.squares; });
                return variance_of(row) - own / numbers(row);
              });
  variance_is(
      "the distance of a part's mean counts once for each part: does it not concern each of its "
      "numbers?",
      [](const Row& row, auto) {
        const double mean = mean_of(row);
        auto squares = [mean](const Part& p) {
          return p.squares + (p.mean - mean) * (p.mean - mean);
        };
        return sum(row, squares) / numbers(row);
      });
  variance_is("the squares of a part count as often as it has numbers: they are a sum already",
              [](const Row& row, auto) {
                auto more = [](const Part& p) { return (p.count - 1) * p.squares; };
                return variance_of(row) + sum(row, more) / numbers(row);
              });
  variance_is(
      "the squares are divided by the count less 1: here the variance is that of all numbers",
      [](const Row& row, auto) {
        const double n = numbers(row);
        return variance_of(row) * n / (n - 1);
      });
  variance_is("the squares are not divided by the count",
              [](const Row& row, auto) { return variance_of(row) * numbers(row); });
  rstd_is("this is the variance's root, not one over it",
          [&](const Row& row, auto) { return std::sqrt(variance_of(row) + t.eps); });

  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  if (result == Result::rstd && stage == Stage::one_part_a_lane) {
    return "\nHint: the mean is right. The parts have different counts: how much weighs the "
           "distance of two means?";
  }
  return {};
}

void check(const Task& t, Stage stage) {
  INFO(t.text());
  const tile::DeviceBuffer count = layernorm::input("count", t.count),
                           mean = layernorm::input("mean of the parts", t.mean),
                           squares = layernorm::input("squares", t.squares);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const tile::DeviceBuffer row_mean = layernorm::output("mean", t.rows, poison),
                             rstd = layernorm::output("rstd", t.rows, poison);
    auto launch = [&] {
      using layernorm::floats;
      return layernorm::merge_statistics(
          {t.rows, t.parts, floats(count), floats(mean), floats(squares)}, t.eps, floats(row_mean),
          floats(rstd));
    };
    tile::run_answer(launch, std::array{&count, &mean, &squares, &row_mean, &rstd});
    for (const auto result : {Result::mean, Result::rstd}) {
      const bool is_mean = result == Result::mean;
      const Values got = (is_mean ? row_mean : rstd).download();
      tile::require_right(is_mean ? "mean" : "rstd", got, right(t, result),
                          [&] { return explain(t, result, got, stage); });
    }
  }
}

}  // namespace

TEST_CASE("04.1 statistics from parts") {
  check(Task(5, 32, 3, 1e-5f), Stage::one_part_a_lane);
  for (const std::int64_t parts : {64, 33, 100, 31, 7, 2, 1}) {
    check(Task(parts, parts, 3, 0.25f), Stage::any_number);
  }

  Task one_empty(32, 32, -3, 1e-5f);
  for (std::int64_t row = 0; row < 32; ++row) one_empty.empty(row, row);
  check(one_empty, Stage::one_empty);

  // Of row r the first r parts are empty, and in the end all of them.
  for (const std::int64_t parts : {32, 45}) {
    Task many_empty(parts + 1, parts, 3, 0.25f);
    for (std::int64_t row = 0; row <= parts; ++row) {
      for (std::int64_t part = 0; part < row; ++part) many_empty.empty(row, part);
    }
    check(many_empty, Stage::many_empty);
  }

  for (const double center : {100.0, -3000.0, 3000.0}) {
    check(Task(20, 32, center, 1e-5f), Stage::far_from_zero);
    check(Task(20, 50, center, 1e-5f), Stage::far_from_zero);
  }
}
