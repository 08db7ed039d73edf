// Frequencies and tables of the rotation, in double on the host.
#include "rotary/frequencies.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <string>

#include "tile/host/text.hpp"

namespace rope {
namespace {

using Values = std::vector<double>;

constexpr double kTurn = 2 * std::numbers::pi;
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 29;

// ---- Rules ----

// snippet-begin paper
/// b^(-2i/d) for each of d / 2 pairs.
Values paper(std::int64_t d, double base) {
  Values f;
  for (std::int64_t i = 0; i < d / 2; ++i) {
    f.push_back(std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d)));
  }
  return f;
}
// snippet-end paper

// snippet-begin half_truncated
/// d / 4 frequencies from 1 to 1 / b, both ends included; the other d / 4 pairs are not rotated.
Values half_truncated(std::int64_t d, double base) {
  const std::int64_t quarter = d / 4, steps = std::max<std::int64_t>(quarter - 1, 1);
  Values f(static_cast<std::size_t>(d / 2), 0.0);
  for (std::int64_t i = 0; i < quarter; ++i) {
    f[static_cast<std::size_t>(i)] =
        std::pow(base, -static_cast<double>(i) / static_cast<double>(steps));
  }
  return f;
}
// snippet-end half_truncated

Values of_rule(const FrequencyProblem& p) {
  return p.rule == Rule::paper ? paper(p.rotary_dim, p.base) : half_truncated(p.rotary_dim, p.base);
}

// ---- Scalings ----

// snippet-begin ntk
/// A greater base, with which the last pair's frequency is divided by s. The first one's is
/// unchanged.
Values ntk(const FrequencyProblem& p, double s) {
  const auto d = static_cast<double>(p.rotary_dim);
  return paper(p.rotary_dim, p.base * std::pow(s, d / (d - 2)));
}

/// s is 1 for texts of up to L tokens, and `factor` more with each further L.
Values dynamic_ntk(const FrequencyProblem& p) {
  const double beyond = static_cast<double>(std::max<std::int64_t>(p.length - p.trained_length, 0));
  return ntk(p, 1 + p.factor * beyond / static_cast<double>(p.trained_length));
}
// snippet-end ntk

/// f if `kept` is 1, f / s if it is 0.
double blend(double f, double s, double kept) { return (1 - kept) * f / s + kept * f; }

// snippet-begin yarn
Values yarn(const FrequencyProblem& p) {
  const auto d = static_cast<double>(p.rotary_dim);
  // The pair, as a real number, that makes this number of turns within the trained length.
  const auto pair_with_turns = [&](double turns) {
    return d * std::log(static_cast<double>(p.trained_length) / (kTurn * turns)) /
           (2 * std::log(p.base));
  };
  double first = pair_with_turns(p.beta_fast), last = pair_with_turns(p.beta_slow);
  if (!p.untruncated) first = std::floor(first), last = std::ceil(last);
  first = std::clamp(first, 0.0, d - 1), last = std::clamp(last, first, d - 1);
  Values f = paper(p.rotary_dim, p.base);
  for (std::size_t i = 0; i < f.size(); ++i) {
    const auto pair = static_cast<double>(i);
    const double slow = pair <= first ? 0 : pair >= last ? 1 : (pair - first) / (last - first);
    f[i] = blend(f[i], p.factor, 1 - slow);
  }
  return f;
}
// snippet-end yarn

// snippet-begin llama3
Values llama3(const FrequencyProblem& p) {
  const double low = p.low_frequency_factor, high = p.high_frequency_factor;
  Values scaled = of_rule(p);
  for (double& f : scaled) {
    const double turns = static_cast<double>(p.trained_length) * f / kTurn;  // within L
    f = blend(f, p.factor, std::clamp((turns - low) / (high - low), 0.0, 1.0));
  }
  return scaled;
}
// snippet-end llama3

Values divided(Values f, std::span<const double> by) {
  for (std::size_t i = 0; i < f.size(); ++i) f[i] /= by[i];
  return f;
}

// ---- Checks ----

