// Checks exercise 03.3. Not part of the task.
#include <algorithm>
#include <array>

#include "test/exercises/checks.hpp"

using softmax::Values;
using tile::DType;
using tile::Expected;

namespace {

constexpr std::int64_t kWarp = 32, kRows = 4;  // of a block

struct Task {
  softmax::BackwardProblem p;
  Values y, dy;

  Task(DType type, std::int64_t rows, std::int64_t cols)
      : p{.type = type, .rows = rows, .cols = cols} {
    p.ldy += 3;
    p.lddy += 5;
    p.lddx += 1;
  }
  /// Small integers, with which no sum and no product rounds in fp32. The sums of long rows are too
  /// large for the integers of fp16 and bf16.
  static Task exact(DType type, std::int64_t rows, std::int64_t cols) {
    Task task(type, rows, cols);
    task.y = tile::integers(rows * cols, type, 1, 1, 3);
    task.dy = tile::integers(rows * cols, type, 2, -1, 3);
    return task;
  }
  /// A softmax, and random gradients.
  static Task random(DType type, std::int64_t rows, std::int64_t cols) {
    Task task(type, rows, cols);
    const softmax::ForwardProblem forward{.type = type, .rows = rows, .cols = cols};
    task.y = reference(forward, tile::normal(rows * cols, type, 3)).value;
    tile::round_to(task.y, type);
    task.dy = tile::normal(rows * cols, type, 4);
    return task;
  }

  std::string text() const {
    return std::string(tile::name(p.type)) + ", rows = " + std::to_string(p.rows) +
           ", cols = " + std::to_string(p.cols);
  }
  double y_at(std::int64_t row, std::int64_t col) const {
    return y[static_cast<std::size_t>(row * p.cols + col)];
  }
  double dy_at(std::int64_t row, std::int64_t col) const {
    return dy[static_cast<std::size_t>(row * p.cols + col)];
  }
  Expected right() const { return reference(p, y, dy); }

  /// What comes out if the element (row, col) is what `element` gives.
  template <class Element>
  Expected if_it_were(Element element) const {
    Expected expected = softmax::if_it_were(
        right(), [&](std::int64_t i) { return element(i / p.cols, i % p.cols); });
    // Rounded to the type, of which there may be more than of the right result.
    for (std::size_t i = 0; i < expected.value.size(); ++i) {
      expected.bound[i] += 2 * tile::unit_roundoff(p.type) * std::abs(expected.value[i]);
    }
    return expected;
  }

  /// What the lanes of a warp have added up, each by itself.
  std::array<double, kWarp> own_sums(std::int64_t row) const {
    std::array<double, kWarp> sums{};
    for (std::int64_t col = 0; col < p.cols; ++col) {
      sums[static_cast<std::size_t>(col % kWarp)] += y_at(row, col) * dy_at(row, col);
    }
    return sums;
  }
  /// What comes out if lane l takes for the sum what `sum_of_lane` finds, given all lanes' own sums
  /// and l.
  template <class SumOfLane>
  Expected if_lanes_had(SumOfLane sum_of_lane) const {
    return if_it_were([&](std::int64_t row, std::int64_t col) {
      const double sum = sum_of_lane(own_sums(row), static_cast<int>(col % kWarp));
      return y_at(row, col) * (dy_at(row, col) - sum);
    });
  }
};

using Sums = std::array<double, kWarp>;

// After shuffles with the distances from `first` down to `last`, of the lane at the same distance
// in both directions.
double after_xor(Sums sums, int lane, int first, int last) {
  for (int distance = first; distance >= last; distance /= 2) {
    Sums next = sums;
    for (int i = 0; i < kWarp; ++i) {
      next[static_cast<std::size_t>(i)] += sums[static_cast<std::size_t>(i ^ distance)];
    }
    sums = next;
  }
  return sums[static_cast<std::size_t>(lane)];
}

// After those with __shfl_down_sync. A lane that asks beyond the last one gets its own.
double after_down(Sums sums, int lane) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    Sums next = sums;
    for (int i = 0; i < kWarp; ++i) {
      const int from = i + distance < kWarp ? i + distance : i;
      next[static_cast<std::size_t>(i)] += sums[static_cast<std::size_t>(from)];
    }
    sums = next;
  }
  return sums[static_cast<std::size_t>(lane)];
}

