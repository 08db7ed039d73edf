#include "harness/hints.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "harness/poison.hpp"
#include "hint_cases.hpp"

namespace tile {
namespace {

TEST_CASE("hints: none speaks on random errors") {
  for (const Shape& shape : {Shape{1000}, Shape{32, 32}, Shape{2, 3, 20, 20}}) {
    const Expected tight = random_expected(shape);
    const std::size_t n = tight.value.size();
    const Expected loose = {shape, tight.value, std::vector<double>(n, 0.05)};
    const auto error = uniform(std::ssize(tight.value), DType::fp32, 2, 0.5, 4);
    const auto add_error = [&](std::size_t i) { return tight.value[i] + error[i]; };
    const auto many = [](std::size_t i) { return i * i % 7 == 2; };
    const auto few = [&](std::size_t i) { return i % (n / 3) == 5; };
    const auto one = [&](std::size_t i) { return i == n / 2 + 3; };
    for (const auto& got : {changed(tight, many, add_error), changed(tight, few, add_error),
                            changed(tight, one, add_error)}) {
      CHECK(compare("c", got, tight).mismatches > 0);
      CHECK(compare("c", got, tight).message.find("hint") == std::string::npos);
      CHECK(compare("c", got, loose).mismatches > 0);
      CHECK(compare("c", got, loose).message.find("hint") == std::string::npos);
    }
  }
}

TEST_CASE("hints: unwritten elements are known by either poison") {
  const Expected expected = random_expected({100});
  const auto last_ten = [](std::size_t i) { return i >= 90; };
  for (const Poison poison : kOutputPoisons) {
    for (const DType dtype : kDTypes) {
      if (dtype == DType::e4m3) continue;  // no result has it
      std::vector<double> got =
          changed(expected, last_ten, [&](std::size_t) { return poison_value(poison, dtype); });
      CHECK(contains(ask(hint_unwritten, expected, got), "all of them still hold the poison"));
      CHECK(ask(hint_read_outside, expected, got) == "");
      CHECK(ask(hint_uninitialised, expected, got) == "");
      got[3] = 100;
      CHECK(contains(ask(hint_unwritten, expected, got), "10 of them still hold the poison"));
    }
  }
}

TEST_CASE("hints: NaN tells where it was read, an ordinary NaN tells nothing") {
  const Expected expected = random_expected({100});
  const auto odd = [](std::size_t i) { return i % 2 == 1; };
  const auto filled = [&](double nan) {
    return changed(expected, odd, [&](std::size_t) { return nan; });
  };
  const auto outside = filled(poison_value(Poison::outside, DType::fp32));
  const auto fresh = filled(poison_value(Poison::uninitialised, DType::fp16));
  CHECK(contains(ask(hint_read_outside, expected, outside), "all of them are the NaN from around"));
  CHECK(ask(hint_uninitialised, expected, outside) == "");
  CHECK(contains(ask(hint_uninitialised, expected, fresh), "read before anything wrote it"));
  CHECK(ask(hint_read_outside, expected, fresh) == "");
  for (const Hint hint : {hint_unwritten, hint_read_outside, hint_uninitialised, hint_sign}) {
    CHECK(ask(hint, expected, filled(std::nan(""))) == "");
  }
}

TEST_CASE("hints: a tail in one dimension") {
  const Expected expected = random_expected({1000});
  const auto wrong_from = [&](std::size_t begin, std::size_t end) {
    return changed(
        expected, [=](std::size_t i) { return i >= begin && i < end; },
        [](std::size_t) { return 9.0; });
  };
  CHECK(ask(hint_tail, expected, wrong_from(992, 1000)) ==
        "only indices >= 992 of axis 0 differ: a tail that is not handled?");
  CHECK(ask(hint_tail, expected, wrong_from(993, 1000)) == "");  // no tile starts there
  CHECK(ask(hint_tail, expected, wrong_from(992, 995)) == "");   // most of the tail is right
  CHECK(ask(hint_tail, expected, wrong_from(400, 1000)) == "");  // longer than what is before it
  CHECK(ask(hint_tail, expected, wrong_from(0, 1000)) == "");
  std::vector<double> got = wrong_from(992, 1000);
  got[500] = 9;
  CHECK(ask(hint_tail, expected, got) == "");
}

TEST_CASE("hints: tails of rows, of columns and of both") {
  const Expected expected = random_expected({20, 36});
  const auto wrong_where = [&](auto where) {
    return changed(
        expected, [=](std::size_t i) { return where(i / 36, i % 36); },
        [](std::size_t) { return 9.0; });
  };
  CHECK(contains(ask(hint_tail, expected, wrong_where([](auto row, auto) { return row >= 16; })),
                 "only indices >= 16 of axis 0 differ"));
  CHECK(contains(ask(hint_tail, expected, wrong_where([](auto, auto col) { return col >= 32; })),
                 "only indices >= 32 of axis 1 differ"));
  CHECK(contains(ask(hint_tail, expected,
                     wrong_where([](auto row, auto col) { return row >= 16 || col >= 32; })),
                 "only indices >= 16 of axis 0 or indices >= 32 of axis 1 differ"));
  CHECK(ask(hint_tail, expected, wrong_where([](auto row, auto) { return row == 3; })) == "");
}

TEST_CASE("hints: compare() puts one into its message, the one that could least be chance") {
  const Expected expected = random_expected({12, 12});
  const auto doubled =
      changed(expected, everywhere, [&](std::size_t i) { return 2 * expected.value[i]; });
  CHECK(contains(compare("c", doubled, expected).message, "\nHint: got = 2 * expected"));
  const auto unwritten = changed(
      expected, [](std::size_t i) { return i / 12 >= 8; },
      [](std::size_t) { return poison_value(Poison::unwritten_nan, DType::fp32); });
  const Comparison tail = compare("c", unwritten, expected);
  CHECK(contains(tail.message, "\nHint: all of them still hold the poison"));
  CHECK_FALSE(contains(tail.message, "differ:"));
}

}  // namespace
}  // namespace tile