tile::Status check_factors(const char* name, std::span<const double> factors, std::int64_t pairs) {
  if (std::ssize(factors) != pairs) {
    return tile::invalid_argument(name, "has " + tile::counted(std::ssize(factors), "number") +
                                            " for " + tile::counted(pairs, "pair"));
  }
  for (const double each : factors) {
    if (!(each > 0) || !std::isfinite(each)) {
      return tile::invalid_argument(name, tile::number(each) + " is not positive and finite");
    }
  }
  return {};
}

/// Two numbers between which pairs are blended.
tile::Status check_range(const char* low_name, double low, const char* high_name, double high) {
  if (!(low > 0)) return tile::invalid_argument(low_name, tile::number(low) + " is not positive");
  if (!(high > low) || !std::isfinite(high)) {
    return tile::invalid_argument(high_name, tile::number(high) + " is not finite and above " +
                                                 low_name + ", which is " + tile::number(low));
  }
  return {};
}

bool changes_base(Scaling scaling) {
  return scaling == Scaling::ntk || scaling == Scaling::dynamic_ntk;
}

tile::Status check_rule(const FrequencyProblem& p) {
  const std::string d = std::to_string(p.rotary_dim);
  if (p.rule != Rule::paper && p.rule != Rule::half_truncated) {
    return tile::invalid_argument("rule", "is neither paper nor half_truncated");
  }
  if (p.rotary_dim < 0) return tile::invalid_argument("rotary_dim", d + " is negative");
  if (p.rotary_dim > kMaxExtent) return tile::unsupported("rotary_dim", d + " is more than 2^29");
  if (p.rotary_dim % 2 != 0) return tile::invalid_argument("rotary_dim", d + " is odd");
  if (p.rule == Rule::half_truncated && p.rotary_dim % 4 != 0) {
    return tile::invalid_argument("rotary_dim", d + " is not a multiple of 4");
  }
  if (!(p.base > 1) || !std::isfinite(p.base)) {
    return tile::invalid_argument("base", tile::number(p.base) + " is not finite and above 1");
  }
  if (p.unrotated_pairs < 0 || p.unrotated_pairs > p.rotary_dim / 2) {
    return tile::invalid_argument("unrotated_pairs", std::to_string(p.unrotated_pairs) +
                                                         " are not among " +
                                                         tile::counted(p.rotary_dim / 2, "pair"));
  }
  return {};
}

/// What only some of the scalings have.
tile::Status check_options(const FrequencyProblem& p) {
  const bool is_yarn = p.scaling == Scaling::yarn;
  if (p.untruncated && !is_yarn) return tile::invalid_argument("untruncated", "is of yarn only");
  if (p.attention_factor == 0) return {};
  if (!is_yarn && p.scaling != Scaling::longrope) {
    return tile::invalid_argument("attention_factor", "is of yarn and longrope only");
  }
  return check_attention_factor(p.attention_factor);
}

}  // namespace

tile::Status check_attention_factor(double a) {
  if (a > 0 && a <= double{std::numeric_limits<float>::max()}) return {};
  return tile::invalid_argument("attention_factor",
                                tile::number(a) + " is not positive and finite in fp32");
}

std::string_view name(Rule rule) { return rule == Rule::paper ? "paper" : "half_truncated"; }

std::string_view name(Scaling scaling) {
  switch (scaling) {
    case Scaling::none: return "none";
    case Scaling::linear: return "linear";
    case Scaling::ntk: return "ntk";
    case Scaling::dynamic_ntk: return "dynamic_ntk";
    case Scaling::yarn: return "yarn";
    case Scaling::llama3: return "llama3";
    case Scaling::longrope: return "longrope";
  }
  return "";
}

