// Chapter 06's tests: attention with rotated q and k, forward and backward.
#include <cmath>
#include <type_traits>

#include "attention/reference.hpp"
#include "harness/selection.hpp"
#include "test_support.hpp"

namespace rope {
namespace {

template <class Step>
constexpr bool kIsForward = std::is_same_v<Step, tile::TestedStep<AttentionLadder>>;

// ---- Problems ----

/// A call without data, and what is not in it. A backward call has the same options.
struct Attention {
  AttentionForward p;
  Values frequencies = paper_frequencies(p.rotary.rotary_dim);
  std::vector<int> positions = {};
  std::int64_t offset = 0;  // of each tensor, in elements

  AttentionBackward backward() const {
    AttentionBackward b{static_cast<const tile::Attention&>(p)};
    b.q = b.dq = p.q, b.k = b.dk = p.k, b.v = b.dv = p.v, b.o = b.dout = p.o;
    return b;
  }
};

struct AttentionSizes {
  std::int64_t batch, length, heads, kv_heads, head_dim;
};
Attention attention(DType type, const AttentionSizes& n, bool causal = true,
                    Layout layout = Layout::half_split) {
  AttentionForward p{{.type = type,
                      .batch = n.batch,
                      .heads = n.heads,
                      .queries = n.length,
                      .keys = n.length,
                      .head_dim = n.head_dim,
                      .kv_heads = n.kv_heads}};
  p.right = causal ? 0 : tile::kUnlimited;
  p.scale = 1 / std::sqrt(static_cast<float>(n.head_dim));
  p.rotary.rotary_dim = n.head_dim;
  p.rotary.layout = layout;
  p.rotary.table_positions = n.length;
  return {p};
}

std::string describe(const Attention& c) {
  const AttentionForward& p = c.p;
  std::string text(tile::name(p.type));
  for (const auto& [name, n] : {std::pair{"batch", p.batch},
                                {"length", p.queries},
                                {"heads", p.heads},
                                {"kv_heads", p.kv_heads},
                                {"head_dim", p.head_dim},
                                {"rotary_dim", p.rotary.rotary_dim},
                                {"first_position", p.rotary.first_position},
                                {"q's row stride", p.q.stride.row}}) {
    text.append(", ").append(name).append(" ").append(std::to_string(n));
  }
  text += p.right == 0 ? ", causal" : ", full";
  return text + (p.rotary.layout == Layout::half_split ? ", half_split" : ", interleaved");
}

struct Inputs {
  Values q, k, v, dout;
};
Inputs normal(const Attention& c) {
  const AttentionForward& p = c.p;
  const std::int64_t rows = p.batch * p.queries * p.head_dim;
  return {tile::normal(rows * p.heads, p.type, 71), tile::normal(rows * p.kv_heads, p.type, 72),
          tile::normal(rows * p.kv_heads, p.type, 73), tile::normal(rows * p.heads, p.type, 74)};
}

// ---- Running a step ----

/// [batch][heads][length] as [batch][length][heads], or back.
Values turned_lse(const AttentionForward& p, const Values& lse, bool heads_first) {
  Values transposed(lse.size());
  std::size_t at = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      for (std::int64_t row = 0; row < p.queries; ++row, ++at) {
        const auto other = static_cast<std::size_t>((b * p.queries + row) * p.heads + head);
        (heads_first ? transposed[at] : transposed[other]) = lse[heads_first ? other : at];
      }
    }
  }
  return transposed;
}

void check_intact(std::initializer_list<Status> all) {
  for (const Status& intact : all) CHECK_MESSAGE(intact.ok(), intact.message);
}

/// The tables in device memory.
struct DeviceTables {
  DeviceBuffer cos, sin;
  std::optional<DeviceBuffer> positions;

