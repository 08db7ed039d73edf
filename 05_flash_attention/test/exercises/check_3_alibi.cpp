// Checks exercise 05.3. Not part of the task.
// Shipped: no key has a weight yet
#include <array>
#include <functional>
#include <numbers>

#include "harness/convert.hpp"
#include "test/exercises/checks.hpp"

using flash_attention::kExp;
using flash_attention::kInfinity;
using flash_attention::kUnit;
using flash_attention::Values;
using tile::Expected;

namespace {

constexpr int kKeys = 32;  // of a tile

struct Task {
  int queries, keys, heads, dim;
  Values q, k, v;

  Task(int some_queries, int some_keys, int some_heads, int some_dim)
      : queries(some_queries),
        keys(some_keys),
        heads(some_heads),
        dim(some_dim),
        q(tile::normal(queries * heads * dim, tile::DType::fp32, 1)),
        k(tile::normal(keys * heads * dim, tile::DType::fp32, 2)),
        v(tile::normal(keys * heads * dim, tile::DType::fp32, 3, 1)) {}

  std::string text() const {
    return "queries = " + std::to_string(queries) + ", keys = " + std::to_string(keys) +
           ", heads = " + std::to_string(heads) + ", dim = " + std::to_string(dim);
  }
  int rows() const { return queries * heads; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
  double at(const Values& rows, int row, int d) const {
    return rows[static_cast<std::size_t>(row * dim + d)];
  }
  /// Raises the score of each key by what by(key) gives.
  template <class By>
  void shift(By by) {
    for (int row = 0; row < rows(); ++row) q[static_cast<std::size_t>(row * dim)] = 1;
    for (int row = 0; row < keys * heads; ++row) {
      k[static_cast<std::size_t>(row * dim)] = by(row / heads) / scale();
    }
    tile::round_to(k, tile::DType::fp32);
  }
};

/// A key that a row sees.
struct Seen {
  int key;
  double product, magnitude;         // scale q k, and what its roundings are relative to
  int query, position, head, heads;  // the head from 1
  double distance() const { return position - key; }
  double slope() const { return std::exp2(-8. * head / heads); }
  double score() const { return product - slope() * distance(); }
};

std::vector<Seen> seen_by(const Task& t, int row) {
  const int query = row / t.heads, head = row % t.heads, position = query + t.keys - t.queries;
  std::vector<Seen> seen;
  for (int key = 0; key <= position; ++key) {
    Seen each{key, 0, 0, query, position, head + 1, t.heads};
    for (int d = 0; d < t.dim; ++d) {
      const double term = t.scale() * t.at(t.q, row, d) * t.at(t.k, key * t.heads + head, d);
      each.product += term;
      each.magnitude += std::abs(term);
    }
    seen.push_back(each);
  }
  return seen;
}

struct Attention {
  Expected o, lse;
};

/// The bounds are those of harness/attention_reference.cpp, of which the parts for a kernel whose
/// reference lags and for 16 bits are gone, and the bias has come. Its slope is a power whose
/// exponent, at most 8, is rounded twice; powf() may be off by four units in the last place (CUDA
/// C++ Programming Guide). Or it is a power of the first head's slope, whose error counts as often
/// as there are heads. A product follows, maybe one with log2(e), which is rounded itself, and the
/// difference.
Attention right(const Task& t) {
  Attention result{{{t.queries, t.heads, t.dim}, {}, {}}, {{t.queries, t.heads}, {}, {}}};
  const double of_product = (t.dim + 4) * kUnit / (1 - t.dim * kUnit);
  const double of_bias = (2 * 8 * std::log(2) + 8 * (t.heads + 1) + 4) * kUnit;
  for (int row = 0; row < t.rows(); ++row) {
    const std::vector<Seen> seen = seen_by(t, row);
    const auto keys = static_cast<double>(seen.size());
    double max = -kInfinity, sum = 0, sum_error = 0;
    for (const Seen& s : seen) max = std::max(max, s.score());
    for (const Seen& s : seen) sum += std::exp(s.score() - max);
    const double tiles = std::ceil(keys / kKeys) + 5;  // and five rounds of lanes
    Values weight, error;
    for (const Seen& s : seen) {
      weight.push_back(std::exp(s.score() - max) / sum);
      error.push_back(std::expm1(
          (of_product + kUnit) * s.magnitude + (of_bias + kUnit) * s.slope() * s.distance() +
          2 * kUnit * (max - s.score()) + kExp + tiles * (kExp + 2 * kUnit)));
      sum_error += weight.back() * error.back();
    }
    if (!seen.empty()) sum_error += keys * (kUnit + flash_attention::kTinyExponential / sum);
    const double of_output = sum_error + keys * kUnit / (1 - keys * kUnit) + 4 * kUnit;
    for (int d = 0; d < t.dim; ++d) {
      double value = 0, bound = 0;
      for (std::size_t i = 0; i < seen.size(); ++i) {
        const double v = t.at(t.v, seen[i].key * t.heads + row % t.heads, d);
        value += weight[i] * v;
        bound += std::abs(v) * (weight[i] * (error[i] + of_output + error[i] * of_output) +
                                flash_attention::kTinyExponential / sum);
      }
      result.o.value.push_back(value);
      result.o.bound.push_back(bound);
    }
    const double lse = seen.empty() ? -kInfinity : max + std::log(sum);
    result.lse.value.push_back(lse);
    result.lse.bound.push_back(
        seen.empty() ? 0 : sum_error + 6 * kUnit * (std::abs(max) + std::log(sum) + std::abs(lse)));
  }
  return result;
}

using Of = std::function<double(const Seen&)>;

/// o and lse if scores were what `score` gives. In sum and output the weights are relative to the
/// row's maximum, or to that of the keys up to the end of their tile, if nothing is corrected.
enum class Relative { to_all, to_own_tile };
Attention if_it_were(const Task& t, const Attention& real, const Of& score,
                     Relative sum_is = Relative::to_all, Relative out_is = Relative::to_all) {
  Values o, lse;
  for (int row = 0; row < t.rows(); ++row) {
    const std::vector<Seen> seen = seen_by(t, row);
    double max = -kInfinity;
    Values so_far;  // the greatest score up to the end of each tile
    for (const Seen& s : seen) {
      max = std::max(max, score(s));
      so_far.resize(static_cast<std::size_t>(s.key / kKeys) + 1, max);
      so_far.back() = max;
    }
    double sum = 0;
    Values out(static_cast<std::size_t>(t.dim), 0.0);
    for (const Seen& s : seen) {
      const double own = so_far[static_cast<std::size_t>(s.key / kKeys)];
      auto weight = [&](Relative is) {
        return std::exp(score(s) - (is == Relative::to_all ? max : own));
      };
      sum += weight(sum_is);
      for (int d = 0; d < t.dim; ++d) {
        out[static_cast<std::size_t>(d)] +=
            weight(out_is) * t.at(t.v, s.key * t.heads + row % t.heads, d);
      }
    }
    for (const double each : out) o.push_back(sum == 0 ? 0 : each / sum);
    lse.push_back(max + std::log(sum));
  }
  return {flash_attention::if_it_were(real.o, [&](std::size_t i) { return o[i]; }),
          flash_attention::if_it_were(real.lse, [&](std::size_t i) { return lse[i]; })};
}

double real_score(const Seen& s) { return s.score(); }

std::string explain_o(const Task& t, const Attention& real, const Values& got) {
  std::vector<tile::Mistake> mistakes;
  auto score_is = [&](const char* explanation, const Of& score) {
    mistakes.push_back({explanation, if_it_were(t, real, score).o});
  };
  auto weights_are = [&](const char* explanation, Relative sum, Relative out) {
    mistakes.push_back({explanation, if_it_were(t, real, real_score, sum, out).o});
  };
  mistakes.push_back({"no key has a weight yet",
                      flash_attention::if_it_were(real.o, [](std::size_t) { return 0.; })});
  score_is("this is attention without a bias", [](const Seen& s) { return s.product; });
  score_is("the bias is added: a key that is far away should have a lower score, not a higher one",
           [](const Seen& s) { return s.product + s.slope() * s.distance(); });
  score_is("the heads are counted from 0: the first one's slope is 2^(-8 / heads)",
           [](const Seen& s) {
             return s.product - std::exp2(-8. * (s.head - 1) / s.heads) * s.distance();
           });
  score_is("all heads have the slope of the first one",
           [](const Seen& s) { return s.product - std::exp2(-8. / s.heads) * s.distance(); });
  score_is("the slope is 2^(8 h / heads): the exponent is negative", [](const Seen& s) {
    return s.product - std::exp2(8. * s.head / s.heads) * s.distance();
  });
  score_is("the slope is exp(-8 h / heads), and not a power of 2", [](const Seen& s) {
    return s.product - std::exp(-8. * s.head / s.heads) * s.distance();
  });
  score_is(
      "the slope is 2 to a quotient of integers. Which numbers in -8 h / heads must be floats?",
      [](const Seen& s) { return s.product - std::exp2(-8 * s.head / s.heads) * s.distance(); });
  score_is("the bias is multiplied by the scale of the products",
           [&t](const Seen& s) { return s.product - t.scale() * s.slope() * s.distance(); });
  score_is("the weights are powers of 2 of the scores: was log2(e) meant to come in somewhere?",
           [](const Seen& s) { return s.score() * std::log(2.); });
  score_is(
      "the products are in units of log2, for weights that are powers of 2, and the bias is not",
      [](const Seen& s) { return s.product - s.slope() * s.distance() * std::log(2.); });
  score_is(
      "all keys have the same weight. Has each lane taken off its own score? The maximum is "
      "that of all lanes",
      [](const Seen&) { return 0.; });
  if (t.keys > kKeys) {
    weights_are(
        "what was added before the maximum rose is not corrected, neither the sum nor the output",
        Relative::to_own_tile, Relative::to_own_tile);
    weights_are("the output is not corrected where the maximum rises, and the sum is",
                Relative::to_all, Relative::to_own_tile);
    weights_are("the sum is not corrected where the maximum rises, and the output is",
                Relative::to_own_tile, Relative::to_all);
  }
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  if (flash_attention::any_unwritten(got)) return {};
  if (t.keys <= kKeys && flash_attention::only_not_finite(got, real.o)) {
    return "\nHint: infinity or NaN comes out of a single tile. Before it nothing has been seen: "
           "max is -infinity, and the correction should be 0. Which of the two is taken off the "
           "other?";
  }
  if (t.keys > kKeys) {
    return "\nHint: 32 keys were right, and more are not. When the maximum rises, what becomes of "
           "the sum and of the output, and by which factor? What is it for the first tile?";
  }
  return {};
}

std::string explain_lse(const Task& t, const Attention& real, const Values& got) {
  std::vector<tile::Mistake> mistakes;
  auto score_is = [&](const char* explanation, const Of& score) {
    mistakes.push_back({explanation, if_it_were(t, real, score).lse});
  };
  score_is(
      "o is right and lse is not: the distance is counted from the query's number. Query i stands "
      "beside key i + keys - queries. What all scores of a row have in common, o does not see",
      [](const Seen& s) { return s.product - s.slope() * (s.query - s.key); });
  score_is(
      "o is right and lse is not: the bias is slope times the key's number. o does not see the "
      "difference, which all scores of a row have in common, and lse does",
      [](const Seen& s) { return s.product + s.slope() * s.key; });
  const Attention ours = real;
  mistakes.push_back(
      {"o is right and lse is not: max is in units of log2, and the end takes it for a natural "
       "logarithm",
       flash_attention::if_it_were(real.lse, [&](std::size_t row) {
         double max = -kInfinity;
         for (const Seen& s : seen_by(t, static_cast<int>(row))) max = std::max(max, s.score());
         return ours.lse.value[row] + max * (std::numbers::log2e - 1);
       })});
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == -kInfinity && real.lse.value[i] != -kInfinity) {
      return "\nHint: o is right and lse is not. After a tile whose keys are all hidden max is "
             "-infinity: it should be the greatest score so far, not that of the tile";
    }
  }
  return "\nHint: o is right and lse is not. The end needs in max what the weights are relative "
         "to, as a natural logarithm";
}

