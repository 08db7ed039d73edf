// Checks exercise 05.2. Not part of the task.
#include <array>
#include <functional>
#include <span>
#include <utility>

#include "harness/convert.hpp"
#include "test/exercises/checks.hpp"

using flash_attention::kInfinity;
using flash_attention::kUnit;
using flash_attention::Values;
using tile::DType;
using tile::Expected;

namespace {

constexpr int kLanes = 32;

/// An attention of some heads whose keys are cut into parts. Row query * heads + head.
struct Task {
  tile::AttentionForward p;
  std::vector<int> cuts;                // part i has the keys from cuts[i] to before cuts[i + 1]
  Values q, k, v;                       // [queries][heads][dim], [keys][heads][dim]
  Values o = {}, lse = {};              // what the kernel gets: [parts][rows][dim], [parts][rows]
  Values right_o = {}, right_lse = {};  // of all keys

  Task(std::int64_t queries, std::int64_t heads, std::int64_t dim, std::vector<int> some_cuts,
       bool causal = false)
      : p{{.type = DType::fp32,
           .batch = 1,
           .heads = heads,
           .queries = queries,
           .keys = some_cuts.back(),
           .head_dim = dim}},
        cuts(std::move(some_cuts)),
        q(tile::normal(queries * heads * dim, DType::fp32, 1)),
        k(tile::normal(p.keys * heads * dim, DType::fp32, 2)),
        v(tile::normal(p.keys * heads * dim, DType::fp32, 3, 1)) {
    p.scale = 1 / std::sqrt(static_cast<float>(dim));
    if (causal) p.right = 0;
  }

  int parts() const { return static_cast<int>(cuts.size()) - 1; }
  int rows() const { return static_cast<int>(p.queries * p.heads); }
  int dim() const { return static_cast<int>(p.head_dim); }
  std::string text() const {
    return "parts = " + std::to_string(parts()) + ", rows = " + std::to_string(rows()) +
           ", dim = " + std::to_string(dim());
  }
  double& lse_at(int part, int row) { return lse[static_cast<std::size_t>(part * rows() + row)]; }
  double lse_at(int part, int row) const {
    return lse[static_cast<std::size_t>(part * rows() + row)];
  }
  double o_at(int part, int row, int d) const {
    return o[static_cast<std::size_t>((part * rows() + row) * dim() + d)];
  }

  /// Raises all scores of part i by by[i].
  void shift_parts(const std::vector<double>& by) {
    const auto width = static_cast<std::size_t>(p.head_dim);
    for (std::size_t i = 0; i < q.size(); i += width) q[i] = 1;
    for (int part = 0; part < parts(); ++part) {
      const auto row = static_cast<std::size_t>(p.heads) * width;
      for (auto i = static_cast<std::size_t>(cuts[static_cast<std::size_t>(part)]) * row;
           i < static_cast<std::size_t>(cuts[static_cast<std::size_t>(part) + 1]) * row;
           i += width) {
        k[i] = by[static_cast<std::size_t>(part)] / p.scale;
      }
    }
  }

  /// What each part's attention gives, and that of all keys, by the chapter's reference. A part's
  /// keys keep their positions, so `right` grows by the number of keys after the part.
  void attend() {
    const flash_attention::ForwardExpected all = flash_attention::reference(p, {q, k, v, {}, {}});
    right_o = all.o.value, right_lse = all.lse.value;
    for (std::size_t part = 0; part + 1 < cuts.size(); ++part) {
      tile::AttentionForward own = p;
      own.keys = cuts[part + 1] - cuts[part];
      if (p.right != flash_attention::kUnlimited) own.right = p.keys - cuts[part + 1] + p.right;
      const auto first = static_cast<std::size_t>(cuts[part] * p.heads * p.head_dim);
      const auto count = static_cast<std::size_t>(own.keys * p.heads * p.head_dim);
      const flash_attention::ForwardExpected found = flash_attention::reference(
          own, {q, std::span(k).subspan(first, count), std::span(v).subspan(first, count), {}, {}});
      o.insert(o.end(), found.o.value.begin(), found.o.value.end());
      lse.insert(lse.end(), found.lse.value.begin(), found.lse.value.end());
    }
    o = tile::rounded(o, DType::fp32);
    lse = tile::rounded(lse, DType::fp32);
  }