  explicit DeviceTables(const Attention& c)
      : DeviceTables(
            c, tables_of(c.frequencies, c.p.rotary.table_positions, c.p.rotary.attention_factor)) {}
  void put_into(tile::Rotary* rotary) const {
    rotary->cos = static_cast<const float*>(cos.raw());
    rotary->sin = static_cast<const float*>(sin.raw());
    rotary->positions = positions ? static_cast<const int*>(positions->raw()) : nullptr;
  }

 private:
  DeviceTables(const Attention& c, const TestTables& tables)
      : cos(DeviceBuffer::input("cos", layout(tables.cos), tables.cos)),
        sin(DeviceBuffer::input("sin", layout(tables.sin), tables.sin)),
        positions(tile::lengths_buffer("positions", c.positions)) {}
  static tile::Layout layout(const Values& values) {
    return tile::vector_layout(DType::fp32, std::ssize(values));
  }
};

struct Outputs {
  Values o, lse;  // lse is [batch][length][heads]
};
template <class Step>
Outputs run(const Step& step, const Attention& c, const Inputs& in,
            Poison poison = Poison::unwritten_nan) {
  AttentionForward p = c.p;
  const Tensor::Shape of_q{p.batch, p.queries, p.heads, p.head_dim};
  const Tensor::Shape of_k{p.batch, p.keys, p.kv_heads, p.head_dim};
  const Tensor q = Tensor::input("q", p.type, of_q, p.q.stride, in.q, c.offset);
  const Tensor k = Tensor::input("k", p.type, of_k, p.k.stride, in.k, c.offset);
  const Tensor v = Tensor::input("v", p.type, of_k, p.v.stride, in.v, c.offset);
  const Tensor o = Tensor::output("o", p.type, of_q, p.o.stride, poison, c.offset);
  const DeviceBuffer lse = DeviceBuffer::output(
      "lse", tile::vector_layout(DType::fp32, p.batch * p.heads * p.queries), poison);
  p.workspace_bytes = workspace_bytes_of(step, p);
  const DeviceBuffer workspace = DeviceBuffer::output(
      "workspace", tile::vector_layout(DType::fp32, p.workspace_bytes / 4), poison);
  const DeviceTables tables(c);
  tables.put_into(&p.rotary);
  p.q.data = q.raw(), p.k.data = k.raw(), p.v.data = v.raw(), p.o.data = o.raw();
  p.lse = static_cast<float*>(lse.raw());
  p.workspace = workspace.raw();
  const Status done = tile::run_step(step, p);
  REQUIRE_MESSAGE(done.ok(), done.message);
  check_intact({q.check(), k.check(), v.check(), o.check(), lse.check(), workspace.check(),
                tables.cos.check(), tables.sin.check()});
  return {o.download(), turned_lse(p, lse.download(), false)};
}

tile::AttentionExpected expected_of(const Attention& c, const Inputs& in) {
  return reference(c.p, {in.q, in.k, in.v, c.frequencies, c.positions});
}

/// What the forward pass gives the backward pass, as the types hold it.
struct Saved {
  Values o, lse;
};
Saved saved(const Attention& c, const Inputs& in) {
  const tile::AttentionExpected forward = expected_of(c, in);
  return {tile::rounded(forward.o.value, c.p.type), tile::rounded(forward.lse.value, DType::fp32)};
}
tile::AttentionGradients expected_of(const Attention& c, const Inputs& in, const Saved& s) {
  return reference(c.backward(),
                   {in.q, in.k, in.v, s.o, s.lse, in.dout, c.frequencies, c.positions});
}