std::string explain(const Task& t, const Values& got) {
  auto sum = [&t](std::int64_t row, bool with_y) {
    double all = 0;
    for (std::int64_t col = 0; col < t.p.cols; ++col) {
      all += (with_y ? t.y_at(row, col) : 1) * t.dy_at(row, col);
    }
    return all;
  };
  auto at = [&t](auto formula) {
    return t.if_it_were([&t, formula](std::int64_t row, std::int64_t col) {
      return formula(t.y_at(row, col), t.dy_at(row, col), row);
    });
  };
  const tile::Mistake mistakes[] = {
      {"the sum is that of dy alone: each dy counts with its y",
       at([&](double y, double dy, auto row) { return y * (dy - sum(row, false)); })},
      {"the sum is not multiplied by y: it belongs into the brackets",
       at([&](double y, double dy, auto row) { return y * dy - sum(row, true); })},
      {"this is dy - sum y dy: the y before the brackets is missing",
       at([&](double, double dy, auto row) { return dy - sum(row, true); })},
      {"this is y (dy + sum y dy): the sum is to be subtracted",
       at([&](double y, double dy, auto row) { return y * (dy + sum(row, true)); })},
      {"this is y dy: the sum is missing", at([](double y, double dy, auto) { return y * dy; })},
      {"each lane subtracts what it has added up itself: the lanes have exchanged nothing",
       t.if_lanes_had(
           [](const Sums& sums, int lane) { return sums[static_cast<std::size_t>(lane)]; })},
      {"only lane 0 has the whole sum: with __shfl_down_sync the others know a part. Who else "
       "needs it?",
       t.if_lanes_had(after_down)},
      {"only 16 lanes of a warp exchange what they have: what is the first distance?",
       t.if_lanes_had(
           [](const Sums& sums, int lane) { return after_xor(sums, lane, kWarp / 4, 1); })},
      {"neighbouring lanes have not exchanged what they have: what is the last distance?",
       t.if_lanes_had(
           [](const Sums& sums, int lane) { return after_xor(sums, lane, kWarp / 2, 2); })},
      {"the sum has every lane's part twice: the distances are 16, 8, 4, 2, 1, and no other",
       at([&](double y, double dy, auto row) { return y * (dy - 2 * sum(row, true)); })},
      {"this is the sum of all four rows of a block: each warp has a row of its own, and "
       "reduce_block is for a block that has one",
       at([&](double y, double dy, std::int64_t row) {
         double all = 0;
         const std::int64_t first = row / kRows * kRows;
         for (std::int64_t r = first; r < std::min(first + kRows, t.p.rows); ++r)
           all += sum(r, true);
         return y * (dy - all);
       })},
  };
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  if (std::ranges::any_of(got, softmax::is_unwritten) && t.p.cols % kWarp == 0) return {};
  if (t.p.type != DType::fp32) {
    return "\nHint: in fp32 these shapes were right. Of which type is the sum?";
  }
  if (t.p.cols % kWarp != 0 && t.p.rows % kRows == 0) {
    return "\nHint: rows of 32 and 64 columns were right. What becomes of the columns after the "
           "last whole 32?";
  }
  if (t.p.cols == kWarp && t.p.rows == kRows) {
    return "\nHint: do all 32 lanes of a warp have the same row, and is each of its columns that "
           "of "
           "one lane?";
  }
  return {};
}

void check(const Task& task, const Expected& right) {
  using tile::DeviceBuffer;
  INFO(task.text());
  const softmax::BackwardProblem& p = task.p;
  auto layout = [&p](std::int64_t ld) { return tile::matrix_layout(p.type, p.rows, p.cols, ld); };
  const DeviceBuffer y = DeviceBuffer::input("y", layout(p.ldy), task.y);
  const DeviceBuffer dy = DeviceBuffer::input("dy", layout(p.lddy), task.dy);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const Values got = softmax::run(
        "dx", layout(p.lddx), poison, {&y, &dy},
        [&](void* dx) {
          return softmax::backward_by_warp(p, {.y = y.raw(), .dy = dy.raw(), .dx = dx});
        },
        "\nHint: do all 32 lanes come to every shuffle, also those that have no column at that "
        "time?");
    tile::require_right("dx", got, right, [&] { return explain(task, got); });
  }
}

void check_exact(DType type, std::int64_t rows, std::int64_t cols) {
  const Task task = Task::exact(type, rows, cols);
  Expected exact = task.right();
  exact.value = tile::rounded(exact.value, type);
  std::ranges::fill(exact.bound, 0.0);
  check(task, exact);
}

}  // namespace

TEST_CASE("03.3 the backward pass, a warp for each row") {
  // Whole warps and a whole block; then a rest of columns; then a rest of rows.
  const std::int64_t shapes[][2] = {{4, 32}, {8, 64}, {4, 45}, {4, 7}, {5, 32}, {1, 1}};
  for (const auto& shape : shapes) check_exact(DType::fp32, shape[0], shape[1]);
  const std::int64_t more[][2] = {{3, 31}, {6, 33}, {7, 100}, {9, 257}, {2, 1003}, {130, 5}};
  for (const DType type : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const auto& shape : more) {
      check_exact(type, shape[0], shape[1]);
      const Task task = Task::random(type, shape[0], shape[1]);
      check(task, task.right());
    }
  }
}
