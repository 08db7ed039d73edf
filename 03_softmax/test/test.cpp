// Chapter 03's tests: every step on every type and in every mode, in shapes and values.
#include <set>

#include "test_support.hpp"

namespace softmax {
namespace {

// ---- Inputs whose results are exact ----

// Forward zeros and -infinities, so that y is 1 / (number of zeros) or 0; backward the same, or
// their exponentials 1 and 0, and gradients that are small integers.
Inputs exact_inputs(const Problem& p) {
  Values first = tile::integers(p.rows * p.cols, p.type, 21, 0, 1);
  if (is_forward(p) || p.log) {
    for (double& x : first) x = x == 0 ? -kInfinity : 0;
  }
  if (is_forward(p)) return {first};
  return {first, tile::integers(p.rows * p.cols, p.type, 22, -2, 2)};
}

// Sums of zeros may be either zero.
Values without_negative_zeros(Values values) {
  for (double& x : values) {
    if (x == 0) x = 0;
  }
  return values;
}

// No sum rounds: these are the same bits, except for the logarithm. Of that the sum is exact. The
// cases of a list have the poisons in turn.
void check_exact(const Step& step, const Problem& p, Three offsets = {0, 0, 0}) {
  CAPTURE(step.name);
  const std::string problem = describe(p, offsets);
  CAPTURE(problem);
  const Inputs in = exact_inputs(p);
  tile::Expected expected = reference(p, in.first, in.dy);
  // 1 / sum rounds to fp32 before it is stored.
  const Values in_fp32 =
      is_forward(p) && !p.log ? tile::rounded(expected.value, DType::fp32) : expected.value;
  if (is_forward(p) && p.log) {
    // 1 ulp of logf, and the type's rounding.
    const double relative = 2.1 * tile::unit_roundoff(DType::fp32) +
                            (p.type == DType::fp32 ? 0 : tile::unit_roundoff(p.type));
    for (std::size_t i = 0; i < expected.bound.size(); ++i) {
      expected.bound[i] = std::isinf(expected.value[i]) ? 0 : -expected.value[i] * relative;
    }
  } else {
    expected.value = tile::rounded(in_fp32, p.type);
    expected.bound.assign(expected.bound.size(), 0.0);
  }
  expected.value = without_negative_zeros(std::move(expected.value));
  check_values(p, without_negative_zeros(run(step, p, in, offsets, poison_in_turn())), expected);
}

// ---- Sizes ----

// Around what a thread, a lane's vectors, a warp and a block hold in the steps that keep a row in
// registers, and where they begin to go another way; and odd ones.
std::set<std::int64_t> columns() {
  const std::vector<std::int64_t> odd = tile::odd_sizes(32);
  std::set<std::int64_t> all(odd.begin(), odd.end());
  for (const std::int64_t size :
       {4, 8, 128, 8 * 32, 16 * 32, 32 * 32, 2048, 4096, 8192, 16 * 1024}) {
    all.insert({size - 1, size, size + 1, size + 8});
  }
  return all;
}

// So long that a block cannot hold them: some steps go another way, or share them among 2 to 16
// blocks.
std::vector<std::int64_t> many_columns(Mode mode) {
  std::vector<std::int64_t> all{32 * 1024 - 1, 32 * 1024,     32 * 1024 + 1,
                                32 * 1024 + 8, 64 * 1024 + 8, 70'001};
  if (!mode.log || !tile::device().simulated) all.insert(all.end(), {131'080, 300'040});
  if (!tile::device().simulated) {
    all.insert(all.end(), {131'072, 262'144, 262'145, 524'288, 524'296, 1'000'003, 1 << 20});
  }
  return all;
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("exact results, at all sizes") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      std::int64_t turn = 0;
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : columns()) {
          const std::int64_t rows = 1 + ++turn % 5;
          if (!selection.takes_next()) continue;
          check_exact(step, plain(type, rows, cols, mode));
        }
      }
    });
  }

