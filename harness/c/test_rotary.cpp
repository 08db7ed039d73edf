// The rotation by the C interface, called as a C program calls it.
#include <cmath>

#include "06_rope/rotary/frequencies.hpp"
#include "06_rope/rotary/reference.hpp"
#include "06_rope/test/rotation.hpp"
#include "harness/c/test_support.hpp"

namespace rotary_test {
namespace {

using rope::RotaryProblem;
using rope::Strides;

constexpr std::int64_t kBatch = 2, kLength = 7, kHeads = 4, kDim = 64, kTablePositions = 12;

struct Case {
  std::int64_t kv_heads, rotary_dim;  // 0: all of a row is rotated
  std::int64_t padding;               // elements between rows; 0: strides are left 0
  std::int64_t first_position;
  double attention_factor;  // 0: left to the default
  bool interleaved, backward, positions;
};
constexpr Case kCases[] = {{2, 0, 0, 0, 0, false, false, false},
                           {1, 48, 8, 5, 1.3, true, true, false},
                           {0, 32, 16, 0, 0, false, true, true}};
const std::vector<int> kPositions{3, 1, 4, 1, 5,  11, 2,
                                  6, 5, 3, 5, 12, 9,  -7};  // two are not in the tables

Strides strides(const Case& c, std::int64_t heads, int tensor) {
  const std::int64_t row = heads * kDim + c.padding * tensor;
  return {kLength * row, kDim, row};
}

RotaryProblem problem_of(const Case& c, DType type) {
  RotaryProblem p{.type = type,
                  .batch = kBatch,
                  .length = kLength,
                  .heads = kHeads,
                  .kv_heads = c.kv_heads,
                  .head_dim = kDim,
                  .rotary_dim = c.rotary_dim == 0 ? kDim : c.rotary_dim};
  p.layout = c.interleaved ? rope::Layout::interleaved : rope::Layout::half_split;
  p.pass = c.backward ? rope::Pass::backward : rope::Pass::forward;
  p.first_position = c.first_position;
  p.table_positions = kTablePositions;
  if (c.attention_factor != 0) p.attention_factor = c.attention_factor;
  p.q = strides(c, kHeads, 1), p.k = strides(c, c.kv_heads, 2);
  p.q_out = strides(c, kHeads, 3), p.k_out = strides(c, c.kv_heads, 4);
  return p;
}

void set(std::int64_t (&to)[3], const Strides& from) {
  to[0] = from.batch, to[1] = from.head, to[2] = from.row;
}

tile_rotary_args sizes(const Case& c, tile_type type) {
  tile_rotary_args args{};
  args.struct_size = sizeof args;
  args.type = type;
  args.interleaved = c.interleaved, args.backward = c.backward;
  args.attention_factor = c.attention_factor;
  args.batch = kBatch, args.length = kLength, args.heads = kHeads, args.kv_heads = c.kv_heads;
  args.head_dim = kDim, args.rotary_dim = c.rotary_dim;
  args.first_position = c.first_position, args.table_positions = kTablePositions;
  if (c.padding == 0) return args;
  const RotaryProblem p = problem_of(c, DType::fp32);
  set(args.q_strides, p.q), set(args.k_strides, p.k);
  set(args.q_out_strides, p.q_out), set(args.k_out_strides, p.k_out);
  return args;
}

struct Inputs {
  Values q, k, frequencies;
  std::vector<int> positions;
  tile::Expected q_out, k_out;

