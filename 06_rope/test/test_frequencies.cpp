// Chapter 06's tests: frequencies, tables, and what others' code makes of the same numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "harness/pairs.hpp"
#include "rotary/frequencies.hpp"

namespace rope {
namespace {

using Values = std::vector<double>;

constexpr double kUnit = 0x1p-24;  // of fp32
constexpr double kTurn = 2 * std::numbers::pi;

/// Turns of each pair within `length` tokens.
Values turns(const Values& f, double length) {
  Values turns;
  for (const double each : f) turns.push_back(length * each / kTurn);
  return turns;
}

void check_near(const Values& got, const Values& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - expected[i]) <= 1e-14 * expected[i]);
  }
}

// ---- What others computed ----

struct Frequencies {
  FrequencyProblem problem;
  double attention_factor;
  Values frequencies;
};
const Frequencies kTransformers[] = {
#include "recorded/transformers.inc"
};

struct VllmRows {
  struct Row {
    std::int64_t position;
    Values cos_then_sin;
  };
  FrequencyProblem problem;
  std::vector<Row> rows;
};
const VllmRows kVllm[] = {
#include "recorded/vllm.inc"
};

/// How far a frequency computed in fp32 may be from f_i, which is scaled, where before the scaling
/// it was f0_i. With u = 2^-24 and L turns t_i of a pair within the trained length:
/// - b^x, x = 2i/d: pow is off by 1 ulp, 2 u at most; x by u, which makes u x ln b = u |ln f0_i|;
///   b itself by u (if a scaling has changed it). The reciprocal: u. That makes (4 + |ln f0_i|) u.
/// - A division by s or by a number of a list: u.
/// - yarn adds two such numbers, each times a weight: 2 u more. llama3 does the same. The weights,
///   a difference divided and taken from 1, are off by 3 u in yarn; in llama3 by what t_i is off by
///   (as f0_i, and 4 u for 2 pi and its divisions), at most (8 + |ln f0_i|) u of `high` turns, with
///   the difference of the factors as the unit, and 3 u. A weight's error counts with f0_i.
double error_in_fp32(const FrequencyProblem& p, double f, double f0) {
  const double of_power = 4 + std::abs(std::log(f0));
  const double high = p.high_frequency_factor, low = p.low_frequency_factor;
  const double of_weight = p.scaling == Scaling::yarn     ? 3
                           : p.scaling == Scaling::llama3 ? 3 + (4 + of_power) * high / (high - low)
                                                          : 0;
  return 1.001 * kUnit * ((of_power + 3) * f + of_weight * f0);
}
/// f0_i; of the scalings that change the base, f_i.
Values before_scaling(FrequencyProblem p) {
  if (p.scaling != Scaling::ntk && p.scaling != Scaling::dynamic_ntk) p.scaling = Scaling::none;
  return frequencies(p);
}

