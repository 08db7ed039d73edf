// Checks exercise 03.2. Not part of the task.
#include <algorithm>

#include "test/exercises/checks.hpp"

using softmax::kInfinity;
using softmax::kNaN;
using softmax::Values;
using tile::DType;
using tile::Expected;

namespace {

// The errors of a kernel are added up as in the chapter's reference.cpp: an operation multiplies
// its result by at most e^kUnit, an exponential is off by two units in the last place.
constexpr double kUnit = 0x1.00001p-24, kExp2 = 4 * kUnit, kTinyExponential = 0x1p-126;

/// A matrix x whose columns are cut into parts of `part_cols` columns, and a value of `width`
/// numbers for each column.
struct Task {
  std::int64_t rows, parts, part_cols, width, cols = parts * part_cols;
  Values x, value;                           // [rows][cols], [cols][width]
  Values max = {}, sum = {}, weighted = {};  // what the kernel gets

  Task(std::int64_t some_rows, std::int64_t some_parts, std::int64_t some_cols,
       std::int64_t some_width)
      : rows(some_rows),
        parts(some_parts),
        part_cols(some_cols),
        width(some_width),
        x(tile::normal(rows * cols, DType::fp32, 1)),
        value(tile::normal(cols * width, DType::fp32, 2)) {
    for (double& each : value) each += 1;  // averages that are not all near 0
    tile::round_to(value, DType::fp32);
  }

  std::string text() const {
    return "rows = " + std::to_string(rows) + ", parts = " + std::to_string(parts) +
           ", width = " + std::to_string(width);
  }
  double& x_at(std::int64_t part, std::int64_t row, std::int64_t col) {  // col within the part
    return x[static_cast<std::size_t>(row * cols + part * part_cols + col)];
  }
  double x_at(std::int64_t part, std::int64_t row, std::int64_t col) const {
    return x[static_cast<std::size_t>(row * cols + part * part_cols + col)];
  }
  double value_at(std::int64_t part, std::int64_t col, std::int64_t i) const {
    return value[static_cast<std::size_t>((part * part_cols + col) * width + i)];
  }
  double max_at(std::int64_t part, std::int64_t row) const {
    return max[static_cast<std::size_t>(part * rows + row)];
  }
  double sum_at(std::int64_t part, std::int64_t row) const {
    return sum[static_cast<std::size_t>(part * rows + row)];
  }
  double weighted_at(std::int64_t part, std::int64_t row, std::int64_t i) const {
    return weighted[static_cast<std::size_t>((part * rows + row) * width + i)];
  }