  /// How far lse of a row may be from the exact one. The lse of each part was rounded; L is the
  /// greatest of all these, the row's included. A merge of two parts, max + log(1 + exp(-d)),
  /// rounds each time: d and the exponential, which is at most 1 and then adds to 1, the
  /// logarithm, to two units in the last place, and the sum, by kUnit L. Without the last it is
  /// less than 12 kUnit: kExp + kUnit, 4 kUnit d exp(-d) < 2 kUnit, 4 kUnit log(2) < 3 kUnit. One
  /// sum of exponentials over all parts rounds less.
  double lse_error(int row) const {
    double greatest = std::abs(right_lse[static_cast<std::size_t>(row)]);
    for (int part = 0; part < parts(); ++part) {
      if (std::isfinite(lse_at(part, row)))
        greatest = std::max(greatest, std::abs(lse_at(part, row)));
    }
    return kUnit * (greatest + parts() * (greatest + 12));
  }
  /// A part counts exp(lse of the part - lse of the row): both are off, and their difference is
  /// rounded, as a product with log2(e) as well. Merges of two parts at a time have an
  /// exponential, a product and an addition more each; or the sum of the weights is divided by.
  double o_error(int row, int d) const {
    double error = 0;
    for (int part = 0; part < parts(); ++part) {
      if (!std::isfinite(lse_at(part, row))) continue;
      const double below = right_lse[static_cast<std::size_t>(row)] - lse_at(part, row);
      const double relative = std::expm1(kUnit * std::abs(lse_at(part, row)) + lse_error(row) +
                                         4 * kUnit * std::abs(below) +
                                         parts() * (2 * flash_attention::kExp + 4 * kUnit));
      // o of the part was rounded once.
      error += (std::exp(-below) * (relative + kUnit) + flash_attention::kTinyExponential) *
               std::abs(o_at(part, row, d));
    }
    return error;
  }

  Expected right_of_lse() const {
    Expected expected{{rows()}, right_lse, {}};
    for (int row = 0; row < rows(); ++row) {
      const double lse_of_row = right_lse[static_cast<std::size_t>(row)];
      expected.bound.push_back(std::isfinite(lse_of_row) ? lse_error(row) : 0);
    }
    return expected;
  }
  Expected right_of_o() const {
    Expected expected{{rows(), dim()}, right_o, {}};
    for (int row = 0; row < rows(); ++row) {
      for (int d = 0; d < dim(); ++d) expected.bound.push_back(o_error(row, d));
    }
    return expected;
  }
  /// o if the parts have these weights, which get the part, the row and the greatest lse.
  Expected if_weights_were(const std::function<double(int, int, double)>& weight) const {
    return flash_attention::if_it_were(right_of_o(), [&](std::size_t i) {
      const int row = static_cast<int>(i) / dim(), d = static_cast<int>(i) % dim();
      double sum = 0;
      for (int part = 0; part < parts(); ++part) {
        sum += weight(part, row, greatest(row)) * o_at(part, row, d);
      }
      return sum;
    });
  }
  Expected if_lse_were(const std::function<double(int)>& of_row) const {
    return flash_attention::if_it_were(right_of_lse(),
                                       [&](std::size_t i) { return of_row(static_cast<int>(i)); });
  }
  double greatest(int row) const {
    double max = -kInfinity;
    for (int part = 0; part < parts(); ++part) max = std::max(max, lse_at(part, row));
    return max;
  }
  double sum(int row) const {
    return std::exp(right_lse[static_cast<std::size_t>(row)] - greatest(row));
  }
};

using Explain = std::function<std::string(const Task&, const Values& got, bool is_lse)>;

std::string explain_usual(const Task& t, const Values& got, bool is_lse) {
  const double parts = t.parts();
  if (is_lse) {
    const tile::Mistake mistakes[] = {
        {"this is the greatest lse of the parts: the other parts have weights as well",
         t.if_lse_were([&](int row) { return t.greatest(row); })},
        {"this is the logarithm of a sum relative to the greatest lse, which is missing in it",
         t.if_lse_were([&](int row) { return std::log(t.sum(row)); })},
        {"this is the sum of the parts' lse: the sums of weights are to be added, not their "
         "logarithms",
         t.if_lse_were([&](int row) {
           double sum = 0;
           for (int part = 0; part < t.parts(); ++part) sum += t.lse_at(part, row);
           return sum;
         })},
        {"this is the sum of the weights: its logarithm is missing",
         t.if_lse_were([&](int row) { return std::exp(t.greatest(row)) * t.sum(row); })},
        {"this is the greatest lse and log2 of the sum. lse is a natural logarithm",
         t.if_lse_were([&](int row) { return t.greatest(row) + std::log2(t.sum(row)); })},
        {"the weights of the parts are taken for powers of two: lse is a natural logarithm",
         t.if_lse_were([&](int row) {
           double sum = 0;
           for (int part = 0; part < t.parts(); ++part) {
             sum += std::exp2(t.lse_at(part, row) - t.greatest(row));
           }
           return t.greatest(row) + std::log(sum);
         })},
    };
    return tile::explain_mistake(got, mistakes);
  }
  const tile::Mistake mistakes[] = {
      {"all parts count the same: a part whose weights have a greater sum must count more",
       t.if_weights_were([=](int, int, double) { return 1 / parts; })},
      {"the outputs of the parts are added up: each is an average already",
       t.if_weights_were([](int, int, double) { return 1; })},
      {"the weights of the parts do not add up to 1: what are they to be divided by?",
       t.if_weights_were(
           [&](int part, int row, double max) { return std::exp(t.lse_at(part, row) - max); })},
      {"the weights of the parts are not divided by the sum, and relative to nothing",
       t.if_weights_were([&](int part, int row, double) { return std::exp(t.lse_at(part, row)); })},
      {"the parts count as lse does: it is a logarithm",
       t.if_weights_were([&](int part, int row, double) {
         double sum = 0;
         for (int i = 0; i < t.parts(); ++i) sum += t.lse_at(i, row);
         return t.lse_at(part, row) / sum;
       })},
      {"the weights of the parts are taken for powers of two: lse is a natural logarithm",
       t.if_weights_were([&](int part, int row, double max) {
         double sum = 0;
         for (int i = 0; i < t.parts(); ++i) sum += std::exp2(t.lse_at(i, row) - max);
         return std::exp2(t.lse_at(part, row) - max) / sum;
       })},
  };
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  if (flash_attention::any_unwritten(got)) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool beyond = static_cast<int>(i) % t.dim() >= kLanes;
      if (flash_attention::is_unwritten(got[i]) != beyond) return {};
    }
    return "\nHint: only the first 32 elements of a row are written: a warp has 32 lanes, and a "
           "row may have more elements";
  }
  if (t.parts() > 1 && t.rows() > 1) {
    return "\nHint: one row was right, and several are not. The parts of a row do not lie side by "
           "side: o is [parts][rows][dim], lse [parts][rows]. Which index walks faster?";
  }
  return {};
}