/// The papers' formulas, pair by pair.
double frequency(const FrequencyProblem& p, std::int64_t pair) {
  const auto d = static_cast<double>(p.rotary_dim), i = static_cast<double>(pair);
  const auto trained = static_cast<double>(p.trained_length);
  double base = p.base;
  if (p.scaling == Scaling::ntk || p.scaling == Scaling::dynamic_ntk) {
    const double beyond = std::max(0.0, static_cast<double>(p.length) / trained - 1);
    const double s = p.scaling == Scaling::ntk ? p.factor : 1 + p.factor * beyond;
    base *= std::pow(s, d / (d - 2));
  }
  if (p.rule == Rule::half_truncated && 4 * pair >= p.rotary_dim) return 0;
  const double exponent = p.rule == Rule::paper ? 2 * i / d : i / (d / 4 - 1);
  const double f = std::exp(-exponent * std::log(base));
  double kept = 1;  // of f, and the rest of f / factor
  if (p.scaling == Scaling::linear) kept = 0;
  if (p.scaling == Scaling::llama3) {
    const double wavelength = kTurn / f;
    kept = (trained / wavelength - p.low_frequency_factor) /
           (p.high_frequency_factor - p.low_frequency_factor);
  } else if (p.scaling == Scaling::yarn) {
    const auto pair_of = [&](double rotations) {
      return d * std::log(trained / (rotations * kTurn)) / (2 * std::log(p.base));
    };
    const double low = std::clamp(std::floor(pair_of(p.beta_fast)), 0.0, d - 1);
    const double high = std::clamp(std::ceil(pair_of(p.beta_slow)), 0.0, d - 1);
    kept = i <= low ? 1 : (high - i) / (high - low);
  }
  kept = std::clamp(kept, 0.0, 1.0);
  if (p.scaling == Scaling::longrope) {
    return f / (p.length > p.trained_length ? p.long_factors : p.short_factors)
                   .at(static_cast<std::size_t>(pair));
  }
  return f * (kept + (1 - kept) / p.factor);
}

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("frequencies: the two rules") {
    check_near(frequencies({.rotary_dim = 4, .base = 100}), {1, 0.1});
    check_near(frequencies({.rotary_dim = 8}), {1, 0.1, 0.01, 0.001});
    const auto half = [](std::int64_t d, double base) {
      return frequencies({.rotary_dim = d, .rule = Rule::half_truncated, .base = base});
    };
    check_near(half(16, 1000), {1, 0.1, 0.01, 0.001, 0, 0, 0, 0});
    check_near(half(8, 1024), {1, 1.0 / 1024, 0, 0});
    check_near(half(4, 1024), {1, 0});
    CHECK(frequencies({.rotary_dim = 0}).empty());
    CHECK(frequencies({.rotary_dim = 0, .scaling = Scaling::yarn, .trained_length = 9}).empty());
  }

  TEST_CASE("frequencies: linear: position p s turns as p did") {
    const FrequencyProblem none{.rotary_dim = 64};
    FrequencyProblem linear = none;
    linear.scaling = Scaling::linear, linear.factor = 4;
    const Tables tables = make_tables(frequencies(none), 50);
    const Tables scaled = make_tables(frequencies(linear), 200);
    for (std::size_t p = 0; p < 50; ++p) {
      for (std::size_t i = 0; i < 32; ++i) {
        CHECK(scaled.cos[4 * p * 32 + i] == tables.cos[p * 32 + i]);
        CHECK(scaled.sin[4 * p * 32 + i] == tables.sin[p * 32 + i]);
      }
    }
    linear.rule = Rule::half_truncated;
    CHECK(frequencies(linear)[0] == 0.25);
    CHECK(frequencies(linear)[31] == 0);
  }

  TEST_CASE("frequencies: ntk: the first pair turns as before, the last s times as slowly") {
    const Values f = frequencies({.rotary_dim = 128, .base = 5e5});
    const Values ntk =
        frequencies({.rotary_dim = 128, .base = 5e5, .scaling = Scaling::ntk, .factor = 8});
    CHECK(ntk[0] == 1);
    CHECK(std::abs(ntk[63] - f[63] / 8) <= 1e-14 * f[63]);
    for (std::size_t i = 1; i < 63; ++i) {
      CHECK(ntk[i] < f[i]);
      CHECK(ntk[i] > f[i] / 8);
      // Each pair is slower than the one before by the same factor.
      CHECK(std::abs(ntk[i] * ntk[i] - ntk[i - 1] * ntk[i + 1]) <= 1e-14 * ntk[i] * ntk[i]);
    }
  }

  TEST_CASE("frequencies: dynamic ntk: nothing up to L, then s with each further L") {
    FrequencyProblem p{
        .rotary_dim = 64, .scaling = Scaling::dynamic_ntk, .factor = 1.7, .trained_length = 3000};
    const Values f = frequencies({.rotary_dim = 64});
    for (const std::int64_t length : {0, 1, 2999, 3000}) {
      p.length = length;
      CHECK(frequencies(p) == f);
    }
    p.length = 3001;
    CHECK(frequencies(p)[31] < f[31]);
    p.length = 9000;  // the factor is 1 + 2 s
    check_near(frequencies(p),
               frequencies({.rotary_dim = 64, .scaling = Scaling::ntk, .factor = 4.4}));
  }

  TEST_CASE("frequencies: yarn: fast pairs as they were, slow ones divided, a ramp between") {
    const FrequencyProblem p{.rotary_dim = 128,
                             .base = 1e4,
                             .scaling = Scaling::yarn,
                             .factor = 16,
                             .trained_length = 4096};
    const Values f = frequencies({.rotary_dim = 128}), yarn = frequencies(p), t = turns(f, 4096);
    std::vector<double> kept;
    for (std::size_t i = 0; i < 64; ++i) {
      CAPTURE(i);
      if (t[i] >= 32) {
        CHECK(yarn[i] == f[i]);
      } else if (t[i] <= 1) {
        CHECK(yarn[i] == f[i] / 16);
      } else {
        CHECK(yarn[i] < f[i]);
        CHECK(yarn[i] > f[i] / 16);
        kept.push_back((yarn[i] - f[i] / 16) / (f[i] - f[i] / 16));
      }
    }
    REQUIRE(kept.size() > 10);  // equal steps
    for (std::size_t i = 2; i < kept.size(); ++i) {
      CHECK(std::abs(kept[i - 2] - 2 * kept[i - 1] + kept[i]) <= 1e-13);
    }
  }

  TEST_CASE("frequencies: yarn: every pair fast, and every pair slow") {
    FrequencyProblem p{.rotary_dim = 16, .base = 100, .scaling = Scaling::yarn, .factor = 4};
    const Values f = frequencies({.rotary_dim = 16, .base = 100});
    p.trained_length = std::int64_t{1} << 40;
    CHECK(frequencies(p) == f);
    p.trained_length = 1;
    for (std::size_t i = 1; i < 8; ++i) CHECK(frequencies(p)[i] == f[i] / 4);
  }

  TEST_CASE("frequencies: yarn: untruncated, the ramp goes from 32 turns to 1, between pairs") {
    FrequencyProblem p{.rotary_dim = 128,
                       .base = 1e4,
                       .scaling = Scaling::yarn,
                       .factor = 16,
                       .trained_length = 4096};
    const Values truncated = frequencies(p);
    p.untruncated = true;
    const Values f = frequencies({.rotary_dim = 128}), yarn = frequencies(p), t = turns(f, 4096);
    int moved = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      CAPTURE(i);
      // ln t falls by the same amount from pair to pair, so the weight is linear in it.
      const double kept = std::clamp(std::log(t[i]) / std::log(32.0), 0.0, 1.0);
      CHECK(std::abs(yarn[i] - (kept * f[i] + (1 - kept) * f[i] / 16)) <= 1e-13 * f[i]);
      if (yarn[i] != truncated[i]) ++moved;
    }
    CHECK(moved > 10);
  }

  TEST_CASE("frequencies: unrotated pairs are the last ones, with any rule and scaling") {
    // As "proportional" in Hugging Face: a quarter of the pairs, of the whole row's frequencies.
    check_near(
        frequencies(
            {.rotary_dim = 8, .scaling = Scaling::linear, .factor = 2, .unrotated_pairs = 2}),
        {0.5, 0.05, 0, 0});
    check_near(frequencies({.rotary_dim = 4, .unrotated_pairs = 2}), {0, 0});
    check_near(
        frequencies(
            {.rotary_dim = 16, .rule = Rule::half_truncated, .base = 1000, .unrotated_pairs = 5}),
        {1, 0.1, 0.01, 0, 0, 0, 0, 0});
  }

  TEST_CASE("frequencies: llama3: fast, slow, and no step at either threshold") {
    FrequencyProblem p{.rotary_dim = 128,
                       .base = 5e5,
                       .scaling = Scaling::llama3,
                       .factor = 8,
                       .trained_length = 8192};
    const Values f = frequencies({.rotary_dim = 128, .base = 5e5}), t = turns(f, 8192);
    int between = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      CAPTURE(i);
      const double scaled = frequencies(p)[i];
      if (t[i] >= 4) {
        CHECK(scaled == f[i]);
      } else if (t[i] <= 1) {
        CHECK(scaled == f[i] / 8);
      } else {
        ++between;
        // Llama's code: smooth = (L / wavelength - low) / (high - low).
        const double smooth = (8192 / (kTurn / f[i]) - 1) / (4 - 1);
        CHECK(std::abs(scaled - ((1 - smooth) * f[i] / 8 + smooth * f[i])) <= 1e-15);
      }
    }
    CHECK(between >= 3);
    for (const double beside : {1 - 1e-9, 1 + 1e-9}) {
      p.low_frequency_factor = t[30] * beside, p.high_frequency_factor = 4 * t[30];
      CHECK(std::abs(frequencies(p)[30] - f[30] / 8) <= 1e-9 * f[30]);
      p.low_frequency_factor = t[30] / 4, p.high_frequency_factor = t[30] * beside;
      CHECK(std::abs(frequencies(p)[30] - f[30]) <= 2e-9 * f[30]);
    }
  }

  TEST_CASE("frequencies: longrope: the short list up to L, the long one beyond") {
    FrequencyProblem p{.rotary_dim = 6,
                       .base = 1000,
                       .scaling = Scaling::longrope,
                       .factor = 4,
                       .trained_length = 100,
                       .short_factors = {1, 1.25, 2},
                       .long_factors = {1, 4, 8}};
    for (const std::int64_t length : {0, 100}) {
      p.length = length;
      check_near(frequencies(p), {1, 0.08, 0.005});
    }
    p.length = 101;
    check_near(frequencies(p), {1, 0.025, 0.00125});
  }

  TEST_CASE("frequencies: attention factors") {
    FrequencyProblem p{.rotary_dim = 2, .factor = 16, .trained_length = 4096};
    p.short_factors = p.long_factors = {1};
    for (const Scaling scaling :
         {Scaling::none, Scaling::linear, Scaling::ntk, Scaling::dynamic_ntk, Scaling::llama3}) {
      p.scaling = scaling;
      CHECK(attention_factor(p) == 1);
    }
    p.scaling = Scaling::yarn;
    CHECK(std::abs(attention_factor(p) - 1.2772588722239781) <= 1e-15);
    p.scaling = Scaling::longrope;  // ln 16 / ln 4096 = 4 / 12
    CHECK(std::abs(attention_factor(p) - 2 / std::sqrt(3.0)) <= 1e-15);
    p.attention_factor = 1.3;  // of a model's own
    CHECK(attention_factor(p) == 1.3);
    p.attention_factor = 0, p.factor = 1;
    CHECK(attention_factor(p) == 1);
    p.scaling = Scaling::yarn;
    CHECK(attention_factor(p) == 1);
  }

  TEST_CASE("tables: positions by pairs, rounded once, however far out") {
    const Values f = frequencies({.rotary_dim = 16});
    const std::int64_t positions = 131'072;
    for (const double factor : {1.0, 1.25}) {
      const Tables tables = make_tables(f, positions, factor);
      REQUIRE(tables.cos.size() == 8 * positions);
      REQUIRE(tables.sin.size() == 8 * positions);
      for (const std::int64_t p : {0, 1, 2, 77, 4095, 131'071}) {
        for (std::size_t i = 0; i < 8; ++i) {
          const auto at = static_cast<std::size_t>(p) * 8 + i;
          const auto angle = static_cast<long double>(p) * static_cast<long double>(f[i]);
          // Half a unit of a number below 1 or 2, and the angle's own rounding to double.
          const double bound = (factor > 1 ? 1 : 0.5) * kUnit + 131'072 * 0x1p-52;
          CHECK(std::abs(tables.cos[at] - factor * static_cast<double>(std::cos(angle))) <= bound);
          CHECK(std::abs(tables.sin[at] - factor * static_cast<double>(std::sin(angle))) <= bound);
        }
      }
    }
    CHECK(make_tables(f, 0).cos.empty());
    CHECK(make_tables({}, 5).sin.empty());
  }

  // Hugging Face computes frequencies in fp32, attention factors in double.
  TEST_CASE("frequencies: those of Hugging Face transformers") {
    for (const Frequencies& theirs : kTransformers) {
      const FrequencyProblem& p = theirs.problem;
      CAPTURE(name(p.scaling));
      REQUIRE(validate(p).ok());
      CHECK(std::abs(attention_factor(p) - theirs.attention_factor) <= 1e-15);
      const Values ours = frequencies(p), before = before_scaling(p);
      REQUIRE(ours.size() == theirs.frequencies.size());
      for (std::size_t i = 0; i < ours.size(); ++i) {
        CAPTURE(i);
        CHECK(std::abs(ours[i] - theirs.frequencies[i]) <= error_in_fp32(p, ours[i], before[i]));
      }
    }
  }

  // vLLM computes tables in fp32 throughout: a frequency that is off by e_i makes an angle that is
  // off by p e_i, and their product is rounded, u p f_i. linear divides the position in the place
  // of the frequency, which is no more. PyTorch's cosine and sine are off by 3.5 units of a number
  // below 1, 3.5 u, theirs is rounded again after the attention factor a, and ours once: 6 u a.
  TEST_CASE("tables: those of vLLM") {
    for (const VllmRows& theirs : kVllm) {
      FrequencyProblem p = theirs.problem;
      CAPTURE(name(p.scaling));
      REQUIRE(validate(p).ok());
      Values f = frequencies(p);
      if (p.scaling == Scaling::ntk) {
        // vLLM has another formula of this name (https://kexue.fm/archives/9706): pair i is slower
        // by s^(2(i + 1)/d), and so the first pair already; the last one by s in both.
        f = frequencies({.rotary_dim = p.rotary_dim});
        const auto d = static_cast<double>(p.rotary_dim);
        for (std::size_t i = 0; i < f.size(); ++i) {
          f[i] /= std::pow(p.factor, 2 * static_cast<double>(i + 1) / d);
        }
      }
      const Values before = p.scaling == Scaling::ntk ? f : before_scaling(p);
      const double a = attention_factor(p);
      REQUIRE(theirs.rows.size() == 4);
      double largest = 0;
      for (const VllmRows::Row& row : theirs.rows) {
        CAPTURE(row.position);
        const Values& cos_then_sin = row.cos_then_sin;
        const auto at = static_cast<double>(row.position);
        REQUIRE(cos_then_sin.size() == 2 * f.size());
        for (std::size_t i = 0; i < f.size(); ++i) {
          CAPTURE(i);
          const double of_angle = at * (error_in_fp32(p, f[i], before[i]) + kUnit * f[i]);
          const double bound = 1.001 * a * (of_angle + 6 * kUnit);
          const auto ours = [&](double value) { return static_cast<float>(a * value); };
          for (const double error :
               {std::abs(ours(std::cos(at * f[i])) - cos_then_sin[i]),
                std::abs(ours(std::sin(at * f[i])) - cos_then_sin[f.size() + i])}) {
            largest = std::max(largest, error);
            CHECK(error <= bound);
          }
        }
      }
      // As scaling.md says: a thousandth at position 131,071.
      if (p.scaling == Scaling::none) CHECK(std::round(largest * 1000) == 1);
    }
  }

  TEST_CASE("frequencies: what is wrong is named") {
    const FrequencyProblem good{.rotary_dim = 8,
                                .factor = 2,
                                .trained_length = 100,
                                .short_factors = {1, 1, 1, 1},
                                .long_factors = {1, 2, 3, 4}};
    using Change = std::function<void(FrequencyProblem&)>;
    constexpr Scaling kAll[] = {Scaling::none,        Scaling::linear, Scaling::ntk,
                                Scaling::dynamic_ntk, Scaling::yarn,   Scaling::llama3,
                                Scaling::longrope};
    using Set = std::vector<Scaling>;
    // Those of `by` refuse, and the others do not look.
    const auto refuses = [&](const char* argument, const Set& by, const Change& change,
                             tile::Code code = tile::Code::invalid_argument) {
      for (const Scaling scaling : kAll) {
        FrequencyProblem p = good;
        p.scaling = scaling;
        change(p);
        const tile::Status status = validate(p);
        CAPTURE(name(scaling));
        CAPTURE(status.message);
        if (std::find(by.begin(), by.end(), scaling) == by.end()) {
          CHECK(status.ok());
        } else {
          CHECK(status.code == code);
          CHECK(status.message.rfind(std::string(argument) + ": ", 0) == 0);
        }
      }
    };
    const Set all(std::begin(kAll), std::end(kAll)), scaled(all.begin() + 1, all.end());
    const Set base{Scaling::ntk, Scaling::dynamic_ntk};
    refuses("nothing", {}, [](FrequencyProblem&) {});
    refuses("rotary_dim", all, [](FrequencyProblem& p) { p.rotary_dim = -2; });
    refuses("rotary_dim", all, [](FrequencyProblem& p) { p.rotary_dim = 7; });
    refuses(
        "rotary_dim", all, [](FrequencyProblem& p) { p.rotary_dim = (1 << 29) + 2; },
        tile::Code::unsupported);
    refuses("rotary_dim", base, [](FrequencyProblem& p) {
      p.rotary_dim = 2;
      p.short_factors = p.long_factors = {1};
    });
    refuses("rotary_dim", all, [](FrequencyProblem& p) {
      p.rule = Rule::half_truncated;
      p.rotary_dim = 6;
    });
    refuses("rule", all, [](FrequencyProblem& p) { p.rule = static_cast<Rule>(2); });
    for (const int wrong : {-1, 5}) {
      refuses("unrotated_pairs", all, [=](FrequencyProblem& p) { p.unrotated_pairs = wrong; });
    }
    const auto all_but = [&](const Set& these) {
      Set others = all;
      std::erase_if(others, [&](Scaling each) { return std::ranges::count(these, each) != 0; });
      return others;
    };
    refuses("untruncated", all_but({Scaling::yarn}),
            [](FrequencyProblem& p) { p.untruncated = true; });
    refuses("attention_factor", all_but({Scaling::yarn, Scaling::longrope}),
            [](FrequencyProblem& p) { p.attention_factor = 1.5; });
    for (const double wrong : {-1.0, 3.5e38, HUGE_VAL, std::nan("")}) {
      refuses("attention_factor", all, [=](FrequencyProblem& p) { p.attention_factor = wrong; });
    }
    refuses(
        "scaling", {Scaling::ntk, Scaling::dynamic_ntk, Scaling::yarn},
        [](FrequencyProblem& p) { p.rule = Rule::half_truncated; }, tile::Code::unsupported);
    refuses("scaling", all, [](FrequencyProblem& p) { p.scaling = static_cast<Scaling>(7); });
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    for (const double wrong : {1.0, 0.5, -2.0, kInfinity, kNaN}) {
      refuses("base", all, [=](FrequencyProblem& p) { p.base = wrong; });
      if (wrong != 1) refuses("factor", scaled, [=](FrequencyProblem& p) { p.factor = wrong; });
    }
    const Set trained{Scaling::dynamic_ntk, Scaling::yarn, Scaling::llama3, Scaling::longrope};
    refuses("trained_length", trained, [](FrequencyProblem& p) { p.trained_length = 0; });
    refuses("trained_length", {Scaling::longrope},
            [](FrequencyProblem& p) { p.trained_length = 1; });
    refuses("length", {Scaling::dynamic_ntk, Scaling::longrope},
            [](FrequencyProblem& p) { p.length = -1; });
    for (const double wrong : {0.0, -1.0, kNaN}) {
      refuses("beta_slow", {Scaling::yarn}, [=](FrequencyProblem& p) { p.beta_slow = wrong; });
      refuses("low_frequency_factor", {Scaling::llama3},
              [=](FrequencyProblem& p) { p.low_frequency_factor = wrong; });
    }
    for (const double wrong : {1.0, 0.5, kInfinity, kNaN}) {
      refuses("beta_fast", {Scaling::yarn}, [=](FrequencyProblem& p) { p.beta_fast = wrong; });
      refuses("high_frequency_factor", {Scaling::llama3},
              [=](FrequencyProblem& p) { p.high_frequency_factor = wrong; });
    }
    for (Values FrequencyProblem::*list :
         {&FrequencyProblem::short_factors, &FrequencyProblem::long_factors}) {
      const char* name_of_list =
          list == &FrequencyProblem::short_factors ? "short_factors" : "long_factors";
      refuses(name_of_list, {Scaling::longrope},
              [=](FrequencyProblem& p) { (p.*list).pop_back(); });
      for (const double wrong : {0.0, -1.0, kInfinity, kNaN}) {
        refuses(name_of_list, {Scaling::longrope},
                [=](FrequencyProblem& p) { (p.*list)[2] = wrong; });
      }
    }
  }

  TEST_CASE("frequencies: each value of an option with each value of the others") {
    constexpr Scaling kScalings[] = {Scaling::none,        Scaling::linear, Scaling::ntk,
                                     Scaling::dynamic_ntk, Scaling::yarn,   Scaling::llama3,
                                     Scaling::longrope};
    int both_clamped = 0;
    for (const Rule rule : {Rule::paper, Rule::half_truncated}) {
      const auto problems = tile::drawn_cases(1, [&](tile::Pick& pick) {
        FrequencyProblem p{.rotary_dim = pick({8, 64}), .rule = rule};
        p.scaling = pick(kScalings);
        p.factor = pick({2.5, 8.0});
        struct Model {
          double base;
          std::int64_t trained_length;
        };
        const auto [base, trained] =
            pick({Model{2, 100}, Model{1e4, 100}, Model{2, 4096}, Model{1e4, 4096}});
        p.base = base, p.trained_length = trained;
        p.length = pick({50, 10'000});
        if (pick({false, true})) {
          p.beta_fast = 64, p.beta_slow = 0.5, p.low_frequency_factor = 2,
          p.high_frequency_factor = 9;
        }
        for (std::int64_t i = 0; p.scaling == Scaling::longrope && i < p.rotary_dim / 2; ++i) {
          p.short_factors.push_back(1 + static_cast<double>(i) / 8);
          p.long_factors.push_back(2 + static_cast<double>(i));
        }
        return p;
      });
      for (const FrequencyProblem& p : problems) {
        const bool is_for_paper = p.scaling == Scaling::ntk || p.scaling == Scaling::dynamic_ntk ||
                                  p.scaling == Scaling::yarn;
        CHECK(validate(p).ok() == (rule == Rule::paper || !is_for_paper));
        if (!validate(p).ok()) continue;
        CAPTURE(name(p.rule));
        CAPTURE(name(p.scaling));
        CAPTURE(p.base);
        CAPTURE(p.trained_length);
        Values expected;
        for (std::int64_t i = 0; i < p.rotary_dim / 2; ++i) expected.push_back(frequency(p, i));
        const Values got = frequencies(p);
        REQUIRE(got.size() == expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          CAPTURE(i);
          CHECK(std::abs(got[i] - expected[i]) <= 1e-13 * expected[i]);
        }
        // yarn's ramp would begin before the first pair and end after the last one.
        both_clamped += p.scaling == Scaling::yarn && p.base == 2 && p.trained_length == 100;
      }
    }
    CHECK(both_clamped > 0);
  }
}

}  // namespace rope
