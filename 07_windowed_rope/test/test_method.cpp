// Chapter 07's tests: ReRoPE, Leaky ReRoPE and Self-Extend of plain q and k, forward and backward.
#include <algorithm>
#include <cmath>
#include <complex>

#include "attention/reference.hpp"
#include "method/method.hpp"
#include "method/reference.hpp"
#include "method/tables.hpp"
#include "rotary/frequencies.hpp"
#include "test_support.hpp"

namespace windowed_rope {
namespace {

using method::far_key_place, method::far_query_place;
using method::kMethod, method::kMethodBackwardLadder, method::kMethodLadder;
using tile::FarRotation;

// ---- Calls ----

struct Rule {
  FarRotation far;
  double factor = 1;
};
constexpr Rule kRules[] = {{FarRotation::rerope},
                           {FarRotation::leaky_rerope, 16},
                           {FarRotation::leaky_rerope, 2.5},
                           {FarRotation::self_extend, 8},
                           {FarRotation::self_extend, 3}};
constexpr rope::Layout kLayouts[] = {rope::Layout::half_split, rope::Layout::interleaved};

tile::Rotary rotary_of(const Rule& rule) { return {.far = rule.far, .far_factor = rule.factor}; }

/// With the frequencies of its tables.
struct MethodCase : Case {
  Values frequencies = rope::frequencies({.rotary_dim = p.rotary.rotary_dim});
};

MethodCase method_case(DType type, const Sizes& n, const Rule& rule, std::int64_t window,
                       rope::Layout layout = rope::Layout::half_split) {
  Case c{tile::attention_call<AttentionForward>(type, n)};
  c.p.window = window, c.p.right = 0;
  c.p.rotary = rotary_of(rule);
  c.p.rotary.layout = layout, c.p.rotary.rotary_dim = n.head_dim;
  c.p.rotary.table_positions = n.keys;  // not one more
  return {c};
}
MethodCase rotated_in_part(MethodCase c, std::int64_t rotary_dim) {
  c.p.rotary.rotary_dim = rotary_dim;
  c.frequencies = rope::frequencies({.rotary_dim = rotary_dim});
  return c;
}

// ---- Running a step ----

using MethodRows = Inputs;

tile::AttentionExpected expected_outputs(const MethodCase& c, const MethodRows& in) {
  return method::reference(c.p, {in.q, in.k, in.v, c.frequencies, c.query_lengths, c.key_lengths});
}
tile::AttentionGradients expected_gradients(const MethodCase& c, const MethodRows& in) {
  return method::reference(c.backward(), {in.q, in.k, in.v, in.o, in.lse, in.dout, c.frequencies,
                                          c.query_lengths, c.key_lengths});
}

/// Random rows; o and lse are what the forward pass gives the backward pass, as the types hold it.
MethodRows normal(const MethodCase& c) {
  MethodRows in = tile::random_rows(c, 81);
  tile::add_outputs(expected_outputs(c, in), c.p.type, &in);
  return in;
}

/// In the order of the Results.
template <class Step>
std::vector<tile::Expected> expected_of(const Step&, const MethodCase& c, const MethodRows& in) {
  if constexpr (kIsForward<Step>) {
    return tile::in_order(expected_outputs(c, in));
  } else {
    return tile::in_order(expected_gradients(c, in));
  }
}

/// Runs a step of either ladder with its tables, and outputs of this poison.
template <class Step>
Results run(const Step& step, const MethodCase& c, const MethodRows& in, Poison poison) {
  const rope::Tables tables =
      method::make_tables(c.p.rotary, c.p.window, c.frequencies, c.p.rotary.table_positions);
  return tile::run_attention(step, c, in, poison, tables.cos, tables.sin);
}

/// Runs a step of either ladder, and checks what it wrote.
template <class Step>
void check_step(const Step& step, const MethodCase& c, const MethodRows& in,
                const std::vector<tile::Expected>& expected) {
  CAPTURE(step.name);
  const std::string problem = describe(c);
  CAPTURE(problem);
  check_values(run(step, c, in, tile::poison_in_turn()), expected);
}
template <class Step>
void check_step(const Step& step, const MethodCase& c) {
  const MethodRows in = normal(c);
  check_step(step, c, in, expected_of(step, c, in));
}

/// Runs a selection of those cases of a list that the step takes.
class MethodCases {
 public:
  template <class Step>
  MethodCases(const Step& step, DType type, std::uint32_t thinned)
      : selection_(step, type, thinned) {}

  template <class Step>
  void check(const Step& step, const MethodCase& c) {
    if (takes(step, c) && selection_.takes_next()) check_step(step, c);
  }

