// Checks exercise 03.1. Not part of the task.
// Shipped: expf of these numbers is infinity
#include <algorithm>
#include <span>

#include "test/exercises/checks.hpp"

using softmax::kInfinity;
using softmax::kNaN;
using softmax::Values;
using tile::DType;
using tile::Expected;

namespace {

constexpr std::int64_t kThreads = 256, kWarp = 32;

using Row = std::span<const double>;

double greatest(Row x) {
  double max = -kInfinity;
  for (const double each : x) max = std::max(max, each);
  return max;
}

/// Rows of finite numbers may be followed by some that are not.
struct Task {
  std::int64_t rows, cols;
  Values x;

  Task(std::int64_t some_rows, std::int64_t some_cols)
      : rows(some_rows), cols(some_cols), x(tile::normal(rows * cols, DType::fp32, 1)) {}

  std::string text() const {
    return "rows = " + std::to_string(rows) + ", cols = " + std::to_string(cols);
  }
  Row row(std::int64_t index) const {
    return Row(x).subspan(static_cast<std::size_t>(index * cols), static_cast<std::size_t>(cols));
  }
  double& at(std::int64_t row, std::int64_t col) {
    return x[static_cast<std::size_t>(row * cols + col)];
  }

  /// The logarithm of the softmax of a row's greatest element is max - log-sum-exp: the chapter's
  /// reference has it, and how far a kernel may be from it. To add the maximum rounds once more.
  Expected right() const {
    const softmax::ForwardProblem p{.type = DType::fp32, .rows = rows, .cols = cols, .log = true};
    const Expected y = reference(p, x);
    Expected expected{{rows}, {}, {}};
    for (std::int64_t r = 0; r < rows; ++r) {
      const Row each = row(r);
      const double max = greatest(each);
      const bool has_nan = std::ranges::any_of(each, [](double v) { return std::isnan(v); });
      if (has_nan || std::isinf(max)) {
        expected.value.push_back(has_nan ? kNaN : max);
        expected.bound.push_back(0);
        continue;
      }
      const auto place =
          static_cast<std::size_t>(r * cols + (std::ranges::find(each, max) - each.begin()));
      const double value = max - y.value[place], before = y.bound[place];
      expected.value.push_back(value);
      expected.bound.push_back(before +
                               tile::unit_roundoff(DType::fp32) * (std::abs(value) + before));
    }
    return expected;
  }

  /// What comes out of "reference + log(sum exp(x - reference))" if threads do not agree on the
  /// reference: each has that of its group of `threads`. Thread 0 writes.
  Expected if_reference_is_of(std::int64_t threads) const {
    return softmax::if_it_were(right(), [&](std::int64_t r) {
      const Row each = row(r);
      Values max(static_cast<std::size_t>(kThreads / threads), -kInfinity);
      auto of = [&](std::int64_t col) -> double& {
        return max[static_cast<std::size_t>(col % kThreads / threads)];
      };
      for (std::int64_t col = 0; col < cols; ++col) {
        of(col) = std::max(of(col), each[static_cast<std::size_t>(col)]);
      }
      double sum = 0;
      for (std::int64_t col = 0; col < cols; ++col) {
        sum += std::exp(each[static_cast<std::size_t>(col)] - of(col));
      }
      return max[0] + std::log(sum);
    });
  }
  /// What comes out if the sum is that of the block's first threads.
  Expected if_sum_is_of(std::int64_t threads) const {
    return softmax::if_it_were(right(), [&](std::int64_t r) {
      const double max = greatest(row(r));
      double sum = 0;
      for (std::int64_t col = 0; col < cols; ++col) {
        if (col % kThreads < threads) sum += std::exp(row(r)[static_cast<std::size_t>(col)] - max);
      }
      return max + std::log(sum);
    });
  }
  /// The same of a function of the maximum and of the sum relative to it.
  template <class Function>
  Expected if_it_were(Function function) const {
    const Expected expected = right();
    return softmax::if_it_were(expected, [&](std::int64_t r) {
      const double max = greatest(row(r));
      return function(max, std::exp(expected.value[static_cast<std::size_t>(r)] - max));
    });
  }
  Expected if_all_were(double value) const {
    return softmax::if_it_were(right(), [value](std::int64_t) { return value; });
  }
  /// The right results, but NaN for `special`.
  Expected if_nan_for(double special) const {
    Expected expected = right();
    std::ranges::replace(expected.value, special, kNaN);
    return expected;
  }
};

template <class Explain>
void check(const Task& task, Explain explain) {
  INFO(task.text());
  const std::int64_t ld = task.cols + 3;
  const tile::DeviceBuffer x = tile::DeviceBuffer::input(
      "x", tile::matrix_layout(DType::fp32, task.rows, task.cols, ld), task.x);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const Values got = softmax::run(
        "result", tile::vector_layout(DType::fp32, task.rows), poison, {&x}, [&](void* result) {
          return softmax::log_sum_exp(static_cast<const float*>(x.raw()), ld,
                                      static_cast<float*>(result), task.rows, task.cols);
        });
    tile::require_right("result", got, task.right(), [&] { return explain(got); });
  }
}