  void fill_part(std::int64_t part, std::int64_t row, double with) {
    for (std::int64_t col = 0; col < part_cols; ++col) x_at(part, row, col) = with;
  }
  void shift_part(std::int64_t part, double by) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < part_cols; ++col) x_at(part, row, col) += by;
    }
    tile::round_to(x, DType::fp32);
  }

  /// Computes what each part knows, once x is complete.
  void make_partials() {
    for (std::int64_t part = 0; part < parts; ++part) {
      for (std::int64_t row = 0; row < rows; ++row) {
        double greatest = -kInfinity, own_sum = 0;
        Values own(static_cast<std::size_t>(width), 0.0);
        for (std::int64_t col = 0; col < part_cols; ++col) {
          greatest = std::max(greatest, x_at(part, row, col));  // passes over a NaN
        }
        const double reference = greatest == -kInfinity ? 0 : greatest;
        for (std::int64_t col = 0; col < part_cols; ++col) {
          const double exponential = std::exp(x_at(part, row, col) - reference);
          own_sum += exponential;
          for (std::int64_t i = 0; i < width; ++i) {
            own[static_cast<std::size_t>(i)] += exponential * value_at(part, col, i);
          }
        }
        max.push_back(greatest);
        sum.push_back(own_sum);
        weighted.insert(weighted.end(), own.begin(), own.end());
      }
    }
    for (Values* values : {&max, &sum, &weighted}) tile::round_to(*values, DType::fp32);
  }

  /// The values are those of the whole row's softmax, which the chapter's reference computes. The
  /// bounds follow what merging rounds.
  Expected right() const {
    const softmax::ForwardProblem p{.type = DType::fp32, .rows = rows, .cols = cols};
    const Values y = reference(p, x).value;
    Expected expected{{rows, width}, {}, {}};
    for (std::int64_t row = 0; row < rows; ++row) {
      double greatest = -kInfinity;
      for (std::int64_t part = 0; part < parts; ++part) {
        greatest = std::max(greatest, max_at(part, row));
      }
      for (std::int64_t i = 0; i < width; ++i) {
        double average = 0;
        for (std::int64_t col = 0; col < cols; ++col) {
          average += y[static_cast<std::size_t>(row * cols + col)] *
                     value[static_cast<std::size_t>(col * width + i)];
        }
        expected.value.push_back(average);
        const bool rounds = std::isfinite(average) && std::isfinite(greatest);
        expected.bound.push_back(rounds ? bound(row, i, greatest, average) : 0);
      }
    }
    return expected;
  }

  /// Of a part: it was rounded itself. The argument of its exponential is rounded as a difference,
  /// and as a product with log2(e), which is rounded as well. A kernel that takes the parts one by
  /// one scales them again with each new maximum, and each addition rounds. Then there is the
  /// quotient, in one operation or two.
  double bound(std::int64_t row, std::int64_t i, double greatest, double average) const {
    double all = 0, of_sum = 0, of_weighted = 0;
    for (std::int64_t part = 0; part < parts; ++part) {
      const double below = greatest - max_at(part, row), factor = std::exp(-below);
      if (factor == 0) continue;
      const auto n = static_cast<double>(parts);
      const double relative =
          std::expm1(kUnit + 4 * kUnit * below + n * (kExp2 + kUnit) + (n - 1) * kUnit);
      const double error = factor * relative + kTinyExponential;
      all += factor * sum_at(part, row);
      of_sum += error * sum_at(part, row);
      of_weighted += error * std::abs(weighted_at(part, row, i));
    }
    const double before = (of_weighted + std::abs(average) * of_sum) / (all - of_sum);
    return before + std::expm1(2 * kUnit) * (std::abs(average) + before) + kTinyExponential;
  }

  /// What comes out if the number i of a row's average is what `result` gives.
  template <class Result>
  Expected if_it_were(Result result) const {
    return softmax::if_it_were(
        right(), [&](std::int64_t index) { return result(index / width, index % width); });
  }
  /// The same for a quotient of two sums over the parts. Of each part the terms get its number, the
  /// row, and the factor that brings it to the greatest maximum.
  template <class Weighted, class Sum>
  Expected if_parts_were(Weighted weighted_term, Sum sum_term) const {
    return if_it_were([&](std::int64_t row, std::int64_t i) {
      double greatest = -kInfinity, above = 0, below = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        greatest = std::max(greatest, max_at(part, row));
      }
      for (std::int64_t part = 0; part < parts; ++part) {
        const double factor = std::exp(max_at(part, row) - greatest);
        above += weighted_term(part, row, i, factor);
        below += sum_term(part, row, factor);
      }
      return above / below;
    });
  }
};

// What has likely happened, as far as the result tells it.
std::string explain_usual(const Task& t, const Values& got) {
  auto weighted = [&t](auto part, auto row, auto i, double factor) {
    return factor * t.weighted_at(part, row, i);
  };
  auto plain_weighted = [&t](auto part, auto row, auto i, double) {
    return t.weighted_at(part, row, i);
  };
  auto sum = [&t](auto part, auto row, double factor) { return factor * t.sum_at(part, row); };
  auto plain_sum = [&t](auto part, auto row, double) { return t.sum_at(part, row); };
  auto once = [](auto part, auto, double) { return part == 0 ? 1. : 0.; };
  const tile::Mistake mistakes[] = {
      {"this is the vector itself: nothing was divided by the sum, or the vector was multiplied by "
       "it before",
       t.if_parts_were(weighted, once)},
      {"the parts are added up as they are: each is relative to a maximum of its own",
       t.if_parts_were(plain_weighted, plain_sum)},
      {"the sums are added up as they are: each is relative to a maximum of its own, as the "
       "vectors are",
       t.if_parts_were(weighted, plain_sum)},
      {"the vectors are added up as they are: each is relative to a maximum of its own, as the "
       "sums are",
       t.if_parts_were(plain_weighted, sum)},
      {"all parts count the same: one with a greater maximum or more columns must count more",
       t.if_parts_were([&t](auto part, auto row, auto i,
                            double) { return t.weighted_at(part, row, i) / t.sum_at(part, row); },
                       [](auto, auto, double) { return 1.; })},
  };
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  if (std::ranges::any_of(got, softmax::is_unwritten)) return {};
  if (t.parts > 1 && t.rows > 1) {
    return "\nHint: one row was right, and several are not. All parts of a row do not lie side by "
           "side: max and sum are [parts][rows]. Which index walks faster?";
  }
  if (t.parts > 1) {
    return "\nHint: one part was right, and several are not. exp(x - old) times what is "
           "exp(x - new)?";
  }
  return {};
}

// Whether every element is right, except that of rows for which `is_bad` there is NaN or infinity.
template <class IsBad>
bool only_not_finite(const Task& t, const Values& got, IsBad is_bad) {
  const Expected right = t.right();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (tile::matches(got[i], right.value[i], right.bound[i])) continue;
    if (std::isfinite(got[i]) || !is_bad(static_cast<std::int64_t>(i) / t.width)) return false;
  }
  return true;
}

