// Checks exercise 02.6. Not part of the task.
// Shipped: these sums are not in fp16
#include <cmath>
#include <cstdio>

#include "harness/convert.hpp"
#include "harness/mistakes.hpp"
#include "test/exercises/checks.hpp"

using matmul::Task;
using tile::DType;
using tile::Expected;

namespace {

constexpr std::int64_t kTileK = 32, kMmaK = 16;

Task with_values(Task task, std::vector<double> a, std::vector<double> b) {
  task.a = std::move(a);
  task.b = std::move(b);
  return task;
}

// Sums up to 1024, all exact in fp16.
Task integers(std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::int64_t most = k <= 16 ? 8 : 4;
  return with_values(Task::fp16(m, n, k, true), tile::integers(m * k, DType::fp16, 1, 1, most),
                     tile::integers(k * n, DType::fp16, 2, 1, most));
}

// No two terms of a sum cancel each other, so that an error can be given in parts of the sum.
Task positive(std::int64_t m, std::int64_t n, std::int64_t k) {
  return with_values(Task::fp16(m, n, k, true), tile::uniform(m * k, DType::fp16, 1, 0.5, 1),
                     tile::uniform(k * n, DType::fp16, 2, 0.5, 1));
}

// What is promised for sums in fp32, whatever the signs.
Expected fp32_sums(const Task& task) { return reference(task.p, task.a, task.b, {}, false); }

// And in fp16: every few products the sum so far is rounded, or cut off, which loses up to 2u of
// it, u = 2^-11. An A100 does so after 8 products, and others later (Fasi et al., "Numerical
// behavior of NVIDIA tensor cores", 2021; Khattak and Mikaitis, "Accurate models of NVIDIA tensor
// cores", 2025). What is lost counts in all sums that follow (Higham, "Accuracy and Stability of
// Numerical Algorithms", 3.3).
Expected fp16_sums(const Task& task) {
  constexpr std::int64_t kProducts = 8;
  const double most = 2 * tile::unit_roundoff(DType::fp16), tiny = 0x1p-24;  // fp16's denormals
  Expected expected = fp32_sums(task);
  for (std::int64_t i = 0; i < task.p.m * task.p.n; ++i) {
    double magnitude = 0, error = 0;
    for (std::int64_t l = 0; l < task.p.k; ++l) {
      magnitude += std::abs(task.a_at(i / task.p.n, l) * task.b_at(l, i % task.p.n));
      if ((l + 1) % kProducts == 0 || l + 1 == task.p.k) {
        error += most * (magnitude + error) + tiny;
      }
    }
    expected.bound[static_cast<std::size_t>(i)] += error;
  }
  return expected;
}

// The element's bits, read as an integer.
double bits_as_number(double element) {
  const std::vector<std::byte> bytes = tile::from_double(std::vector{element}, DType::fp16);
  const double bits = std::to_integer<int>(bytes[0]) + 256 * std::to_integer<int>(bytes[1]);
  return tile::rounded(std::vector{bits}, DType::fp16)[0];
}

std::string explain(const Task& t, const std::vector<double>& got) {
  const Expected right = t.right();
  auto at = [&](std::int64_t row, std::int64_t col) {
    return right.value[static_cast<std::size_t>(row * t.p.n + col)];
  };
  std::vector<tile::Mistake> mistakes = {
      {"the bits of the elements were taken for integers: they are those of a __half",
       t.if_it_were([&](auto row, auto col) { return bits_as_number(at(row, col)); })},
      {"only the last 16 of k are there: mma adds to what its registers hold",
       t.if_terms_were([&](auto row, auto col, auto l) {
         const std::int64_t end = (t.p.k + kTileK - 1) / kTileK * kTileK;
         return l < end - kMmaK ? 0 : t.a_at(row, l) * t.b_at(l, col);
       })},
  };
  if (t.p.m % 16 == 0 && t.p.n % 8 == 0) {
    mistakes.insert(
        mistakes.end(),
        {{"neighbouring columns are exchanged: the first of two elements lies in the lower half of "
          "a register",
          t.if_it_were([&](auto row, auto col) { return at(row, col ^ 1); })},
         {"rows are exchanged with those 8 further down: the first register has a lane's upper "
          "row, the second its lower row",
          t.if_it_were([&](auto row, auto col) { return at(row ^ 8, col); })},
         {"columns come twice: a register has two elements, one in each half",
          t.if_it_were([&](auto row, auto col) { return at(row, col & ~std::int64_t{1}); })},
         {"rows come twice: a lane has a register for its upper row and one for its lower",
          t.if_it_were([&](auto row, auto col) { return at(row & ~std::int64_t{8}, col); })}});
  }
  return tile::explain_mistake(got, mistakes);
}

void check(const Task& task, const Expected& expected) {
  INFO(task.text());
  const std::vector<double> got = run(task, matmul::sums_in_fp16);
  tile::require_right("c", got, expected, [&] { return explain(task, got); });
}

// The worst element's error, and the greatest bound, in parts of the element.
struct Worst {
  double error = 0, bound = 0;

  Worst(const std::vector<double>& got, const Expected& expected) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double value = expected.value[i];
      error = std::max(error, std::abs(got[i] - value) / value);
      bound = std::max(bound, expected.bound[i] / value);
    }
  }
};

void check_errors() {
  std::printf(
      "The worst error of an element, and its bound, in parts of the element:\n"
      "     k   sums in fp32           sums in fp16\n"
      "          error     bound        error     bound\n");
  for (const std::int64_t k : {64, 512, 4096}) {
    const Task task = positive(64, 64, k);
    INFO(task.text());
    const std::vector<double> in_fp32 = run(task, matmul::sums_in_fp32),
                              in_fp16 = run(task, matmul::sums_in_fp16);
    const Expected fp32 = fp32_sums(task), fp16 = fp16_sums(task);
    const Worst of_fp32(in_fp32, fp32), of_fp16(in_fp16, fp16);
    std::printf("  %4lld   %8.5f  %8.5f     %8.5f  %8.5f\n", static_cast<long long>(k),
                of_fp32.error, of_fp32.bound, of_fp16.error, of_fp16.bound);
    std::fflush(stdout);

    const tile::Comparison right32 = tile::compare("c", in_fp32, fp32);
    REQUIRE_MESSAGE(right32.ok(), right32.message,
                    "\nHint: this is sums_in_fp32(), which was right");
    const tile::Comparison right16 = tile::compare("c", in_fp16, fp16);
    REQUIRE_MESSAGE(right16.ok(), right16.message);
    if (k < 4096) continue;
    REQUIRE_MESSAGE(!tile::compare("c", in_fp16, fp32).ok(),
                    "these sums are not in fp16, or not all the time: every element of ",
                    "sums_in_fp16() is within the bound of sums in fp32, ", of_fp32.bound,
                    " of the element, and the worst error is ", of_fp16.error);
  }
}

}  // namespace

TEST_CASE("02.6 sums in fp16") {
  matmul::require_tensor_cores();
  for (const std::int64_t k : {16, 32, 64}) {  // one instruction, two, and two tiles
    const Task task = integers(64, 64, k);
    Expected exact = task.right();
    std::ranges::fill(exact.bound, 0.0);
    check(task, exact);
  }
  const std::int64_t extents[][3] = {{1, 1, 1}, {65, 70, 50}, {30, 129, 100}, {5, 7, 0}};
  for (const auto& extent : extents) {
    const Task task = Task::fp16(extent[0], extent[1], extent[2], extent[0] == 65);
    check(task, fp16_sums(task));
  }
  check_errors();
}