tile::Status validate(const FrequencyProblem& p) {
  TILE_TRY(check_rule(p));
  if (name(p.scaling).empty()) return tile::invalid_argument("scaling", "is none that is known");
  TILE_TRY(check_options(p));
  if (p.scaling == Scaling::none) return {};
  if (p.rule != Rule::paper && (changes_base(p.scaling) || p.scaling == Scaling::yarn)) {
    return tile::unsupported(
        "scaling", std::string(name(p.scaling)).append(" is made for the paper's rule only"));
  }
  if (changes_base(p.scaling) && p.rotary_dim == 2) {
    return tile::invalid_argument("rotary_dim",
                                  "2 is a single pair, and the base has no say in it");
  }
  if (!(p.factor >= 1) || !std::isfinite(p.factor)) {
    return tile::invalid_argument("factor",
                                  tile::number(p.factor) + " is not finite and at least 1");
  }
  if (p.scaling == Scaling::linear || p.scaling == Scaling::ntk) return {};
  // longrope divides by ln L.
  if (const int least = p.scaling == Scaling::longrope ? 2 : 1; p.trained_length < least) {
    return tile::invalid_argument("trained_length", std::to_string(p.trained_length) +
                                                        " is less than " + std::to_string(least));
  }
  if (p.length < 0 && (p.scaling == Scaling::dynamic_ntk || p.scaling == Scaling::longrope)) {
    return tile::invalid_argument("length", std::to_string(p.length) + " is negative");
  }
  if (p.scaling == Scaling::yarn) {
    return check_range("beta_slow", p.beta_slow, "beta_fast", p.beta_fast);
  }
  if (p.scaling == Scaling::llama3) {
    return check_range("low_frequency_factor", p.low_frequency_factor, "high_frequency_factor",
                       p.high_frequency_factor);
  }
  if (p.scaling == Scaling::longrope) {
    const std::int64_t pairs = p.rotary_dim / 2;
    TILE_TRY(check_factors("short_factors", p.short_factors, pairs));
    return check_factors("long_factors", p.long_factors, pairs);
  }
  return {};
}

namespace {

Values of_all_pairs(const FrequencyProblem& p) {
  switch (p.scaling) {
    case Scaling::none: return of_rule(p);
    case Scaling::linear:
      return divided(of_rule(p), Values(static_cast<std::size_t>(p.rotary_dim / 2), p.factor));
    case Scaling::ntk: return ntk(p, p.factor);
    case Scaling::dynamic_ntk: return dynamic_ntk(p);
    case Scaling::yarn: return yarn(p);
    case Scaling::llama3: return llama3(p);
    case Scaling::longrope:
      return divided(of_rule(p), p.length > p.trained_length ? p.long_factors : p.short_factors);
  }
  return {};
}

}  // namespace

std::vector<double> frequencies(const FrequencyProblem& p) {
  if (p.rotary_dim == 0) return {};
  Values f = of_all_pairs(p);
  std::fill(f.end() - p.unrotated_pairs, f.end(), 0.0);
  return f;
}

// snippet-begin attention_factor
double attention_factor(const FrequencyProblem& p) {
  if (p.attention_factor != 0) return p.attention_factor;
  if (p.scaling == Scaling::yarn) return 0.1 * std::log(p.factor) + 1;
  if (p.scaling == Scaling::longrope) {
    return std::sqrt(1 + std::log(p.factor) / std::log(static_cast<double>(p.trained_length)));
  }
  return 1;
}
// snippet-end attention_factor

// snippet-begin tables
Tables make_tables(std::span<const double> frequencies, std::span<const double> places,
                   double attention_factor) {
  Tables tables;
  tables.cos.reserve(places.size() * frequencies.size());
  tables.sin.reserve(places.size() * frequencies.size());
  for (const double place : places) {
    for (const double f : frequencies) {
      tables.cos.push_back(static_cast<float>(attention_factor * std::cos(place * f)));
      tables.sin.push_back(static_cast<float>(attention_factor * std::sin(place * f)));
    }
  }
  return tables;
}
// snippet-end tables

Tables make_tables(std::span<const double> frequencies, std::int64_t positions,
                   double attention_factor) {
  std::vector<double> places(static_cast<std::size_t>(positions));
  std::iota(places.begin(), places.end(), 0.0);
  return make_tables(frequencies, places, attention_factor);
}

}  // namespace rope