template <class Explain>
void check(Task task, Explain explain) {
  using tile::DeviceBuffer;
  INFO(task.text());
  task.make_partials();
  auto input = [](const char* name, const Values& values) {
    return DeviceBuffer::input(
        name, tile::vector_layout(DType::fp32, static_cast<std::int64_t>(values.size())), values);
  };
  const DeviceBuffer max = input("max", task.max), sum = input("sum", task.sum),
                     weighted = input("weighted", task.weighted);
  auto floats = [](const DeviceBuffer& buffer) { return static_cast<const float*>(buffer.raw()); };
  const softmax::Partials partials{floats(max), floats(sum), floats(weighted),
                                   task.parts,  task.rows,   task.width};
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const Values got =
        softmax::run("average", tile::matrix_layout(DType::fp32, task.rows, task.width, task.width),
                     poison, {&max, &sum, &weighted}, [&partials](void* average) {
                       return softmax::merge_partials(partials, static_cast<float*>(average));
                     });
    tile::require_right("average", got, task.right(), [&] { return explain(task, got); });
  }
}

// Maxima that lie 200 apart from part to part, ascending or descending.
void check_far(std::int64_t parts, double apart) {
  Task task(3, parts, 5, 40);
  for (std::int64_t part = 0; part < parts; ++part) {
    task.shift_part(part, static_cast<double>(part) * apart);
  }
  check(task, [](const Task& t, const Values& got) -> std::string {
    const bool overflowed = only_not_finite(t, got, [](auto) { return true; });
    if (!overflowed) return {};
    return "\nHint: the maxima of these parts lie 200 apart, and infinity or NaN came out. What "
           "are the parts relative to, and may an exponent be positive?";
  });
}

// Row r has an empty part wherever its bit is set in r. The last row would have nothing but those.
void check_empty(std::int64_t parts, bool with_last) {
  Task task((std::int64_t{1} << parts) - (with_last ? 0 : 1), parts, 4, 37);
  for (std::int64_t row = 0; row < task.rows; ++row) {
    for (std::int64_t part = 0; part < parts; ++part) {
      if (row >> part & 1) task.fill_part(part, row, -kInfinity);
    }
  }
  check(task, [with_last](const Task& t, const Values& got) -> std::string {
    if (with_last && only_not_finite(t, got, [&t](auto row) { return row == t.rows - 1; })) {
      return "\nHint: a row whose parts are all empty is NaN, and should be 0. What is -infinity "
             "minus itself, and what is 0 / 0?";
    }
    if (only_not_finite(t, got, [](auto row) { return row > 0; })) {
      return "\nHint: an empty part has made NaN of its row. At which place is it -infinity minus "
             "itself, maybe only if the first parts are empty?";
    }
    return {};
  });
}

// A NaN, NaN alone, and infinity.
void check_nan() {
  Task task(8, 3, 4, 33);
  task.x_at(1, 1, 2) = kNaN;
  task.fill_part(0, 3, kNaN);
  task.x_at(2, 5, 0) = kInfinity;
  for (std::int64_t part = 0; part < 3; ++part) task.fill_part(part, 7, kNaN);
  check(task, [](const Task& t, const Values& got) -> std::string {
    const Expected right = t.right();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(right.value[i]) && !std::isnan(got[i])) {
        return "\nHint: a part of row " + std::to_string(static_cast<std::int64_t>(i) / t.width) +
               " has seen NaN or infinity, so its sum is NaN. A NaN was lost: is it taken for an "
               "empty part? No comparison with NaN is true";
      }
    }
    return {};
  });
}

}  // namespace

TEST_CASE("03.2 merging parts") {
  struct Shape {
    std::int64_t rows, parts, cols, width;
  };
  // One part, one row; then more of either. Widths around a block's 128 threads.
  for (const Shape& s : {Shape{1, 1, 6, 1},
                         {1, 1, 6, 128},
                         {1, 2, 6, 64},
                         {1, 3, 1, 127},
                         {2, 2, 6, 128},
                         {5, 3, 11, 129},
                         {3, 7, 4, 300},
                         {4, 40, 3, 5},
                         {33, 2, 9, 1}}) {
    check(Task(s.rows, s.parts, s.cols, s.width), explain_usual);
  }
  for (const double apart : {200., -200.}) {
    check_far(2, apart);
    check_far(5, apart);
  }
  for (const bool with_last : {false, true}) {
    for (const std::int64_t parts : {2, 3, 5}) check_empty(parts, with_last);
  }
  check_empty(1, true);
  check_nan();
}