struct Gradients {
  Values dq, dk, dv;
};
template <class Step>
Gradients run(const Step& step, const Attention& c, const Inputs& in, const Saved& forward,
              Poison poison = Poison::unwritten_nan) {
  AttentionBackward p = c.backward();
  const Tensor::Shape of_q{p.batch, p.queries, p.heads, p.head_dim};
  const Tensor::Shape of_k{p.batch, p.keys, p.kv_heads, p.head_dim};
  const Tensor q = Tensor::input("q", p.type, of_q, p.q.stride, in.q, c.offset);
  const Tensor k = Tensor::input("k", p.type, of_k, p.k.stride, in.k, c.offset);
  const Tensor v = Tensor::input("v", p.type, of_k, p.v.stride, in.v, c.offset);
  const Tensor o = Tensor::input("o", p.type, of_q, p.o.stride, forward.o, c.offset);
  const Tensor dout = Tensor::input("dout", p.type, of_q, p.dout.stride, in.dout, c.offset);
  const DeviceBuffer lse =
      DeviceBuffer::input("lse", tile::vector_layout(DType::fp32, std::ssize(forward.lse)),
                          turned_lse(c.p, forward.lse, true));
  const Tensor dq = Tensor::output("dq", p.type, of_q, p.dq.stride, poison, c.offset);
  const Tensor dk = Tensor::output("dk", p.type, of_k, p.dk.stride, poison, c.offset);
  const Tensor dv = Tensor::output("dv", p.type, of_k, p.dv.stride, poison, c.offset);
  p.workspace_bytes = workspace_bytes_of(step, p);
  const DeviceBuffer workspace = DeviceBuffer::output(
      "workspace", tile::vector_layout(DType::fp32, p.workspace_bytes / 4), poison);
  const DeviceTables tables(c);
  tables.put_into(&p.rotary);
  p.q.data = q.raw(), p.k.data = k.raw(), p.v.data = v.raw(), p.o.data = o.raw();
  p.dout.data = dout.raw(), p.dq.data = dq.raw(), p.dk.data = dk.raw(), p.dv.data = dv.raw();
  p.lse = static_cast<const float*>(lse.raw());
  p.workspace = workspace.raw();
  const Status done = tile::run_step(step, p);
  REQUIRE_MESSAGE(done.ok(), done.message);
  check_intact({q.check(), k.check(), v.check(), o.check(), dout.check(), dq.check(), dk.check(),
                dv.check(), lse.check(), workspace.check(), tables.cos.check(),
                tables.sin.check()});
  return {dq.download(), dk.download(), dv.download()};
}

/// Runs a step of either ladder and checks what it wrote.
template <class Step>
void check_step(const Step& step, const Attention& c) {
  static std::size_t turn = 0;  // of the poisons
  const Poison poison = tile::kOutputPoisons[++turn % std::size(tile::kOutputPoisons)];
  CAPTURE(step.name);
  const std::string problem = describe(c);
  CAPTURE(problem);
  const Inputs in = normal(c);
  if constexpr (kIsForward<Step>) {
    const tile::AttentionExpected expected = expected_of(c, in);
    const Outputs got = run(step, c, in, poison);
    check_values("o", got.o, expected.o);
    check_values("lse", got.lse, expected.lse);
  } else {
    const Saved forward = saved(c, in);
    const tile::AttentionGradients expected = expected_of(c, in, forward);
    const Gradients got = run(step, c, in, forward, poison);
    check_values("dq", got.dq, expected.dq);
    check_values("dk", got.dk, expected.dk);
    check_values("dv", got.dv, expected.dv);
  }
}

/// Runs the test on both ladders.
template <class Check>
void for_each_attention(Check check, tile::OwnKernel own = tile::OwnKernel::must_run,
                        tile::Types types = tile::Types::in_turn) {
  tile::for_each_step(kAttentionLadder, check, own, types);
  tile::for_each_step(kAttentionBackwardLadder, check, own, types);
}

/// Two results of the same formula are no further apart than both their bounds.
void check_close(const char* name, const Values& a, const Values& b, const tile::Expected& of_a,
                 const tile::Expected& of_b) {
  CAPTURE(name);
  REQUIRE(a.size() == b.size());
  std::size_t apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart += !(std::abs(a[i] - b[i]) <= of_a.bound[i] + of_b.bound[i]);
  }
  CHECK(apart == 0);
}