  Inputs(const Case& c, DType type)
      : q(tile::normal(kBatch * kLength * kHeads * kDim, type, 1)),
        k(tile::normal(kBatch * kLength * c.kv_heads * kDim, type, 2)),
        frequencies(rope::paper_frequencies(problem_of(c, type).rotary_dim)) {
    if (c.positions) positions = kPositions;
    const RotaryProblem p = problem_of(c, type);
    const auto turned = [&](const Values& x, std::int64_t heads) {
      return rope::reference(p, x, heads, frequencies, positions, rope::Angles::computed);
    };
    q_out = turned(q, kHeads), k_out = turned(k, c.kv_heads);
  }
};

Memory place(const Case& c, DType type, const Inputs& in, tile_rotary_args* args) {
  const RotaryProblem p = problem_of(c, type);
  Memory memory;
  args->q = memory.input("q", type, kBatch * kLength, p.q.row, in.q);
  args->k = memory.input("k", type, kBatch * kLength, p.k.row, in.k);
  args->q_out =
      memory.output("q_out", type, kBatch * kLength, kHeads * kDim, p.q_out.row, in.q_out);
  if (c.kv_heads > 0) {
    args->k_out =
        memory.output("k_out", type, kBatch * kLength, c.kv_heads * kDim, p.k_out.row, in.k_out);
  }
  const rope::TestTables tables =
      rope::tables_of(in.frequencies, kTablePositions, p.attention_factor);
  const std::int64_t pairs = p.rotary_dim / 2;
  args->cos = memory.input("cos", DType::fp32, kTablePositions, pairs, tables.cos);
  args->sin = memory.input("sin", DType::fp32, kTablePositions, pairs, tables.sin);
  args->frequencies = memory.input("frequencies", DType::fp64, 1, pairs, in.frequencies);
  args->positions = memory.integers("positions", in.positions);
  return memory;
}

}  // namespace

TEST_CASE("rotary: every step by its name, in each type, and the best without one") {
  for (const Case& c : kCases) {
    for (std::size_t t = 0; t < std::size(kTypes); ++t) {
      const DType type = tile::kDTypes[t];
      tile_rotary_args args = sizes(c, kTypes[t]);
      if (!rope::kTypes.contains(type)) {
        check_refused(tile_rotary(&args), TILE_UNSUPPORTED, "type");
        continue;
      }
      const Inputs in(c, type);
      const std::size_t steps = rope::kRotaryLadder.steps.size();
      for (std::size_t i = 0; i <= steps; ++i) {
        const std::string name(i < steps ? rope::kRotaryLadder.steps[i].name : "");
        CAPTURE(name);
        CAPTURE(&c - kCases);
        const Memory memory = place(c, type, in, &args);
        args.step = i < steps ? name.c_str() : nullptr;
        check_ok(tile_rotary(&args));
        memory.check();
        CHECK(std::string(tile_last_step()) == (i < steps ? name : "vectors"));
      }
    }
  }
}

TEST_CASE("rotary: the reference takes doubles of the host") {
  for (const Case& c : kCases) {
    const Inputs in(c, DType::fp64);
    const RotaryProblem p = problem_of(c, DType::fp64);
    tile_rotary_args args = sizes(c, TILE_FP64);
    const auto spread_rows = [](const Values& x, std::int64_t heads, std::int64_t row) {
      return heads == 0 ? Values{} : spread(x, heads * kDim, row, NAN);
    };
    const Values q = spread_rows(in.q, kHeads, p.q.row), k = spread_rows(in.k, c.kv_heads, p.k.row);
    Values q_out = spread_rows(Values(in.q.size(), 7), kHeads, p.q_out.row);
    Values k_out = spread_rows(Values(in.k.size(), 7), c.kv_heads, p.k_out.row);
    args.q = q.data(), args.k = k.data(), args.q_out = q_out.data(), args.k_out = k_out.data();
    args.positions = in.positions.empty() ? nullptr : in.positions.data();
    const Values tables(static_cast<std::size_t>(p.table_positions * p.head_dim));
    args.cos = args.sin = tables.data();  // not read
    check_refused(tile_rotary_reference(&args), TILE_INVALID_ARGUMENT, "frequencies");
    args.frequencies = in.frequencies.data();
    args.cos = args.sin = nullptr;
    check_ok(tile_rotary_reference(&args));
    const auto check = [](const Values& got, const Values& wanted, std::int64_t heads,
                          std::int64_t row) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const std::size_t cols = static_cast<std::size_t>(heads * kDim);
        const double value = got[i / cols * static_cast<std::size_t>(row) + i % cols];
        CHECK((value == wanted[i] || (std::isnan(value) && std::isnan(wanted[i]))));
      }
    };
    check(q_out, in.q_out.value, kHeads, p.q_out.row);
    check(k_out, in.k_out.value, c.kv_heads, p.k_out.row);
  }
}