using Explain = std::function<std::string(const Task&, const Attention&, const Values&)>;

void check(const Task& t, const Explain& explain) {
  INFO(t.text());
  const tile::DeviceBuffer q = flash_attention::input("q", t.q),
                           k = flash_attention::input("k", t.k),
                           v = flash_attention::input("v", t.v);
  const Attention real = right(t);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const tile::DeviceBuffer o = flash_attention::output("o", t.q.size(), poison),
                             lse = flash_attention::output(
                                 "lse", static_cast<std::size_t>(t.rows()), poison);
    using flash_attention::floats;
    const flash_attention::BiasedHeads heads{t.queries, t.keys,     t.heads,   t.dim,
                                             t.scale(), floats(q),  floats(k), floats(v),
                                             floats(o), floats(lse)};
    tile::run_answer([&] { return flash_attention::alibi(heads); },
                     std::array{&q, &k, &v, &o, &lse});
    const Values got_o = o.download(), got_lse = lse.download();
    tile::require_right("o", got_o, real.o, [&] { return explain(t, real, got_o); });
    tile::require_right("lse", got_lse, real.lse, [&] { return explain_lse(t, real, got_lse); });
  }
}

}  // namespace

TEST_CASE("05.3 a bias for distance") {
  // A tile at most; then several. Heads whose number is no power of two.
  for (const int keys : {32, 20, 1}) check(Task(keys, keys, 4, 16), explain_o);
  check(Task(7, 30, 3, 32), explain_o);
  for (const int keys : {64, 100}) check(Task(keys, keys, 2, 20), explain_o);
  check(Task(50, 131, 3, 7), explain_o);
  check(Task(1, 200, 8, 32), explain_o);

  // Scores that rise from tile to tile, and such that fall.
  for (const double by : {60., -60.}) {
    Task t(9, 150, 2, 8);
    t.shift([by](int key) { return by * (key / kKeys); });
    check(t, [by](const Task& task, const Attention& real, const Values& got) -> std::string {
      if (!flash_attention::only_not_finite(got, real.o)) return explain_o(task, real, got);
      return std::string("\nHint: these scores ") + (by > 0 ? "rise" : "fall") +
             " by 60 from tile to tile, and infinity or NaN came out. Is "
             "an exponent positive? Weights are relative to the greatest score so far";
    });
  }

  // The first key's product is the greatest, and its bias takes more away.
  {
    Task t(3, 400, 8, 8);
    t.shift([](int key) { return key == 0 ? 150. : 0.; });
    check(t, [](const Task& task, const Attention& real, const Values& got) -> std::string {
      if (std::string found = explain_o(task, real, got);
          found.find("32 keys were right") == found.npos) {
        return found;
      }
      return "\nHint: the greatest product here is far away, and its score is not the greatest. Is "
             "the maximum that of the scores, with their bias?";
    });
  }

  // More queries than keys: the first rows see none.
  for (const int keys : {5, 40}) {
    check(Task(keys + 6, keys, 2, 12),
          [](const Task& task, const Attention& real, const Values& got) -> std::string {
            if (!flash_attention::only_not_finite(got, real.o)) return explain_o(task, real, got);
            return "\nHint: a row that sees no key is NaN: all of its scores are -infinity. What "
                   "is -infinity minus itself?";
          });
  }
}