constexpr bool kCausal[] = {true, false};

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("attention: random values, both layouts, causal and full") {
    for_each_attention(
        [](const auto& step, DType type) {
          tile::Selection selection(step, type);
          for (const Layout layout : kLayouts) {
            for (const bool causal : kCausal) {
              for (const std::int64_t dim : {64, 128}) {
                for (const std::int64_t length : {1, 31, 64, 65, 130, 200}) {
                  if (!selection.takes_next()) continue;
                  check_step(step, attention(type, {1, length, 2, 2, dim}, causal, layout));
                }
              }
            }
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("attention: heads that share keys, and batch entries") {
    for_each_attention([](const auto& step, DType type) {
      for (const Layout layout : kLayouts) {
        check_step(step, attention(type, {2, 70, 4, 2, 64}, true, layout));
        check_step(step, attention(type, {2, 67, 6, 1, 128}, false, layout));
      }
    });
  }

  TEST_CASE("attention: strides, offsets, and gradients side by side") {
    for_each_attention([](const auto& step, DType type) {
      for (const std::int64_t dim : {64, 128}) {
        Attention c = attention(type, {2, 77, 4, 2, dim});
        c.offset = 8;
        const tile::Strides gaps{77 * 9 * dim, dim, 9 * dim};  // after each token
        c.p.q.stride = c.p.k.stride = c.p.v.stride = gaps;
        c.p.o.stride = tile::heads_first(77, 4, dim, 16);
        check_step(step, c);
      }
    });
  }

  TEST_CASE("attention: a first position, an attention factor, a scale") {
    for_each_attention([](const auto& step, DType type) {
      for (const Layout layout : kLayouts) {
        Attention c = attention(type, {1, 66, 2, 1, 64}, true, layout);
        c.p.rotary.first_position = 5;
        c.p.rotary.table_positions = 71;  // not one more
        c.p.rotary.attention_factor = 1.25;
        c.p.scale = 0.2f;
        check_step(step, c);
      }
    });
  }

  TEST_CASE("attention: what is not rotated on load is rotated in memory") {
    for_each_attention([](const auto& step, DType type) {
      for (const Layout layout : kLayouts) {
        Attention some = attention(type, {1, 40, 2, 1, 64}, true, layout);
        some.p.rotary.rotary_dim = 32;
        some.frequencies = paper_frequencies(32);
        Attention ids = attention(type, {2, 35, 2, 1, 64}, true, layout);
        ids.p.rotary.table_positions = 90;
        for (int i = 0; i < 70; ++i) ids.positions.push_back(i * 37 % 90);
        if (step.name == "composed") {
          check_step(step, some);
          check_step(step, ids);
        } else {
          check_step(step, attention(type, {1, 35, 2, 1, 64}, true, layout));
        }
      }
    });
  }

  TEST_CASE("attention: where all queries stand does not matter, only how far from the keys") {
    tile::for_each_step(kAttentionLadder, [](const auto& step, DType type) {
      for (const Layout layout : kLayouts) {
        Attention c = attention(type, {1, 70, 2, 1, 64}, true, layout);
        c.p.rotary.table_positions = 1000;
        const Inputs in = normal(c);
        const tile::AttentionExpected here = expected_of(c, in);
        const Outputs before = run(step, c, in);
        for (const std::int64_t first : {1, 100, 930}) {
          c.p.rotary.first_position = first;
          const tile::AttentionExpected there = expected_of(c, in);
          const Outputs after = run(step, c, in);
          check_close("o", before.o, after.o, here.o, there.o);
          check_close("lse", before.lse, after.lse, here.lse, there.lse);
        }
      }
    });
  }

  TEST_CASE("attention: with frequencies of zero it is chapter 05's") {
    for_each_attention([](const auto& step, DType type) {
      for (const Layout layout : kLayouts) {
        Attention c = attention(type, {1, 70, 4, 2, 64}, true, layout);
        std::ranges::fill(c.frequencies, 0);
        const Inputs in = normal(c);
        const tile::Attention sizes{type, 1, 4, 70, 70, 64, 2, tile::kMaxLength, 0, c.p.scale};
        if constexpr (kIsForward<std::remove_cvref_t<decltype(step)>>) {
          const auto expected = tile::attention_reference(sizes, {in.q, in.k, in.v});
          const Outputs got = run(step, c, in);
          check_values("o", got.o, expected.o);
          check_values("lse", got.lse, expected.lse);
        } else {
          const Saved s = saved(c, in);
          const auto expected =
              tile::attention_gradients(sizes, {in.q, in.k, in.v, s.o, s.lse, in.dout});
          const Gradients got = run(step, c, in, s);
          check_values("dq", got.dq, expected.dq);
          check_values("dk", got.dk, expected.dk);
          check_values("dv", got.dv, expected.dv);
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
          const Attention c = attention(type, {1, 150, 2, 1, dim}, true, layout);
          const Inputs in = normal(c);
          const Outputs composed_ = run(steps[0], c, in), fused_ = run(steps[1], c, in);
          CHECK(composed_.o == fused_.o);
          CHECK(composed_.lse == fused_.lse);
        }
      }
    }
  }

  TEST_CASE("attention: the backward reference is the slope of the forward one") {
    for (const Layout layout : kLayouts) {
      for (const bool causal : kCausal) {
        Attention c = attention(DType::fp64, {2, 5, 4, 2, 8}, causal, layout);
        c.p.rotary.rotary_dim = 6;
        c.frequencies = paper_frequencies(6);
        c.p.rotary.first_position = 3;
        c.p.rotary.table_positions = 8;
        c.p.rotary.attention_factor = 1.5;
        Inputs in = normal(c);
        const tile::AttentionExpected forward = expected_of(c, in);
        const tile::AttentionGradients gradients =
            expected_of(c, in, {forward.o.value, forward.lse.value});
        const auto loss = [&] {
          const Values o = expected_of(c, in).o.value;
          double sum = 0;
          for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * in.dout[i];
          return sum;
        };
        constexpr double kStep = 6e-6;
        for (const auto& [values, slope] : {std::pair{&in.q, &gradients.dq.value},
                                            {&in.k, &gradients.dk.value},
                                            {&in.v, &gradients.dv.value}}) {
          REQUIRE(values->size() == slope->size());
          for (std::size_t i = 0; i < values->size(); ++i) {
            const double before = (*values)[i];
            (*values)[i] = before + kStep;
            const double above = loss();
            (*values)[i] = before - kStep;
            const double below = loss();
            (*values)[i] = before;
            CHECK(std::abs((above - below) / (2 * kStep) - (*slope)[i]) < 1e-8);
          }
        }
      }
    }
  }

  TEST_CASE("attention: the reference rotates, then attends") {
    // Two tokens, one pair: written out.
    Attention c = attention(DType::fp64, {1, 2, 1, 1, 2});
    c.frequencies = {0.5};
    c.p.scale = 1;
    const Inputs in{{1, 2, 3, -1}, {0.5, 1, -2, 1}, {1, 10, 100, 1000}, {}};
    const double cosine = std::cos(0.5), sine = std::sin(0.5);
    const double q[] = {3 * cosine + sine, -cosine + 3 * sine};  // the second query
    const double k[] = {-2 * cosine - sine, cosine - 2 * sine};  // the second key
    const double first = q[0] * 0.5 + q[1] * 1, second = q[0] * k[0] + q[1] * k[1];
    const double weight = 1 / (1 + std::exp(second - first));
    const tile::AttentionExpected expected = expected_of(c, in);
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
      const Attention c = attention(DType::bf16, {1, 4, 2, 1, 64});
      using P = typename std::decay_t<decltype(ladder)>::Problem;
      P p{static_cast<const tile::Attention&>(c.p)};
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
    refuses("rotary_dim", [](auto& p) {
      p.rotary.rotary_dim = 32;
      p.workspace = nullptr, p.workspace_bytes = 0;
    });
    refuses("positions", [&](auto& p) {
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