TEST_CASE("rotary: what is wrong is named, and nothing is touched") {
  const Case& c = kCases[0];
  const Inputs in(c, DType::bf16);
  tile_rotary_args good = sizes(c, TILE_BF16);
  const Memory memory = place(c, DType::bf16, in, &good);
  const auto refuses = [&](const char* argument, auto change,
                           tile_status wanted = TILE_INVALID_ARGUMENT) {
    tile_rotary_args args = good;
    change(&args);
    check_refused(tile_rotary(&args), wanted, argument);
  };
  refuses("struct_size", [](tile_rotary_args* a) { a->struct_size -= 1; });
  refuses("type", [](tile_rotary_args* a) { a->type = 0; });
  refuses("interleaved", [](tile_rotary_args* a) { a->interleaved = 2; });
  refuses("backward", [](tile_rotary_args* a) { a->backward = -1; });
  refuses("step", [](tile_rotary_args* a) { a->step = "mma"; });
  refuses("length", [](tile_rotary_args* a) { a->length = -1; });
  refuses(
      "length, heads and head_dim", [](tile_rotary_args* a) { a->length = INT64_MAX; },
      TILE_UNSUPPORTED);
  refuses(
      "length, kv_heads and head_dim", [](tile_rotary_args* a) { a->kv_heads = INT64_MAX; },
      TILE_UNSUPPORTED);
  refuses("rotary_dim", [](tile_rotary_args* a) { a->rotary_dim = 3; });
  refuses("table_positions", [](tile_rotary_args* a) { a->first_position = 6; });
  refuses("q_out", [](tile_rotary_args* a) { a->q_out = nullptr; });
  refuses("attention_factor", [](tile_rotary_args* a) { a->attention_factor = -1; });
  memory.check_untouched();
}

TEST_CASE("rotary: tables by rule and scaling, on the host") {
  static_assert(static_cast<int>(rope::Rule::half_truncated) == TILE_ROTARY_HALF_TRUNCATED);
  constexpr std::int64_t kRotaryDim = 16, kPairs = 8, kRows = 5;
  const Values of_short{1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5}, of_long{1, 2, 3, 4, 5, 6, 7, 8};
  constexpr std::pair<tile_rotary_scaling, rope::Scaling> kScalings[] = {
      {TILE_ROTARY_UNSCALED, rope::Scaling::none},
      {TILE_ROTARY_LINEAR, rope::Scaling::linear},
      {TILE_ROTARY_NTK, rope::Scaling::ntk},
      {TILE_ROTARY_DYNAMIC_NTK, rope::Scaling::dynamic_ntk},
      {TILE_ROTARY_YARN, rope::Scaling::yarn},
      {TILE_ROTARY_LLAMA3, rope::Scaling::llama3},
      {TILE_ROTARY_LONGROPE, rope::Scaling::longrope}};
  const auto check = [&](const tile_rotary_tables_args& wanted, const rope::FrequencyProblem& p) {
    REQUIRE(rope::validate(p).ok());
    Values frequencies(kPairs + 1, 7);
    std::vector<float> cos(kPairs * kRows + 1, 7), sin = cos;
    double factor = 0;
    tile_rotary_tables_args args = wanted;
    args.frequencies = frequencies.data(), args.cos = cos.data(), args.sin = sin.data();
    args.used_attention_factor = &factor;
    check_ok(tile_rotary_tables(&args));
    CHECK(factor == rope::attention_factor(p));
    Values expected = rope::frequencies(p);
    rope::Tables tables = rope::make_tables(expected, kRows, factor);
    expected.push_back(7), tables.cos.push_back(7), tables.sin.push_back(7);
    CHECK(frequencies == expected);
    CHECK(cos == tables.cos);
    CHECK(sin == tables.sin);
  };
  for (const auto& [theirs, ours] : kScalings) {
    const tile_rotary_scaling scaling = theirs;
    CAPTURE(scaling);
    tile_rotary_tables_args args{};
    args.struct_size = sizeof args;
    args.scaling = scaling;
    args.rotary_dim = kRotaryDim, args.positions = kRows;
    args.trained_length = 60, args.length = 100;
    args.short_factors = of_short.data(), args.long_factors = of_long.data();
    rope::FrequencyProblem p{.rotary_dim = kRotaryDim,
                             .scaling = ours,
                             .trained_length = 60,
                             .length = 100,
                             .short_factors = of_short,
                             .long_factors = of_long};
    check(args, p);
    args.base = p.base = 500, args.factor = p.factor = 4;
    args.beta_fast = p.beta_fast = 5, args.beta_slow = p.beta_slow = 0.5;
    args.high_frequency_factor = p.high_frequency_factor = 3;
    args.low_frequency_factor = p.low_frequency_factor = 0.5;
    check(args, p);
    args.length = p.length = 10;
    args.unrotated_pairs = p.unrotated_pairs = 3;
    if (ours == rope::Scaling::yarn || ours == rope::Scaling::longrope) {
      args.attention_factor = p.attention_factor = 1.3;
    }
    args.untruncated = p.untruncated = ours == rope::Scaling::yarn;
    check(args, p);
    args.rule = TILE_ROTARY_HALF_TRUNCATED, p.rule = rope::Rule::half_truncated;
    if (rope::validate(p).ok()) {
      check(args, p);
    } else {
      check_refused(tile_rotary_tables(&args), TILE_UNSUPPORTED, "scaling");
    }
  }
}