  TEST_CASE("exact results in long rows") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : many_columns(mode)) {
          if (!selection.takes_next()) continue;
          check_exact(step, plain(type, cols < 100'000 ? 2 : 1, cols, mode));
        }
      }
    });
  }

  TEST_CASE("random values") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      for (const Mode mode : kModes) {
        for (const std::int64_t cols :
             {2, 3, 7, 31, 33, 97, 113, 255, 257, 587, 799, 1023, 1025, 2056, 5003, 33'000}) {
          if (!selection.takes_next()) continue;
          const Problem p = plain(type, 3, cols, mode);
          check_step(step, p, normal(p));
        }
      }
    });
  }

  TEST_CASE("many rows") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      for (const Mode mode : kModes) {
        for (const auto& [rows, cols] :
             {std::pair{129, 3}, {150, 8}, {65, 40}, {33, 130}, {9, 513}, {5, 1024}}) {
          if (!selection.takes_next()) continue;
          check_exact(step, plain(type, rows, cols, mode));
        }
      }
      if (tile::device().simulated) return;
      for (const Mode mode : kModes) {
        for (const auto& [rows, cols] : {std::pair{10'007, 5}, {10'007, 300}, {1'009, 4096}}) {
          check_exact(step, plain(type, rows, cols, mode));
        }
      }
    });
  }

  // Whoever stays for several rows must keep them apart: what it knows of them, and in the places
  // of one row the next one's chunks, of which causal rows have more or less.
  TEST_CASE("more long rows than a card holds at one time") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      const std::int64_t rows = tile::device().simulated ? 24 : 312;
      const std::int64_t vector = vector_length(type);
      for (const Mode mode : kModes) {
        // 64 KiB and a little: three blocks with up to 32 KiB each.
        const Problem p = plain(type, rows, 4096 * vector + 5 * vector, mode);
        if (selection.takes_next()) check_exact(step, p);
        // The reference of so many rows takes its time.
        if (!tile::device().simulated && (mode.log || !is_forward(p))) continue;
        if (selection.takes_next()) check_step(step, p, normal(p));
        if (selection.takes_next()) check_step(step, causal(p, 12), normal(p));
        // 512 KiB and a little.
        const Problem longer = plain(type, 5, 32'768 * vector + vector, mode);
        if (!tile::device().simulated && selection.takes_next()) {
          check_step(step, causal(longer, 5), normal(longer));
        }
      }
    });
  }

  TEST_CASE("pointers and rows aligned in every way") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      const std::int64_t vector = vector_length(type);
      const Three offsets[] = {{0, 0, 0},
                               {1, 0, 0},
                               {0, 1, 0},
                               {0, 0, 1},
                               {1, 1, 1},
                               {3, 3, 3},
                               {vector, 0, 2 * vector}};
      const Three paddings[] = {
          {0, 0, 0}, {vector, 2 * vector, 3 * vector}, {1, 2, 3}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1},
          {5, 5, 5}};
      // Whole vectors, unless offset or padding forbid it, and not: in a part of a warp, in a warp,
      // in a block. Their number has no divisor in common with those above.
      constexpr std::int64_t kCols[] = {40, 37, 264, 1000, 1032};
      tile::Selection selection(step.types, type);
      std::size_t turn = 0;
      for (const Mode mode : kModes) {
        for (const Three offset : offsets) {
          for (const Three padding : paddings) {
            const std::int64_t cols = kCols[++turn % std::size(kCols)];
            if (!selection.takes_next()) continue;
            check_exact(step, padded(plain(type, 3, cols, mode), padding), offset);
          }
        }
        // Whole vectors in all sizes.
        for (const std::int64_t cols : kCols) {
          for (const Three padding : {paddings[0], paddings[1]}) {
            if (!selection.takes_next()) continue;
            check_exact(step, padded(plain(type, 3, cols, mode), padding), offsets[6]);
          }
        }
      }
    });
  }

  TEST_CASE("rows far apart: whoever reads one too many meets a bad address") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : {5, 40, 300, 1100}) {
          if (!selection.takes_next()) continue;
          constexpr std::int64_t kPadding = std::int64_t{1} << 17;
          check_exact(step, padded(plain(type, 2, cols, mode), {kPadding, kPadding, kPadding}));
        }
      }
    });
  }

  TEST_CASE("no rows, no columns, one column") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const Mode mode : kModes) {
        for (const auto& [rows, cols] : {std::pair{0, 5}, {5, 0}, {0, 0}}) {
          check_step(step, plain(type, rows, cols, mode), {});
        }
        check_step(step, causal(plain(type, 0, 5, mode), 0), {});
        check_step(step, causal(plain(type, 0, 5, mode), 3), {});

        // Everything is in the one column: 1, its logarithm 0, and nothing changes that.
        const Problem p = plain(type, 29, 1, mode);
        CAPTURE(step.name);
        const std::string problem = describe(p);
        CAPTURE(problem);
        const double only = is_forward(p) && !p.log ? 1 : 0;
        Inputs in{tile::adversarial_finite(29, type)};
        if (!is_forward(p)) in = {Values(29, p.log ? 0.0 : 1.0), tile::normal(29, type, 3)};
        CHECK(run(step, p, in) == Values(29, only));
      }
    });
  }

  TEST_CASE("denormals, large numbers and ramps") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : {31, 62, 300, 1057}) {
          if (!selection.takes_next()) continue;
          const Problem p = plain(type, 7, cols, mode);
          Inputs in = inputs_of(p, tile::adversarial_finite(p.rows * cols, type));
          if (!is_forward(p)) {
            in = normal(p);
            in.dy = tile::adversarial_finite(p.rows * cols, type);
            for (double& x : in.dy) {
              if (std::abs(x) > 1e30) x *= 0x1p-16;  // so that no sum overflows
            }
          }
          check_step(step, p, in);
        }
      }
    });
  }

  TEST_CASE("rows of large numbers, of very negative ones, ascending and descending") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : {37, 264, 1031, 9000}) {
          if (!selection.takes_next()) continue;
          const Problem p = plain(type, 5, cols, mode);
          Values x = tile::all_very_negative(5 * cols, type);
          const Values random = tile::normal(cols, type, 31);
          for (std::int64_t col = 0; col < cols; ++col) {
            const auto at = static_cast<std::size_t>(col);
            const auto n = static_cast<std::size_t>(cols);
            const double part = static_cast<double>(col) / static_cast<double>(cols);
            x[n + at] = random[at] * 1e4;
            x[2 * n + at] = 40 * part;  // each number is the greatest so far
            x[3 * n + at] = -40 * part;
            x[4 * n + at] = 1e4 + 8 * part;
          }
          tile::round_to(x, type);
          check_step(step, p, inputs_of(p, x));
        }
      }
    });
  }

  TEST_CASE("scale") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      tile::Selection selection(step.types, type);
      constexpr std::int64_t kCols[] = {45, 264, 1031, 40, 1032};
      std::size_t turn = 0;
      for (const Mode mode : kModes) {
        for (const float scale : {0.125f, 0.08838834764f, 3.7f, 1e-4f, 1e-42f, 1e30f}) {
          const std::int64_t cols = kCols[++turn % std::size(kCols)];
          if (!selection.takes_next()) continue;
          const Problem p = scaled(plain(type, 3, cols, mode), scale);
          check_step(step, p, normal(p));
        }
      }
    });
  }

  TEST_CASE("a scale that is a power of two may as well be in x, to the bit") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : {37, 264, 1031}) {
          CAPTURE(step.name);
          const Problem p = plain(type, 3, cols, mode);
          const std::string problem = describe(p);
          CAPTURE(problem);
          Inputs in = normal(p);
          const Values with_scale = run(step, scaled(p, 4), in);
          if (is_forward(p)) {
            for (double& x : in.first) x *= 4;
            CHECK(run(step, p, in) == with_scale);
          } else {  // dx is proportional to it
            for (double& x : in.dy) x *= 4;
            CHECK(run(step, p, in) == with_scale);
          }
        }
      }
    });
  }

  TEST_CASE("a number added to a whole row changes nothing, to the bit") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const bool log : {false, true}) {
        for (const std::int64_t cols : {37, 264, 1031}) {
          CAPTURE(step.name);
          const Problem p = plain(type, 3, cols, {Direction::forward, log});
          const std::string problem = describe(p);
          CAPTURE(problem);
          // Integers, whose sums with the shift are exact in all types.
          Values x = tile::integers(3 * cols, type, 41, -20, 20);
          const Values before = run(step, p, {x});
          for (const double shift : {100.0, -200.0}) {
            for (double& each : x) each += shift;
            CHECK(run(step, p, {x}) == before);
          }
        }
      }
    });
  }

  TEST_CASE("probabilities add up to 1") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const std::int64_t cols : {5, 37, 264, 1031}) {
        CAPTURE(step.name);
        CAPTURE(cols);
        const Problem p = plain(type, 4, cols, {Direction::forward, false});
        const Inputs in = normal(p);
        const Values y = run(step, p, in);
        const Values bound = reference(p, in.first).bound;
        for (std::size_t row = 0; row < 4; ++row) {
          double sum = 0, most = 0;
          for (std::size_t i = row * static_cast<std::size_t>(cols);
               i < (row + 1) * static_cast<std::size_t>(cols); ++i) {
            sum += y[i];
            most += bound[i];
          }
          CHECK(std::abs(sum - 1) <= most);
          CHECK(most < 0.02);
        }
      }
    });
  }

  TEST_CASE("repeated runs give the same bytes") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const Mode mode : kModes) {
        for (const std::int64_t cols : {61, 1031, 40'000}) {
          const Problem p = plain(type, cols < 10'000 ? 9 : 1, cols, mode);
          CAPTURE(step.name);
          const std::string problem = describe(p);
          CAPTURE(problem);
          const Inputs in = normal(p);
          const Values first = run(step, p, in);
          const int runs = tile::device().simulated ? 2 : 100;
          for (int i = 0; i < runs; ++i) {
            const bool same = run(step, p, in, {0, 0, 0}, tile::kOutputPoisons[i % 2]) == first;
            REQUIRE(same);
          }
        }
      }
    });
  }
}

}  // namespace softmax
