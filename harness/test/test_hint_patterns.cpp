#include "harness/hints.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "harness/convert.hpp"
#include "hint_cases.hpp"

namespace tile {
namespace {

TEST_CASE("hints: a flipped sign") {
  const Expected expected = random_expected({100});
  const auto odd = [](std::size_t i) { return i % 2 == 1; };
  std::vector<double> got =
      changed(expected, odd, [&](std::size_t i) { return -expected.value[i]; });
  CHECK(contains(ask(hint_sign, expected, got), "got = -expected"));
  CHECK(ask(hint_factor, expected, got) == "");  // one guess is enough
  got[1] = 9;
  CHECK(ask(hint_sign, expected, got) == "");
  const auto two = [](std::size_t i) { return i < 2; };  // may be chance
  got = changed(expected, two, [&](std::size_t i) { return -expected.value[i]; });
  CHECK(ask(hint_sign, expected, got) == "");
}

TEST_CASE("hints: one factor everywhere") {
  Expected expected = random_expected({100});
  const auto scaled = [&](double factor) {
    return changed(expected, everywhere, [&](std::size_t i) { return factor * expected.value[i]; });
  };
  CHECK(contains(ask(hint_factor, expected, scaled(2)), "got = 2 * expected: a factor"));
  CHECK(contains(ask(hint_factor, expected, scaled(0.125)), "got = 0.125 * expected"));
  CHECK(contains(ask(hint_factor, expected, scaled(-3)), "got = -3 * expected"));
  CHECK(ask(hint_factor, expected, scaled(0)) == "");
  std::vector<double> got = scaled(2);
  got[7] *= 1.01;
  CHECK(ask(hint_factor, expected, got) == "");
  // A third is rounded, even where the bound is 0.
  expected.bound.assign(100, 0.0);
  got = rounded(scaled(1.0 / 3), DType::fp32);
  CHECK(contains(ask(hint_factor, expected, got), "got = 0.3333 "));
  // One element always differs by some factor.
  const auto one = [](std::size_t i) { return i < 1; };
  CHECK(ask(hint_factor, expected, changed(expected, one, [](std::size_t) { return 9.0; })) == "");
}

TEST_CASE("hints: a factor within the rounding errors that the bound allows") {
  Expected expected = random_expected({100});
  for (std::size_t i = 0; i < 100; ++i) expected.bound[i] = std::abs(expected.value[i]) / 256;
  const auto noise = uniform(100, DType::fp32, 3, -1, 1);
  const auto doubled = [&](std::size_t i) {
    return 2 * (expected.value[i] + noise[i] * expected.bound[i]);
  };
  CHECK(contains(ask(hint_factor, expected, changed(expected, everywhere, doubled)), "* expected"));
}

TEST_CASE("hints: no factor, and no sign, where they hold by chance") {
  // A row of its own has one, and the others are right.
  const Expected rows = random_expected({10, 10});
  const auto third_row = [](std::size_t i) { return i / 10 == 2; };
  const auto doubled = [&](std::size_t i) { return 2 * rows.value[i]; };
  CHECK(ask(hint_factor, rows, changed(rows, third_row, doubled)) == "");
  // Errors little above bounds that are as wide as the values.
  const Expected wide{{3}, {1, 1.1, 0.9}, {0.3, 0.3, 0.3}};
  CHECK(ask(hint_factor, wide, {1.31, 1.41, 0.5}) == "");
  const Expected small{{3}, {0.2, 0.2, -0.2}, {0.3, 0.3, 0.3}};
  CHECK(ask(hint_sign, small, {-0.11, -0.12, 0.13}) == "");
}

TEST_CASE("hints: a shift by one along any axis") {
  const Expected line = random_expected({100});
  for (const int step : {1, -1}) {
    const auto inside = [&](std::size_t i) { return step > 0 ? i + 1 < 100 : i > 0; };
    const auto from = [&](std::size_t i) { return line.value[step > 0 ? i + 1 : i - 1]; };
    std::vector<double> got = changed(line, inside, from);
    got[step > 0 ? 99 : 0] = 9;  // read from outside: says nothing
    CHECK(contains(ask(hint_shift, line, got),
                   step > 0 ? "expected[i + 1] along axis 0" : "expected[i - 1] along axis 0"));
    got[50] = 9;
    CHECK(ask(hint_shift, line, got) == "");
  }

  const Expected table = random_expected({10, 8});
  const auto above = [](std::size_t i) { return i + 8 < 80; };
  const auto below = [&](std::size_t i) { return table.value[i + 8]; };
  CHECK(contains(ask(hint_shift, table, changed(table, above, below)), "i + 1] along axis 0"));
  // A row's last element has no right neighbour: the next row's first is none.
  const auto in_row = [](std::size_t i) { return i % 8 != 7; };
  const auto right = [&](std::size_t i) { return table.value[i + 1]; };
  std::vector<double> got = changed(table, in_row, right);
  CHECK(contains(ask(hint_shift, table, got), "i + 1] along axis 1"));
  for (std::size_t row = 0; row < 10; ++row) got[row * 8 + 7] = 9;
  CHECK(contains(ask(hint_shift, table, got), "i + 1] along axis 1"));
  const auto two = [](std::size_t i) { return i < 2; };  // may be chance
  CHECK(ask(hint_shift, table, changed(table, two, right)) == "");
}

TEST_CASE("hints: a shift is judged by the neighbour's bound") {
  Expected line = random_expected({100});
  for (std::size_t i = 0; i < 100; ++i) line.bound[i] = i % 2 == 0 ? 0.01 : 1e-9;
  const auto from_even = [&](std::size_t i) { return line.value[i + 1] + 0.005; };
  const auto odd = [](std::size_t i) { return i % 2 == 1 && i < 99; };
  CHECK(contains(ask(hint_shift, line, changed(line, odd, from_even)), "i + 1] along axis 0"));
}

TEST_CASE("hints: transposed, alone and in a batch") {
  const Expected square = random_expected({12, 12});
  const auto other = [&](std::size_t i) { return square.value[i % 12 * 12 + i / 12]; };
  std::vector<double> got = changed(square, everywhere, other);
  CHECK(contains(ask(hint_transposed, square, got), "transposed?"));
  got[5] = 9;
  CHECK(ask(hint_transposed, square, got) == "");

  const Expected batch = random_expected({3, 12, 12});
  const auto within = [&](std::size_t i) {
    return batch.value[i / 144 * 144 + i % 12 * 12 + i / 12 % 12];
  };
  CHECK(contains(ask(hint_transposed, batch, changed(batch, everywhere, within)), "transposed?"));

  const auto two = [](std::size_t i) { return i == 1 || i == 2; };  // may be chance
  CHECK(ask(hint_transposed, square, changed(square, two, other)) == "");
  // Two squares one below the other are no square.
  const Expected tall = random_expected({6, 3});
  const auto half = [&](std::size_t i) { return tall.value[i / 9 * 9 + i % 3 * 3 + i / 3 % 3]; };
  CHECK(ask(hint_transposed, tall, changed(tall, everywhere, half)) == "");
}

}  // namespace
}  // namespace tile