// Numbers around 0.
void check_usual(std::int64_t rows, std::int64_t cols) {
  const Task task(rows, cols);
  check(task, [&task](const Values& got) -> std::string {
    const tile::Mistake mistakes[] = {
        {"the maximum that was subtracted is missing in the result: "
         "exp(x) = exp(max) exp(x - max), and what is the logarithm of that?",
         task.if_it_were([](double, double sum) { return std::log(sum); })},
        {"this is the maximum and log2 of the sum",
         task.if_it_were([](double max, double sum) { return max + std::log2(sum); })},
        {"the sum itself was added to the maximum: its logarithm is missing",
         task.if_it_were([](double max, double sum) { return max + sum; })},
        {"this is the sum: its logarithm is missing",
         task.if_it_were([](double max, double sum) { return std::exp(max) * sum; })},
        {"each thread subtracts the maximum of its own columns: the terms of a sum must be "
         "relative to the same number",
         task.if_reference_is_of(1)},
        {"each warp subtracts the maximum of its own columns: the terms of a sum must be relative "
         "to the same number",
         task.if_reference_is_of(kWarp)},
        {"the sum is that of thread 0 alone: the sums of all threads are to be added up",
         task.if_sum_is_of(1)},
        {"the sum is that of warp 0 alone: the sums of all warps are to be added up",
         task.if_sum_is_of(kWarp)},
    };
    if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
    if (task.cols == 1) return {};
    return "\nHint: one column was right. Two reductions follow one another: does a fast warp "
           "store its sum while a slow one still reads the maxima?";
  });
}

// The same 1000 further up. exp(88.8) is infinity.
void check_large(std::int64_t rows, std::int64_t cols) {
  Task task(rows, cols);
  for (double& x : task.x) x += 1000;
  tile::round_to(task.x, DType::fp32);
  check(task, [&task](const Values& got) {
    const tile::Mistake mistakes[] = {
        {"expf of these numbers is infinity, and their log-sum-exp is not. What may be subtracted "
         "from all of them, so that no exponential is greater than 1?",
         task.if_all_were(kInfinity)}};
    return tile::explain_mistake(got, mistakes);
  });
}

// Numbers around -20480.
void check_very_negative(std::int64_t rows, std::int64_t cols) {
  Task task(rows, cols);
  task.x = tile::all_very_negative(rows * cols, DType::fp32);
  check(task, [&task](const Values& got) {
    const tile::Mistake mistakes[] = {
        {"all exponentials have become 0, so what was subtracted is far above all of these "
         "numbers. What does the maximum begin with?",
         task.if_all_were(-kInfinity)}};
    return tile::explain_mistake(got, mistakes);
  });
}

// Rows of which all, all but one, or no element is -infinity.
void check_without_weight(std::int64_t cols) {
  Task task(5, cols);
  std::ranges::fill(task.x, -kInfinity);
  if (cols > 0) {
    task.at(0, cols - 1) = -7;
    task.at(2, 0) = 1000;
    for (std::int64_t col = 0; col < cols; ++col) task.at(4, col) = 0.5;
  }
  check(task, [&task](const Values& got) {
    const tile::Mistake mistakes[] = {
        {"a row without any weight has given NaN. What is -infinity minus itself?",
         task.if_nan_for(-kInfinity)}};
    return tile::explain_mistake(got, mistakes);
  });
}

void check_infinity(std::int64_t cols) {
  Task task(4, cols);
  task.at(1, cols / 2) = kInfinity;
  for (std::int64_t col = 0; col < cols; ++col) task.at(3, col) = col % 2 ? -kInfinity : kInfinity;
  check(task, [&task](const Values& got) {
    const tile::Mistake mistakes[] = {
        {"a row with +infinity has given NaN. What is infinity minus itself?",
         task.if_nan_for(kInfinity)}};
    return tile::explain_mistake(got, mistakes);
  });
}

void check_nan(std::int64_t cols) {
  Task task(8, cols);
  task.at(1, cols / 2) = kNaN;
  task.at(3, 0) = kInfinity;
  task.at(3, cols - 1) = kNaN;
  for (std::int64_t col = 0; col < cols; ++col) {
    task.at(5, col) = kNaN;
    task.at(7, col) = col == cols / 3 ? kNaN : -kInfinity;
  }
  check(task, [&task](const Values& got) -> std::string {
    const Expected right = task.right();
    for (std::size_t r = 0; r < got.size(); ++r) {
      if (std::isnan(right.value[r]) && !std::isnan(got[r])) {
        return "\nHint: row " + std::to_string(r) +
               " holds a NaN. A NaN was lost: fmaxf passes it over, and the sum does not, if it "
               "is looked at";
      }
    }
    return {};
  });
}

}  // namespace

TEST_CASE("03.1 log-sum-exp") {
  // One column, one warp and its borders, a block and its borders, more than a column for a thread.
  for (const std::int64_t cols : {1, 2, 31, 32, 33, 255, 256, 257, 1003, 4099}) {
    check_usual(cols % 5 + 1, cols);
  }
  for (const std::int64_t cols : {1, 40, 1003}) {
    check_large(3, cols);
    check_very_negative(3, cols);
  }
  for (const std::int64_t cols : {0, 1, 40, 1003}) check_without_weight(cols);
  for (const std::int64_t cols : {2, 40, 1003}) check_infinity(cols);
  for (const std::int64_t cols : {2, 40, 1003}) check_nan(cols);
}