 private:
  tile::Selection selection_;
};

/// Runs the test on both ladders.
template <class Check>
void for_each_method_step(Check check, tile::OwnKernel own = tile::OwnKernel::must_run,
                          tile::Types types = tile::Types::in_turn) {
  tile::for_each_step(kMethodLadder, check, own, types);
  tile::for_each_step(kMethodBackwardLadder, check, own, types);
}

/// Short, since the loops over tiles are windowed attention's; of layouts and parts of rows those
/// that the step's own kernel takes.
template <class Step>
std::vector<MethodCase> drawn_cases(const Step& step, DType type) {
  constexpr std::int64_t kWindows[] = {0, 9, 33, kUnlimited}, kDims[] = {32, 64, 128};
  const auto small = [type](std::int64_t dim, rope::Layout layout) {
    return method_case(type, {1, 1, 1, 16, 32, dim}, kRules[0], 8, layout);
  };
  const auto dims = taken(step, kDims, [&](std::int64_t dim) { return small(dim, kLayouts[0]); });
  const auto layouts =
      taken(step, kLayouts, [&](rope::Layout layout) { return small(64, layout); });
  const auto parts = taken(step, std::initializer_list<std::int64_t>{1, 2}, [&](std::int64_t part) {
    return rotated_in_part(small(64, kLayouts[0]), 64 / part);
  });
  return tile::drawn_cases(step.number, [&](tile::Pick& pick) {
    MethodCase c{tile::drawn_case(pick, type, dims, tile::kShortLengths)};
    c.p.right = 0;
    c.p.window = pick(kWindows);
    c.p.rotary = rotary_of(pick(kRules));
    c.p.rotary.layout = pick(layouts);
    c.p.rotary.attention_factor = pick({1.0f, 1.25f});
    c.p.rotary.table_positions = c.p.keys + pick({0, 25});
    return rotated_in_part(c, c.p.head_dim / pick(parts));
  });
}

// ---- What the methods become in some cases ----

/// The values of one reference, which another one's may not be further from than rounding in
/// double, with the other's bounds.
tile::Expected with_bounds(const tile::Expected& same, const tile::Expected& of_method) {
  REQUIRE(same.value.size() == of_method.value.size());
  std::size_t apart = 0;
  for (std::size_t i = 0; i < same.value.size(); ++i) {
    apart += !(std::abs(same.value[i] - of_method.value[i]) < 1e-10);
  }
  CHECK(apart == 0);
  return {of_method.shape, same.value, of_method.bound};
}

/// Whether the step gives what chapter 06's reference of attention with rotated q and k gives. As
/// many queries as keys.
template <class Step>
void check_is_plain(const Step& step, const MethodCase& c) {
  const std::string problem = describe(c);
  CAPTURE(problem);
  tile::Attention plain_call = c.p;
  plain_call.window = kUnlimited;
  plain_call.rotary.far = FarRotation::none;
  const MethodRows in = normal(c);
  const std::vector<tile::Expected> of_method = expected_of(step, c, in);
  if constexpr (kIsForward<Step>) {
    const tile::AttentionExpected plain = reference(
        tile::AttentionForward{plain_call}, rope::AttentionInputs{in.q, in.k, in.v, c.frequencies});
    check_step(step, c, in,
               {with_bounds(plain.o, of_method[0]), with_bounds(plain.lse, of_method[1])});
  } else {
    const tile::AttentionGradients plain = reference(
        tile::AttentionBackward{plain_call},
        rope::AttentionBackwardInputs{in.q, in.k, in.v, in.o, in.lse, in.dout, c.frequencies});
    check_step(step, c, in,
               {with_bounds(plain.dq, of_method[0]), with_bounds(plain.dk, of_method[1]),
                with_bounds(plain.dv, of_method[2])});
  }
}

/// How far apart a query at i and a far key at j are for the rotation, as method/tables.hpp says
/// it.
double far_distance(const Rule& rule, std::int64_t w, std::int64_t i, std::int64_t j) {
  switch (rule.far) {
    case FarRotation::none: break;
    case FarRotation::rerope: return static_cast<double>(w);
    case FarRotation::leaky_rerope:
      return static_cast<double>(w) + static_cast<double>(i - j - w) / rule.factor;
    case FarRotation::self_extend: {
      const auto g = static_cast<std::int64_t>(rule.factor);
      return static_cast<double>(i / g - j / g + w - w / g);
    }
  }
  return kNaN;
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("methods: each value of an option with each value of the others") {
    for_each_method_step(
        [](const auto& step, DType type) {
          const std::vector<MethodCase> cases = drawn_cases(step, type);
          for (std::size_t i = 0; i < cases.size(); ++i) {
            CHECK(takes(step, cases[i]));
            if (tile::takes_case(step, type, i)) check_step(step, cases[i]);
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("methods: windows and lengths on both sides of tiles, all stages three times") {
    for_each_method_step([](const auto& step, DType type) {
      std::size_t turn = step.number;  // so that two steps have other rules
      // Two buffers of 128 keys, or eight of 128 keys or values; backward, two of 64 queries, or of
      // 128.
      Sizes longest{1, 1, 1, 385, 129, 64};
      if (kIsForward<decltype(step)>) longest = {1, 1, 1, 129, 641, 64};
      if (step.name == "turn_twice") {
        longest = kIsForward<decltype(step)> ? Sizes{1, 1, 1, 129, 1409, 64}
                                             : Sizes{1, 1, 1, 520, 520, 64};
      }
      if (step.types.contains(DType::fp32)) longest = {1, 1, 1, 40, 70, 64};
      std::vector<std::pair<Sizes, int>> problems{{{1, 1, 1, 65, 65, 64}, 32}, {longest, 65}};
      // Forward, 128 queries to a block also at 128 columns.
      if (kIsForward<decltype(step)> && longest.keys > 70) {
        problems.push_back({{1, 1, 1, 145, 145, 128}, 40});
      }
      // More heads of keys than blocks take in a section, each of two heads of queries, and keys
      // that are near to some tiles of queries only.
      if (step.name == "prologue" && !kIsForward<decltype(step)>) {
        problems.push_back({{2, 10, 5, 260, 260, 64}, 20});
      }
      for (const auto& [n, window] : problems) {
        const MethodCase c = method_case(type, n, kRules[++turn % std::size(kRules)], window);
        CHECK(takes(step, c));
        check_step(step, c);
      }
    });
  }

  TEST_CASE("methods: head dimensions, whole and rotated in part") {
    for_each_method_step([](const auto& step, DType type) {
      MethodCases cases(step, type, 2);
      std::size_t turn = 0;
      for (const auto& [dim, rotary_dim] : {std::pair{64, 48},
                                            {64, 64},
                                            {16, 16},
                                            {128, 128},
                                            {64, 6},  // rows of the tables are 12 bytes
                                            {128, 32},
                                            {256, 256},
                                            {32, 30},
                                            {24, 10},
                                            {288, 64},  // tiles end at 256
                                            {64, 0}}) {
        for (const rope::Layout layout : kLayouts) {
          const Rule& rule = kRules[++turn % std::size(kRules)];
          cases.check(step,
                      rotated_in_part(method_case(type, {2, 2, 1, 33, 67, dim}, rule, 21, layout),
                                      rotary_dim));
        }
      }
    });
  }

  TEST_CASE("methods: strides, offsets, pointers aligned in every way") {
    for_each_method_step([](const auto& step, DType type) {
      for (const Rule& rule : {kRules[1], kRules[4]}) {
        const Sizes n{2, 4, 2, 35, 50, 64};
        MethodCase c = method_case(type, n, rule, 19);
        // As if in one tensor [batch][length][heads + 2 kv_heads][head_dim].
        const std::int64_t row = (n.heads + 2 * n.kv_heads) * n.head_dim;
        c.p.q.stride = {n.queries * row, n.head_dim, row};
        c.p.k.stride = c.p.v.stride = {n.keys * row, n.head_dim, row};
        c.p.o.stride = heads_first(n.queries, n.heads, n.head_dim, 16);
        c.dout = heads_first(n.queries, n.heads, n.head_dim);
        c.dq = heads_first(n.queries, n.heads, n.head_dim, 8);
        c.dk = c.p.k.stride;
        c.dv = heads_first(n.keys, n.kv_heads, n.head_dim, 24);
        c.offset = {.q = 8, .k = 16, .v = 24, .o = 32, .dout = 40, .dq = 8, .dk = 24, .dv = 16};
        c.offset.tables = 4;
        check_step(step, c);
      }
      MethodCases cases(step, type, 3);
      const auto check_moved = [&](const auto& move) {
        for (const std::int64_t by : {1, 3}) {
          MethodCase c = method_case(type, {1, 2, 1, 17, 29, 64}, kRules[by], 9);
          move(c, by);
          cases.check(step, c);
        }
      };
      check_moved([](MethodCase& c, std::int64_t) { c.p.rotary.table_positions += 2; });
      using Offsets = MethodCase::Offsets;
      std::vector<std::int64_t Offsets::*> offsets{&Offsets::q, &Offsets::k, &Offsets::v,
                                                   &Offsets::o, &Offsets::tables};
      if (!kIsForward<decltype(step)>) {
        offsets.insert(offsets.end(), {&Offsets::dout, &Offsets::dq, &Offsets::dk, &Offsets::dv});
      }
      for (std::int64_t Offsets::*each : offsets) {
        check_moved([each](MethodCase& c, std::int64_t by) { c.offset.*each = by; });
      }
      for (tile::TensorView AttentionForward::*each :
           {&AttentionForward::q, &AttentionForward::k, &AttentionForward::v,
            &AttentionForward::o}) {
        check_moved([each](MethodCase& c, std::int64_t by) { (c.p.*each).stride.row += by; });
      }
    });
  }

  TEST_CASE("methods: where all keys are near it is plain rotary attention") {
    for_each_method_step([](const auto& step, DType type) {
      std::int64_t turn = 0;
      for (const Rule& rule : {kRules[0], kRules[1], kRules[3]}) {
        const std::int64_t window = ++turn % 2 ? 70 : kUnlimited;
        check_is_plain(step, method_case(type, {1, 2, 1, 70, 70, 64}, rule, window));
      }
    });
  }

  TEST_CASE("methods: Leaky ReRoPE with factor 1 and Self-Extend with G = 1 are plain as well") {
    for_each_method_step([](const auto& step, DType type) {
      for (const FarRotation method : {FarRotation::leaky_rerope, FarRotation::self_extend}) {
        check_is_plain(step, method_case(type, {1, 2, 1, 70, 70, 64}, {method, 1}, 0));
        MethodCase c =
            method_case(type, {1, 2, 1, 70, 70, 64}, {method, 1}, 33, rope::Layout::interleaved);
        c.p.rotary.attention_factor = 1.25;
        check_is_plain(step, rotated_in_part(c, 48));
      }
    });
  }

  TEST_CASE("methods: with frequencies of zero it is chapter 05's attention") {
    for_each_method_step([](const auto& step, DType type) {
      for (const Rule& rule : {kRules[0], kRules[3]}) {
        MethodCase c = method_case(type, {1, 4, 2, 50, 70, 64}, rule, 20);
        std::ranges::fill(c.frequencies, 0);
        const MethodRows in = normal(c);
        const std::vector<tile::Expected> of_method = expected_of(step, c, in);
        const tile::Attention sizes{type, 1, 4, 50, 70, 64, 2, kMaxLength, 0, c.p.scale};
        if constexpr (kIsForward<decltype(step)>) {
          const auto plain = tile::attention_reference(sizes, {in.q, in.k, in.v});
          check_step(step, c, in,
                     {with_bounds(plain.o, of_method[0]), with_bounds(plain.lse, of_method[1])});
        } else {
          const auto plain =
              tile::attention_gradients(sizes, {in.q, in.k, in.v, in.o, in.lse, in.dout});
          check_step(step, c, in,
                     {with_bounds(plain.dq, of_method[0]), with_bounds(plain.dk, of_method[1]),
                      with_bounds(plain.dv, of_method[2])});
        }
      }
    });
  }

  TEST_CASE("methods: no query, no key, no batch") {
    for_each_method_step(
        [](const auto& step, DType type) {
          for (const Sizes& n :
               {Sizes{2, 2, 1, 0, 5, 64}, {0, 2, 1, 5, 5, 64}, {2, 2, 1, 5, 0, 64}}) {
            check_step(step, method_case(type, n, kRules[1], 3));
          }
        },
        tile::OwnKernel::need_not_run);
  }
}

TEST_SUITE("chapter") {
  TEST_CASE("methods: how far apart far keys are, by the formulas") {
    for (const Rule& rule : kRules) {
      for (const std::int64_t window : {0, 1, 2, 7, 8, 24, 100, 1001}) {
        const tile::Rotary of = rotary_of(rule);
        bool good = true;
        for (std::int64_t i = window; i < window + 300; i += 1 + i % 3) {
          for (std::int64_t j = 0; j <= i - window; j += 1 + j % 2) {
            const double distance = far_query_place(of, window, i) - far_key_place(of, j);
            good = good && std::abs(distance - far_distance(rule, window, i, j)) < 1e-11;
          }
        }
        CAPTURE(method::name(rule.far));
        CAPTURE(rule.factor);
        CAPTURE(window);
        CHECK(good);
      }
    }
    // Written out: i = 100, j = 29, W = 50.
    const auto distance = [](const Rule& rule) {
      const tile::Rotary of = rotary_of(rule);
      return far_query_place(of, 50, 100) - far_key_place(of, 29);
    };
    CHECK(distance({FarRotation::rerope}) == 50);
    CHECK(distance({FarRotation::leaky_rerope, 2}) == 50 + 21 / 2.0);
    CHECK(distance({FarRotation::self_extend, 8}) == 12 - 3 + 50 - 6);
  }

  TEST_CASE("methods: at the window's border near and far meet") {
    for (const Rule& rule : kRules) {
      for (const std::int64_t window : {0, 1, 31, 100, 240}) {
        const tile::Rotary of = rotary_of(rule);
        for (std::int64_t j = 0; j < 500; ++j) {
          const double distance = far_query_place(of, window, j + window) - far_key_place(of, j);
          const bool is_grouped = rule.far == FarRotation::self_extend;
          // Groups begin at multiples of G: between them the step is less than one.
          const double most = is_grouped ? 1 : 1e-12;
          const double apart = std::abs(distance - static_cast<double>(window));
          if (!(apart <= most)) FAIL_CHECK(method::name(rule.far) << ", window " << window);
        }
      }
    }
  }

  TEST_CASE("methods: the tables") {
    const Values frequencies = rope::frequencies({.rotary_dim = 12});
    constexpr std::int64_t kPositions = 41;
    constexpr float kFactor = 1.5;
    for (const Rule& rule : kRules) {
      tile::Rotary of = rotary_of(rule);
      of.attention_factor = kFactor;
      const rope::Tables tables = method::make_tables(of, 10, frequencies, kPositions);
      REQUIRE(std::ssize(tables.cos) == 3 * kPositions * 6);
      REQUIRE(tables.sin.size() == tables.cos.size());
      std::size_t at = 0;
      for (int block = 0; block < 3; ++block) {
        for (std::int64_t position = 0; position < kPositions; ++position) {
          const double place = block == 0   ? static_cast<double>(position)
                               : block == 1 ? far_query_place(of, 10, position)
                                            : far_key_place(of, position);
          for (const double f : frequencies) {
            CHECK(std::abs(tables.cos[at] - kFactor * std::cos(place * f)) < 1e-7);
            CHECK(std::abs(tables.sin[at] - kFactor * std::sin(place * f)) < 1e-7);
            ++at;
          }
        }
      }
    }
  }

  TEST_CASE("methods: the reference is attention whose scores know distances only") {
    for (const Rule& rule : kRules) {
      for (const rope::Layout layout : kLayouts) {
        MethodCase c =
            rotated_in_part(method_case(DType::fp64, {2, 4, 2, 9, 13, 8}, rule, 4, layout), 6);
        c.query_lengths = {9, 7};
        c.key_lengths = {12, 5};
        c.p.rotary.attention_factor = 1.25;
        const MethodRows in = normal(c);
        const tile::AttentionExpected got = expected_outputs(c, in);
        // Pairs are complex numbers.
        const auto pair_of = [&](const double* row, std::size_t pair) {
          const bool half = layout == rope::Layout::half_split;
          return half ? std::complex(row[pair], row[pair + 3])
                      : std::complex(row[2 * pair], row[2 * pair + 1]);
        };
        std::size_t at = 0;
        for (std::int64_t entry = 0; entry < 2; ++entry) {
          const std::int64_t queries = c.query_lengths[static_cast<std::size_t>(entry)];
          const std::int64_t keys = c.key_lengths[static_cast<std::size_t>(entry)];
          for (std::int64_t query = 0; query < 9; ++query) {
            const std::int64_t i = query + keys - queries;
            for (std::int64_t head = 0; head < 4; ++head, ++at) {
              const double* q = &in.q[at * 8];
              double sum = 0;
              Values o(8);
              for (std::int64_t j = 0; query < queries && j <= i; ++j) {
                const auto row = static_cast<std::size_t>((entry * 13 + j) * 2 + head / 2) * 8;
                const double* k = &in.k[row];
                const double distance =
                    i - j < 4 ? static_cast<double>(i - j) : far_distance(rule, 4, i, j);
                double score = q[6] * k[6] + q[7] * k[7];
                for (std::size_t pair = 0; pair < 3; ++pair) {
                  const auto turn = std::polar(1.25 * 1.25, distance * c.frequencies[pair]);
                  score += (pair_of(q, pair) * std::conj(pair_of(k, pair)) * turn).real();
                }
                const double weight = std::exp(c.p.scale * score);
                sum += weight;
                for (std::size_t d = 0; d < 8; ++d) o[d] += weight * in.v[row + d];
              }
              const double lse = std::log(sum);
              if (!std::isinf(lse)) CHECK(std::abs(got.lse.value[at] - lse) < 1e-12);
              if (std::isinf(lse)) CHECK(got.lse.value[at] == lse);
              for (std::size_t d = 0; d < 8; ++d) {
                const double value = sum > 0 ? o[d] / sum : 0;
                CHECK(std::abs(got.o.value[at * 8 + d] - value) < 1e-12);
              }
            }
          }
        }
      }
    }
  }

  TEST_CASE("methods: rotated in memory or by the block, the products have the same factors") {
    for (const DType type : {DType::fp16, DType::bf16}) {
      for (const std::int64_t dim : {64, 128}) {
        const MethodCase c = method_case(type, {1, 2, 1, 150, 190, dim}, kRules[3], 70);
        const MethodRows in = normal(c);
        Results first;
        for (std::size_t number = 0; number < std::size(kMethod); ++number) {
          const tile::TestedStep<method::MethodLadder> step{kMethod[number], &kMethodLadder,
                                                            number};
          if (!takes(step, c)) continue;
          // Where there is wgmma the others multiply by it, in another order.
          const bool has_wgmma = tile::has_feature(tile::device().capability, tile::Feature::wgmma);
          if (has_wgmma && step.name == "prologue") continue;
          CAPTURE(step.name);
          const Results got = run(step, c, in, Poison::unwritten_nan);
          if (first.empty()) first = got;
          for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i].values == first[i].values);
        }
      }
    }
  }

  TEST_CASE("methods: the backward reference is the slope of the forward one") {
    for (const Rule& rule : {kRules[0], kRules[2], kRules[4]}) {
      for (const rope::Layout layout : kLayouts) {
        MethodCase c =
            rotated_in_part(method_case(DType::fp64, {2, 2, 1, 5, 7, 6}, rule, 2, layout), 4);
        c.query_lengths = {4, 5};
        c.key_lengths = {7, 4};  // the second entry's first query sees none
        c.p.rotary.attention_factor = 1.5;
        MethodRows in = normal(c);
        const tile::AttentionExpected forward = expected_outputs(c, in);
        in.o = forward.o.value, in.lse = forward.lse.value;
        tile::check_slopes(in, expected_gradients(c, in),
                           [&c](const MethodRows& rows) { return expected_outputs(c, rows); });
      }
    }
  }

  TEST_CASE("methods: some rows of the references are those of all") {
    MethodCase c = method_case(DType::bf16, {2, 2, 1, 9, 13, 8}, kRules[3], 4);
    c.key_lengths = {13, 8};
    const MethodRows in = normal(c);
    const std::vector<std::int64_t> rows{3, 8, 9, 14}, key_rows{0, 12, 13, 20};
    const auto some_of = [](const tile::Expected& all, const std::vector<std::int64_t>& of_rows) {
      const std::int64_t row_size = std::ssize(all.value) / all.shape[0];
      Values some;
      for (const std::int64_t row : of_rows) {
        const auto first = all.value.begin() + row * row_size;
        some.insert(some.end(), first, first + row_size);
      }
      return some;
    };
    const tile::Expected q{{18}, in.q, {}};
    const Values some_q = some_of(q, rows);
    const tile::AttentionExpected all = expected_outputs(c, in);
    const tile::AttentionExpected some =
        method::reference(c.p, {some_q, in.k, in.v, c.frequencies, {}, c.key_lengths}, rows);
    CHECK(some.o.value == some_of(all.o, rows));
    CHECK(some.lse.value == some_of(all.lse, rows));
    const tile::AttentionGradients gradients = expected_gradients(c, in);
    const tile::AttentionGradients few = method::reference(
        c.backward(), {in.q, in.k, in.v, in.o, in.lse, in.dout, c.frequencies, {}, c.key_lengths},
        rows, key_rows);
    CHECK(few.dq.value == some_of(gradients.dq, rows));
    CHECK(few.dk.value == some_of(gradients.dk, key_rows));
    CHECK(few.dv.value == some_of(gradients.dv, key_rows));
  }

  TEST_CASE("methods: the workspace holds rotated rows, each twice, and backward gradients") {
    MethodCase c = method_case(DType::bf16, {1, 32, 8, 8192, 8192, 64}, kRules[0], 2048);
    const std::int64_t of_q = 8192 * 32 * 64 * 2, positions = 8192 * 4;
    CHECK(method::composed_bytes(c.p) == 2 * (of_q + of_q / 4) + positions);
    CHECK(method::composed_bytes(c.backward()) > 4 * (of_q + of_q / 4) + positions);
    c.p.batch = c.p.heads = c.p.queries = c.p.keys = kMaxLength;
    CHECK(method::composed_bytes(c.p) == INT64_MAX);
    CHECK(method::composed_bytes(c.backward()) == INT64_MAX);
    c.p.batch = 0;
    CHECK(method::composed_bytes(c.p) == 0);
  }

  TEST_CASE("methods: each step asks for its workspace, to the byte") {
    const auto check = [](const auto& ladder, const auto& p) {
      for (const auto& step : ladder.steps) {
        if (!tile::check_requirements(step.types, step.needs, p.type).ok()) continue;
        auto of_step = p;
        of_step.workspace_bytes = workspace_bytes_of(step, p);
        const bool is_taken = tile::check_step(step, of_step).ok();
        CAPTURE(step.name);
        if (step.otherwise.empty()) CHECK(is_taken);
        if (!is_taken) continue;
        --of_step.workspace_bytes;
        const Status less = tile::check_step(step, of_step);
        CHECK_MESSAGE(less.message.rfind("workspace_bytes: ", 0) == 0, less.message);
      }
    };
    for (const DType type : {DType::bf16, DType::fp32}) {
      for (const std::int64_t dim : {64, 512}) {  // 512: attention leaves it to step `scores`
        const MethodCase c = method_case(type, {1, 4, 2, 5, 7, dim}, kRules[0], 3);
        check(kMethodLadder, c.p);
        check(kMethodBackwardLadder, c.backward());
      }
    }
  }

  TEST_CASE("methods: what is refused, by name") {
    const auto status_of = [](const auto& ladder, auto p, const auto& change) {
      std::uintptr_t next = 4096;
      const auto place = [&next](std::int64_t bytes) {
        const std::uintptr_t here = next;
        next += static_cast<std::uintptr_t>(bytes);
        return reinterpret_cast<void*>(here);
      };
      const auto floats = [&place](std::int64_t count) {
        return static_cast<float*>(place(count * 4));
      };
      const std::int64_t of_q = 5 * 4 * 64 * 2, of_k = 7 * 2 * 64 * 2;
      p.q.data = place(of_q), p.k.data = place(of_k), p.v.data = place(of_k);
      p.o.data = place(of_q), p.lse = floats(4 * 5);
      p.rotary.cos = floats(3 * 7 * 32), p.rotary.sin = floats(3 * 7 * 32);
      if constexpr (requires { p.dq; }) {
        p.dout.data = place(of_q), p.dq.data = place(of_q);
        p.dk.data = place(of_k), p.dv.data = place(of_k);
      }
      p.workspace_bytes = method::composed_bytes(p);
      next = (next + 15) / 16 * 16;
      p.workspace = place(p.workspace_bytes);
      change(p);
      if (Status s = ladder.validate(p); !s.ok() || ladder.is_empty(p)) return s;
      return tile::check_step(ladder.steps[0], p);
    };
    const auto for_both = [&](const auto& change, const auto& check) {
      const MethodCase c = method_case(DType::bf16, {1, 4, 2, 5, 7, 64}, kRules[0], 3);
      check(status_of(kMethodLadder, c.p, change));
      check(status_of(kMethodBackwardLadder, c.backward(), change));
    };
    const auto refuses = [&](const std::string& name, const auto& change) {
      CAPTURE(name);
      for_both(change, [&name](const Status& status) {
        CHECK(!status.ok());
        CHECK_MESSAGE(status.message.rfind(name + ": ", 0) == 0, status.message);
      });
    };
    const auto accepts = [&](const char* what, const auto& change) {
      CAPTURE(what);
      for_both(change, [](const Status& status) { CHECK_MESSAGE(status.ok(), status.message); });
    };
    accepts("as it is", [](auto&) {});
    refuses("type", [](auto& p) { p.type = DType::tf32; });
    refuses("queries", [](auto& p) { p.queries = -1; });
    refuses("kv_heads", [](auto& p) { p.kv_heads = 3; });
    refuses("scale", [](auto& p) { p.scale = 0; });
    refuses("causal", [](auto& p) { p.right = kUnlimited; });

    accepts("a window of none", [](auto& p) { p.window = 0; });
    refuses("window", [](auto& p) { p.window = -1; });
    accepts("a window of all", [](auto& p) { p.window = kUnlimited; });
    accepts("a window of more than all", [](auto& p) { p.window = INT64_MAX; });
    accepts("a factor that is not read", [](auto& p) { p.rotary.far_factor = 0; });
    for (const FarRotation method : {FarRotation::leaky_rerope, FarRotation::self_extend}) {
      const auto with = [method](double factor) {
        return [=](auto& p) { p.rotary.far = method, p.rotary.far_factor = factor; };
      };
      accepts("factor 1", with(1));
      refuses("far_factor", with(0.99));
      refuses("far_factor", with(kNaN));
      refuses("far_factor", with(kInfinity));
    }
    const auto two_and_a_half = [](FarRotation method) {
      return [=](auto& p) { p.rotary.far = method, p.rotary.far_factor = 2.5; };
    };
    accepts("a fraction of a leak", two_and_a_half(FarRotation::leaky_rerope));
    refuses("far_factor", two_and_a_half(FarRotation::self_extend));
    for (const auto far : {FarRotation::none, static_cast<FarRotation>(4)}) {
      refuses("far", [far](auto& p) { p.rotary.far = far; });
    }
    static constexpr int kPositions[] = {0};
    refuses("positions", [](auto& p) { p.rotary.positions = kPositions; });
    refuses("first_position", [](auto& p) { p.rotary.first_position = 1; });
    refuses("left", [](auto& p) { p.left = 3; });
    refuses("q_far", [](auto& p) { p.q_far.data = p.q.data; });
    refuses("k_far", [](auto& p) { p.k_far.data = p.k.data; });
    refuses("distance_part", [](auto& p) { p.distance_part = 0.5f; });

    accepts("half of a row", [](auto& p) { p.rotary.rotary_dim = 32; });
    refuses("rotary_dim", [](auto& p) { p.rotary.rotary_dim = 63; });
    refuses("rotary_dim", [](auto& p) { p.rotary.rotary_dim = 66; });
    refuses("attention_factor", [](auto& p) { p.rotary.attention_factor = 0; });
    refuses("layout", [](auto& p) { p.rotary.layout = static_cast<rope::Layout>(2); });
    refuses("table_positions", [](auto& p) { p.rotary.table_positions = 6; });
    refuses("table_positions", [](auto& p) { p.rotary.table_positions = -1; });
    accepts("fewer keys", [](auto& p) { p.keys = 6; });
    refuses("cos", [](auto& p) { p.rotary.cos = nullptr; });
    refuses("sin", [](auto& p) { p.rotary.sin = nullptr; });

    for (const auto& [name, pointer] : {std::pair{"q", 0}, {"k", 1}, {"v", 2}}) {
      refuses(name, [pointer = pointer](auto& p) {
        (pointer == 0 ? p.q.data : pointer == 1 ? p.k.data : p.v.data) = nullptr;
      });
    }
    refuses("o", [](auto& p) { p.o.data = nullptr; });
    refuses("v", [](auto& p) { p.v.stride.row = -64; });
    accepts("one head of k for all", [](auto& p) { p.k.stride.head = 0; });
    accepts("lengths",
            [](auto& p) { p.query_lengths = p.key_lengths = static_cast<const int*>(p.q.data); });
    refuses("workspace", [](auto& p) { p.workspace = nullptr; });
    refuses("workspace_bytes", [](auto& p) { --p.workspace_bytes; });
    accepts("nothing to do", [](auto& p) {
      p = std::remove_cvref_t<decltype(p)>{static_cast<const tile::Attention&>(p)};
      p.batch = 0;
      p.workspace = nullptr, p.workspace_bytes = 0;
    });

    // What one of the two asks for.
    const MethodCase c = method_case(DType::bf16, {1, 4, 2, 5, 7, 64}, kRules[0], 3);
    const auto forward = [&](const auto& change) { return status_of(kMethodLadder, c.p, change); };
    const auto backward = [&](const auto& change) {
      return status_of(kMethodBackwardLadder, c.backward(), change);
    };
    const auto no_lse = [](auto& p) { p.lse = nullptr; };
    CHECK(forward(no_lse).ok());
    CHECK(backward(no_lse).message.rfind("lse: ", 0) == 0);
    const auto o_of_q = [](AttentionForward& p) { p.o.data = p.q.data; };
    CHECK(forward(o_of_q).message.rfind("o: overlaps q", 0) == 0);
    const auto o_of_sin = [](AttentionForward& p) { p.o.data = const_cast<float*>(p.rotary.sin); };
    CHECK(forward(o_of_sin).message.rfind("o: overlaps sin", 0) == 0);
    const auto dk_of_k = [](auto& p) { p.dk.data = p.k.data; };
    CHECK(backward(dk_of_k).message.rfind("dk: overlaps k", 0) == 0);
    const auto no_dv = [](auto& p) { p.dv.data = nullptr; };
    CHECK(backward(no_dv).message.rfind("dv: ", 0) == 0);

    // With frequencies the tables may be made later.
    AttentionForward p = c.p;
    float inputs[7 * 4 * 64], o[5 * 4 * 64];  // the longest of q, k and v is in the first
    p.q.data = p.k.data = p.v.data = inputs;
    p.o.data = o;
    CHECK(method::validate_tensors(p).message.rfind("cos: ", 0) == 0);
    CHECK(method::validate_tensors(p, c.frequencies.data()).ok());
  }
}

}  // namespace windowed_rope