void check(Task t, const Explain& explain) {
  INFO(t.text());
  const tile::DeviceBuffer part_o = flash_attention::input("o of the parts", t.o),
                           part_lse = flash_attention::input("lse of the parts", t.lse);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const tile::DeviceBuffer o = flash_attention::output("o", t.right_o.size(), poison),
                             lse = flash_attention::output("lse", t.right_lse.size(), poison);
    using flash_attention::floats;
    const flash_attention::AttentionParts parts{t.parts(), t.rows(), t.dim(), floats(part_o),
                                                floats(part_lse)};
    tile::run_answer([&] { return flash_attention::merge_parts(parts, floats(o), floats(lse)); },
                     std::array{&part_o, &part_lse, &o, &lse});
    const Values got_o = o.download(), got_lse = lse.download();
    tile::require_right("o", got_o, t.right_of_o(), [&] { return explain(t, got_o, false); });
    tile::require_right("lse", got_lse, t.right_of_lse(),
                        [&] { return explain(t, got_lse, true); });
  }
}

void check_usual(Task t) {
  t.attend();
  check(std::move(t), explain_usual);
}

// Scores around these numbers, one for each part.
void check_far(const std::vector<double>& around) {
  Task t(3, 1, 20, [&] {
    std::vector<int> cuts;
    for (int i = 0; i <= static_cast<int>(around.size()); ++i) cuts.push_back(5 * i);
    return cuts;
  }());
  t.shift_parts(around);
  t.attend();
  check(std::move(t), [](const Task& task, const Values& got, bool is_lse) -> std::string {
    const double least = *std::ranges::min_element(task.lse);
    const bool not_finite =
        flash_attention::only_not_finite(got, is_lse ? task.right_of_lse() : task.right_of_o());
    if (not_finite && least > 88) {
      return "\nHint: exp of these lse is infinite, and their differences are small. What may be "
             "taken off all of them, so that no exponential is greater than 1?";
    }
    if (not_finite && *std::ranges::max_element(task.lse) < -104) {
      return "\nHint: exp of these lse is 0, and their differences are small. What may be taken "
             "off all of them, so that one exponential is 1?";
    }
    if (not_finite) {
      return "\nHint: the lse of these parts lie far apart. What are they relative to, and may an "
             "exponent be positive?";
    }
    const bool all_zero = std::ranges::all_of(got, [](double x) { return x == 0; });
    if (all_zero) {
      return "\nHint: all weights have become 0. What are they relative to: to the greatest lse, "
             "or to one far above all of them?";
    }
    return {};
  });
}

