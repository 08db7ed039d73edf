// Chapter 06's tests: attention with rotated q and k, forward and backward.
#include <cmath>
#include <type_traits>

#include "attention/reference.hpp"
#include "harness/attention_case.hpp"
#include "harness/selection.hpp"
#include "test_support.hpp"

namespace rope {
namespace {

using tile::AttentionRows;

template <class Step>
constexpr bool kIsForward =
    std::is_same_v<std::remove_cvref_t<Step>, tile::TestedStep<AttentionLadder>>;

// ---- Calls ----

/// With the frequencies of its tables.
struct RotatedCase : tile::AttentionCase {
  Values frequencies = paper_frequencies(p.rotary.rotary_dim);
};

RotatedCase attention(DType type, const tile::AttentionSizes& n, bool causal = true,
                      Layout layout = Layout::half_split) {
  tile::AttentionCase c{tile::attention_call<AttentionForward>(type, n)};
  if (causal) c.p.right = 0;
  c.p.rotary.rotary_dim = n.head_dim, c.p.rotary.layout = layout;
  c.p.rotary.table_positions = n.keys;
  return {c};
}

// ---- Running a step ----

tile::AttentionExpected expected_outputs(const RotatedCase& c, const AttentionRows& in) {
  return reference(c.p, {in.q, in.k, in.v, c.frequencies, c.positions});
}
tile::AttentionGradients expected_gradients(const RotatedCase& c, const AttentionRows& in) {
  return reference(c.backward(),
                   {in.q, in.k, in.v, in.o, in.lse, in.dout, c.frequencies, c.positions});
}

/// Random rows; a backward step's o and lse are what the forward pass gives it.
template <class Step>
AttentionRows normal(const Step&, const RotatedCase& c) {
  AttentionRows in = tile::random_rows(c, 71);
  if (!kIsForward<Step>) tile::add_outputs(expected_outputs(c, in), c.p.type, &in);
  return in;
}

/// In the order of the results.
template <class Step>
std::vector<tile::Expected> expected_of(const Step&, const RotatedCase& c,
                                        const AttentionRows& in) {
  if constexpr (kIsForward<Step>) {
    return tile::in_order(expected_outputs(c, in));
  } else {
    return tile::in_order(expected_gradients(c, in));
  }
}

/// Runs a step of either ladder with its tables, and outputs of this poison.
template <class Step>
tile::AttentionResults run(const Step& step, const RotatedCase& c, const AttentionRows& in,
                           Poison poison = Poison::unwritten_nan) {
  const Tables tables =
      make_tables(c.frequencies, c.p.rotary.table_positions, c.p.rotary.attention_factor);
  return tile::run_attention(step, c, in, poison, tables.cos, tables.sin);
}

/// Runs a step of either ladder and checks what it wrote.
template <class Step>
void check_step(const Step& step, const RotatedCase& c) {
  CAPTURE(step.name);
  const std::string problem = describe(c);
  CAPTURE(problem);
  const AttentionRows in = normal(step, c);
  check_values(run(step, c, in, tile::poison_in_turn()), expected_of(step, c, in));
}

/// Runs the test on both ladders.
template <class Check>
void for_each_attention(Check check, tile::OwnKernel own = tile::OwnKernel::must_run,
                        tile::Types types = tile::Types::in_turn) {
  tile::for_each_step(kAttentionLadder, check, own, types);
  tile::for_each_step(kAttentionBackwardLadder, check, own, types);
}

/// Results of the same formula are no further apart than both their bounds.
void check_close(const tile::AttentionResults& a, const tile::AttentionResults& b,
                 const std::vector<tile::Expected>& of_a, const std::vector<tile::Expected>& of_b) {
  for (std::size_t result = 0; result < a.size(); ++result) {
    CAPTURE(a[result].name);
    const Values &x = a[result].values, &y = b[result].values;
    REQUIRE(x.size() == y.size());
    std::size_t apart = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      apart += !(std::abs(x[i] - y[i]) <= of_a[result].bound[i] + of_b[result].bound[i]);
    }
    CHECK(apart == 0);
  }
}

constexpr bool kCausal[] = {true, false};

/// As many queries as keys.
constexpr tile::Lengths kLengths[] = {{65, 65}, {33, 33}, {16, 16}, {1, 1}};
constexpr tile::OwnLengths kNoOwnLengths[] = {tile::OwnLengths::none};

/// Rotated in part, or by position ids, if the step's own kernel takes that.
template <class Step>
std::vector<RotatedCase> drawn_cases(const Step& step, DType type) {
  constexpr std::int64_t kDims[] = {64, 128};
  enum class Turned { all, in_part, by_ids };
  const auto turned = [](RotatedCase c, Turned how) {
    c.p.rotary.rotary_dim = how == Turned::in_part ? 32 : c.p.head_dim;
    c.frequencies = paper_frequencies(c.p.rotary.rotary_dim);
    if (how != Turned::by_ids) return c;
    c.p.rotary.first_position = 0;
    const int tokens = static_cast<int>(c.p.batch * c.p.queries);
    for (int i = 0; i < tokens; ++i) {
      c.positions.push_back(i * 37 % static_cast<int>(c.p.rotary.table_positions));
    }
    return c;
  };
  const auto ways =
      taken(step, std::initializer_list<Turned>{Turned::all, Turned::in_part, Turned::by_ids},
            [&](Turned how) {
              return turned(attention(type, {1, 1, 1, 16, 16, 64}), how);
            });
  return tile::drawn_cases(step.number, [&](tile::Pick& pick) {
    RotatedCase c{tile::drawn_case(pick, type, kDims, kLengths, kNoOwnLengths)};
    if (pick(kCausal)) c.p.right = 0;
    c.p.rotary.layout = pick(kLayouts);
    c.p.rotary.first_position = pick({0, 5});
    c.p.rotary.attention_factor = pick({1.0f, 1.25f});
    c.p.rotary.table_positions = c.p.keys + c.p.rotary.first_position + pick({0, 9});
    return turned(c, pick(ways));
  });
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("attention: all stages three times, and a token beyond whole tiles") {
    for_each_attention([](const auto& step, DType type) {
      // Two buffers of 64 keys, or of 32; backward, also of 64 queries.
      for (const auto& [dim, length] : {std::pair{64, 321}, {128, 321}}) {
        const RotatedCase c = attention(type, {1, 1, 1, length, length, dim}, true, kLayouts[1]);
        CHECK(takes(step, c));
        check_step(step, c);
      }
      check_step(step, attention(type, {1, 1, 1, 128, 128, 64}, false));
      // Nine heads or ten, more than blocks take in a section, of more than one tile each. A tenth
      // beyond the nine lies within the canaries, which name what is written there; in the drawn
      // cases it may crash the test, so these come after this one.
      check_step(step, attention(type, {9, 1, 1, 130, 130, 64}));
      check_step(step, attention(type, {2, 10, 5, 130, 130, 64}));
    });
  }

  TEST_CASE("attention: each value of an option with each value of the others") {
    for_each_attention(
        [](const auto& step, DType type) {
          const std::vector<RotatedCase> cases = drawn_cases(step, type);
          for (std::size_t i = 0; i < cases.size(); ++i) {
            CHECK(takes(step, cases[i]));
            if (tile::takes_case(step, type, i)) check_step(step, cases[i]);
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("attention: where all queries stand does not matter, only how far from the keys") {
    tile::for_each_step(kAttentionLadder, [](const auto& step, DType type) {
      for (const Layout layout : kLayouts) {
        RotatedCase c = attention(type, {1, 2, 1, 70, 70, 64}, true, layout);
        c.p.rotary.table_positions = 1000;
        const AttentionRows in = normal(step, c);
        const std::vector<tile::Expected> here = expected_of(step, c, in);
        const tile::AttentionResults before = run(step, c, in);
        for (const std::int64_t first : {1, 100, 930}) {
          c.p.rotary.first_position = first;
          check_close(before, run(step, c, in), here, expected_of(step, c, in));
        }
      }
    });
  }

  TEST_CASE("attention: with frequencies of zero it is chapter 05's") {
    for_each_attention([](const auto& step, DType type) {
      for (const Layout layout : kLayouts) {
        RotatedCase c = attention(type, {1, 4, 2, 70, 70, 64}, true, layout);
        std::ranges::fill(c.frequencies, 0);
        const AttentionRows in = normal(step, c);
        const tile::AttentionResults got = run(step, c, in);
        if constexpr (kIsForward<decltype(step)>) {
          check_values(got, in_order(tile::attention_reference(c.p, {in.q, in.k, in.v})));
        } else {
          check_values(got, in_order(tile::attention_gradients(
                                c.p, {in.q, in.k, in.v, in.o, in.lse, in.dout})));
        }
      }
    });
  }
}

TEST_SUITE("chapter") {
  TEST_CASE("attention: rotated on load or in memory, the products have the same factors") {
    for (const DType type : {DType::fp16, DType::bf16}) {
      const auto steps = tile::selected_steps(kAttentionLadder);
      if (!tile::check_requirements(k16Bits, kNeeds, type).ok()) return tile::skip("needs bf16");
      for (const Layout layout : kLayouts) {
        for (const std::int64_t dim : {64, 128}) {
          const RotatedCase c = attention(type, {1, 2, 1, 150, 150, dim}, true, layout);
          const AttentionRows in = normal(steps[0], c);
          const tile::AttentionResults composed_ = run(steps[0], c, in);
          const tile::AttentionResults fused_ = run(steps[1], c, in);
          for (std::size_t i = 0; i < 2; ++i) CHECK(composed_[i].values == fused_[i].values);
        }
      }
    }
  }

  TEST_CASE("attention: the backward reference is the slope of the forward one") {
    for (const Layout layout : kLayouts) {
      for (const bool causal : kCausal) {
        RotatedCase c = attention(DType::fp64, {2, 4, 2, 5, 5, 8}, causal, layout);
        c.p.rotary.rotary_dim = 6;
        c.frequencies = paper_frequencies(6);
        c.p.rotary.first_position = 3;
        c.p.rotary.table_positions = 8;
        c.p.rotary.attention_factor = 1.5;
        AttentionRows in = tile::random_rows(c, 71);
        const tile::AttentionExpected forward = expected_outputs(c, in);
        in.o = forward.o.value, in.lse = forward.lse.value;
        tile::check_slopes(in, expected_gradients(c, in),
                           [&c](const AttentionRows& rows) { return expected_outputs(c, rows); });
      }
    }
  }

  TEST_CASE("attention: the reference rotates, then attends") {
    // Two tokens, one pair: written out.
    RotatedCase c = attention(DType::fp64, {1, 1, 1, 2, 2, 2});
    c.frequencies = {0.5};
    c.p.scale = 1;
    const AttentionRows in{.q = {1, 2, 3, -1}, .k = {0.5, 1, -2, 1}, .v = {1, 10, 100, 1000}};
    const double cosine = std::cos(0.5), sine = std::sin(0.5);
    const double q[] = {3 * cosine + sine, -cosine + 3 * sine};  // the second query
    const double k[] = {-2 * cosine - sine, cosine - 2 * sine};  // the second key
    const double first = q[0] * 0.5 + q[1] * 1, second = q[0] * k[0] + q[1] * k[1];
    const double weight = 1 / (1 + std::exp(second - first));
    const tile::AttentionExpected expected = expected_outputs(c, in);
    CHECK(expected.o.value[0] == doctest::Approx(1));
    CHECK(expected.o.value[2] == doctest::Approx(weight + 100 * (1 - weight)).epsilon(1e-12));
    CHECK(expected.lse.value[1] == doctest::Approx(std::log(std::exp(first) + std::exp(second))));
  }

  TEST_CASE("attention: what is refused, by name") {
    if (!tile::check_requirements(k16Bits, kNeeds, DType::bf16).ok()) {
      return tile::skip("needs bf16");
    }
    // Addresses that nothing reads, and both steps `fused`, whose options are the same.
    const auto status_of = [](const auto& ladder, const auto& change) -> Status {
      const RotatedCase c = attention(DType::bf16, {1, 2, 1, 4, 4, 64});
      using P = typename std::decay_t<decltype(ladder)>::Problem;
      auto p = c.call<P>();
      std::uintptr_t next = 4096;
      const auto place = [&next](std::int64_t bytes) {
        const std::uintptr_t here = next;
        next += static_cast<std::uintptr_t>(bytes);
        return reinterpret_cast<void*>(here);
      };
      constexpr std::int64_t kQBytes = 4 * 2 * 64 * 2, kKBytes = 4 * 64 * 2;
      p.q.data = place(kQBytes), p.k.data = place(kKBytes), p.v.data = place(kKBytes);
      p.o.data = place(kQBytes);
      if constexpr (requires { p.dq; }) {
        p.lse = static_cast<const float*>(place(4 * 2 * 4));
        p.dout.data = place(kQBytes), p.dq.data = place(kQBytes);
        p.dk.data = place(kKBytes), p.dv.data = place(kKBytes);
      }
      p.rotary.cos = static_cast<const float*>(place(4 * 32 * 4));
      p.rotary.sin = static_cast<const float*>(place(4 * 32 * 4));
      p.workspace_bytes = workspace_bytes_of(ladder.steps[0], p);
      p.workspace = place(p.workspace_bytes);
      change(p);
      TILE_TRY(validate(p));
      tile::Choice choice;
      return choose_step(ladder, 1, p, &choice);
    };
    const auto refuses_in = [&](const auto& ladder, const std::string& name, const auto& change) {
      const Status status = status_of(ladder, change);
      CAPTURE(name);
      CHECK(!status.ok());
      CHECK_MESSAGE(status.message.rfind(name + ": ", 0) == 0, status.message);
    };
    const auto refuses = [&](const std::string& name, const auto& change) {
      refuses_in(kAttentionLadder, name, change);
      refuses_in(kAttentionBackwardLadder, name, change);
    };
    const auto accepts = [&](const auto& change) {
      const Status forward = status_of(kAttentionLadder, change);
      CHECK_MESSAGE(forward.ok(), forward.message);
    };
    accepts([](auto&) {});
    CHECK(status_of(kAttentionBackwardLadder, [](auto&) {}).ok());
    accepts([](auto& p) { p.workspace = nullptr, p.workspace_bytes = 0; });
    refuses("type", [](auto& p) { p.type = DType::fp32; });
    refuses("queries", [](auto& p) { p.queries = p.keys = -1; });
    refuses("keys", [](auto& p) { p.keys = 5; });
    refuses("kv_heads", [](auto& p) { p.kv_heads = 3; });
    refuses("kv_heads", [](auto& p) { p.kv_heads = 0; });
    refuses("scale", [](auto& p) { p.scale = 0; });
    refuses("head_dim", [](auto& p) { p.head_dim = p.rotary.rotary_dim = 32; });
    refuses("rotary_dim", [](auto& p) { p.rotary.rotary_dim = 65; });
    refuses("table_positions", [](auto& p) { p.rotary.first_position = 1; });
    refuses("q", [](auto& p) { p.q.data = nullptr; });
    refuses("cos", [](auto& p) { p.rotary.cos = nullptr; });
    refuses("sin", [](auto& p) { p.rotary.sin = nullptr; });
    refuses("v", [](auto& p) { p.v.stride.head = 68; });
    refuses("workspace", [](auto& p) { p.workspace = nullptr; });
    refuses_in(kAttentionLadder, "o", [](auto& p) { p.o = p.q; });
    refuses_in(kAttentionBackwardLadder, "dq", [](auto& p) { p.dq = p.q; });
    // What other chapters' attention has.
    refuses("left", [](auto& p) { p.left = 3; });
    refuses("right", [](auto& p) { p.right = 1; });
    refuses("right", [](auto& p) { p.right = -1; });
    refuses("window", [](auto& p) { p.window = 3; });
    refuses("distance_part", [](auto& p) { p.distance_part = 0.5f; });
    const auto ints = [](const auto& p) { return reinterpret_cast<const int*>(p.rotary.cos); };
    refuses("query_lengths", [&](auto& p) { p.query_lengths = ints(p); });
    refuses("key_lengths", [&](auto& p) { p.key_lengths = ints(p); });
    refuses("q_far", [](auto& p) { p.q_far.data = p.q.data; });
    refuses("k_far", [](auto& p) { p.k_far.data = p.k.data; });
    refuses_in(kAttentionBackwardLadder, "dq_far", [](auto& p) { p.dq_far.data = p.dq.data; });
    refuses_in(kAttentionBackwardLadder, "dk_far", [](auto& p) { p.dk_far.data = p.dk.data; });
    // If `composed` runs instead of `fused`, its memory is needed.
    accepts([](auto& p) { p.rotary.rotary_dim = 32; });
    refuses("workspace_bytes", [](auto& p) {
      p.rotary.rotary_dim = 32;
      p.workspace = nullptr, p.workspace_bytes = 0;
    });
    refuses("workspace_bytes", [&](auto& p) {
      p.rotary.positions = ints(p);
      p.workspace = nullptr, p.workspace_bytes = 0;
    });
    // Every step reads and writes whole chunks of 16 bytes of every tensor: a card would end with a
    // misaligned address, where the CPU device goes on.
    const auto refuses_moved = [&](const auto& ladder, const char* name, auto view) {
      refuses_in(ladder, name, [&](auto& p) {
        // Alone in memory, so that it overlaps nothing once it is moved.
        (p.*view).data = reinterpret_cast<void*>((std::uintptr_t{1} << 20) + 8);
      });
    };
    using F = AttentionForward;
    refuses_moved(kAttentionLadder, "q", &F::q);
    refuses_moved(kAttentionLadder, "k", &F::k);
    refuses_moved(kAttentionLadder, "v", &F::v);
    refuses_moved(kAttentionLadder, "o", &F::o);
    using B = AttentionBackward;
    refuses_moved(kAttentionBackwardLadder, "q", &B::q);
    refuses_moved(kAttentionBackwardLadder, "k", &B::k);
    refuses_moved(kAttentionBackwardLadder, "v", &B::v);
    refuses_moved(kAttentionBackwardLadder, "o", &B::o);
    refuses_moved(kAttentionBackwardLadder, "dout", &B::dout);
    refuses_moved(kAttentionBackwardLadder, "dq", &B::dq);
    refuses_moved(kAttentionBackwardLadder, "dk", &B::dk);
    refuses_moved(kAttentionBackwardLadder, "dv", &B::dv);
  }
}

}  // namespace rope