// The attention factor is not rounded before the tables are: of yarn with s = 40, by 0.1 ln 40 + 1.
TEST_CASE("rotary: numbers of a table are rounded once") {
  constexpr std::int64_t kPairs = 32, kRows = 2000;
  Values frequencies(kPairs);
  std::vector<float> cos(kPairs * kRows), sin = cos;
  double factor = 0;
  tile_rotary_tables_args args{};
  args.struct_size = sizeof args;
  args.scaling = TILE_ROTARY_YARN, args.factor = 40, args.trained_length = 4096;
  args.rotary_dim = 2 * kPairs, args.positions = kRows;
  args.frequencies = frequencies.data(), args.cos = cos.data(), args.sin = sin.data();
  args.used_attention_factor = &factor;
  check_ok(tile_rotary_tables(&args));
  CHECK(factor == 0.1 * std::log(40.0) + 1);
  std::size_t twice = 0;  // cosines that differ if they are rounded twice
  for (std::size_t i = 0; i < cos.size(); ++i) {
    const double angle = static_cast<double>(i / kPairs) * frequencies[i % kPairs];
    CHECK(cos[i] == static_cast<float>(factor * std::cos(angle)));
    CHECK(sin[i] == static_cast<float>(factor * std::sin(angle)));
    if (cos[i] != static_cast<float>(static_cast<float>(factor) * std::cos(angle))) ++twice;
  }
  CHECK(twice > cos.size() / 3);  // as scaling.md says
}

TEST_CASE("rotary: what is wrong with tables is named, and nothing is written") {
  float cos = 7;
  tile_rotary_tables_args good{};
  good.struct_size = sizeof good;
  good.rotary_dim = 2, good.positions = 1;
  check_ok(tile_rotary_tables(&good));  // nothing is wanted
  good.cos = &cos;
  const auto refuses = [&](const char* argument, auto change,
                           tile_status wanted = TILE_INVALID_ARGUMENT) {
    tile_rotary_tables_args args = good;
    change(&args);
    check_refused(tile_rotary_tables(&args), wanted, argument);
    CHECK(cos == 7);
  };
  using Args = tile_rotary_tables_args*;
  check_refused(tile_rotary_tables(nullptr), TILE_INVALID_ARGUMENT, "args");
  refuses("struct_size", [](Args a) { a->struct_size += 8; });
  refuses("rule", [](Args a) { a->rule = 2; });
  refuses("scaling", [](Args a) { a->scaling = 7; });
  refuses("rotary_dim", [](Args a) { a->rotary_dim = 3; });
  refuses("base", [](Args a) { a->base = 0.5; });
  refuses("factor", [](Args a) { a->scaling = TILE_ROTARY_LINEAR, a->factor = 0.5; });
  refuses("trained_length", [](Args a) { a->scaling = TILE_ROTARY_YARN; });
  refuses("untruncated", [](Args a) { a->untruncated = 2; });
  refuses("untruncated", [](Args a) { a->untruncated = 1; });
  refuses("unrotated_pairs", [](Args a) { a->unrotated_pairs = 2; });
  refuses("attention_factor", [](Args a) { a->attention_factor = 1.5; });
  const double one = 1;
  refuses("short_factors", [&](Args a) {
    a->scaling = TILE_ROTARY_LONGROPE, a->trained_length = 9, a->long_factors = &one;
  });
  refuses("long_factors", [&](Args a) {
    a->scaling = TILE_ROTARY_LONGROPE, a->trained_length = 9, a->short_factors = &one;
  });
  refuses(  // before as many factors are read
      "rotary_dim",
      [&](Args a) {
        a->scaling = TILE_ROTARY_LONGROPE, a->trained_length = 9;
        a->short_factors = a->long_factors = &one, a->rotary_dim = INT64_MAX - 1;
      },
      TILE_UNSUPPORTED);
  refuses("positions", [](Args a) { a->positions = -1; });
  refuses(
      "positions", [](Args a) { a->positions = INT64_MAX; }, TILE_UNSUPPORTED);
  refuses(
      "rotary_dim", [](Args a) { a->rotary_dim = INT64_MAX - 1; }, TILE_UNSUPPORTED);
  check_ok(tile_rotary_tables(&good));
  CHECK(cos == 1);
}

}  // namespace rotary_test