// Causal, with more queries than keys: the first rows see nothing in any part, the next ones only
// keys of the first parts. And parts without any keys.
void check_empty(std::int64_t queries, const std::vector<int>& cuts) {
  Task t(queries, 2, 10, cuts, true);
  t.attend();
  check(std::move(t), [](const Task& task, const Values& got, bool is_lse) -> std::string {
    const Expected right = is_lse ? task.right_of_lse() : task.right_of_o();
    if (!flash_attention::only_not_finite(got, right)) {
      return is_lse ? "\nHint: a row that sees no key in any part has the lse -infinity" : "";
    }
    const std::size_t width = got.size() / static_cast<std::size_t>(task.rows());
    bool only_without_keys = true;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (tile::matches(got[i], right.value[i], right.bound[i])) continue;
      only_without_keys &= task.right_lse[i / width] == -kInfinity;
    }
    if (only_without_keys) {
      return "\nHint: a row that sees no key in any part is NaN. It should have o = 0 and lse = "
             "-infinity. What is -infinity minus itself, and what is 0 / 0?";
    }
    return "\nHint: a part that sees no key has made its row NaN. At which place is -infinity "
           "taken off -infinity, maybe only if the first parts have no key?";
  });
}

void check_nan() {
  Task t(5, 1, 12, {0, 4, 9, 12});
  t.attend();
  // A part with a NaN in it gives NaN throughout; and a row may have nothing else.
  for (const auto& [part, row] : {std::pair{1, 1}, {0, 3}, {0, 4}, {1, 4}, {2, 4}}) {
    t.lse_at(part, row) = flash_attention::kNaN;
    t.right_lse[static_cast<std::size_t>(row)] = flash_attention::kNaN;
    for (int d = 0; d < t.dim(); ++d) {
      t.o[static_cast<std::size_t>((part * t.rows() + row) * t.dim() + d)] = flash_attention::kNaN;
      t.right_o[static_cast<std::size_t>(row * t.dim() + d)] = flash_attention::kNaN;
    }
  }
  check(std::move(t), [](const Task& task, const Values& got, bool is_lse) -> std::string {
    const Expected right = is_lse ? task.right_of_lse() : task.right_of_o();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(right.value[i]) && !std::isnan(got[i])) {
        return "\nHint: a part of row " +
               std::to_string(i * static_cast<std::size_t>(task.rows()) / got.size()) +
               " is NaN. A NaN was lost: is it taken for a part without a key? No comparison with "
               "NaN is true";
      }
    }
    return {};
  });
}

}  // namespace

TEST_CASE("05.2 attention from parts") {
  // One part, one row; then more of either. Lengths of parts that differ.
  check_usual(Task(1, 1, 32, {0, 8}));
  check_usual(Task(1, 1, 32, {0, 8, 11}));
  check_usual(Task(1, 1, 20, {0, 3, 20, 27}));
  check_usual(Task(1, 1, 100, {0, 3, 40}));
  check_usual(Task(1, 4, 32, {0, 8, 24}));
  check_usual(Task(3, 3, 65, {0, 30, 31, 50, 53}));
  check_usual(Task(1, 7, 128, {0, 5, 10, 15, 20, 25, 30, 35, 40, 41}));
  check_usual(Task(33, 1, 1, {0, 9, 12}));
  check_far({200, 201, 199});
  check_far({-200, -201, -199});
  check_far({-200, 0, 200});
  check_far({200, 0, -200});
  check_far({1, -200, 3});
  check_empty(12, {0, 4, 8, 12});  // the last parts have no key for the first rows
  check_empty(9, {0, 0, 4, 4, 9});
  check_empty(20, {0, 5, 10});  // and the first 10 rows have none at all
  check_empty(17, {0, 0, 6});
  check_empty(3, {0, 0});
  check_nan();
}
