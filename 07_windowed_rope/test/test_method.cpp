// Chapter 07's tests: ReRoPE, Leaky ReRoPE and Self-Extend of plain q and k, forward and backward.
#include <algorithm>
#include <cmath>
#include <complex>

#include "attention/reference.hpp"
#include "method/method.hpp"
#include "method/workspace.hpp"
#include "rotary/frequencies.hpp"
#include "test_support.hpp"

namespace windowed_rope {
namespace {

template <class Step>
constexpr bool kIsMethodForward =
    std::is_same_v<std::remove_cvref_t<Step>, tile::TestedStep<MethodLadder>>;

// ---- Problems ----

struct Rule {
  Method method;
  double factor = 1;
};
constexpr Rule kRules[] = {{Method::rerope},
                           {Method::leaky_rerope, 16},
                           {Method::leaky_rerope, 2.5},
                           {Method::self_extend, 8},
                           {Method::self_extend, 3}};
constexpr rope::Layout kLayouts[] = {rope::Layout::half_split, rope::Layout::interleaved};

/// A problem with lengths and offsets, the elements from a 256-byte boundary to each tensor.
/// A backward problem has the same options; its gradients have strides and offsets of their own.
struct MethodCase {
  MethodProblem p;
  Values frequencies = rope::frequencies({.rotary_dim = p.rotary_dim});
  std::vector<int> query_lengths = {}, key_lengths = {};
  struct Offsets {
    std::int64_t q = 0, k = 0, v = 0, o = 0, dout = 0, dq = 0, dk = 0, dv = 0, tables = 0;
  } offset = {};
  std::optional<Strides> dout = {}, dq = {}, dk = {}, dv = {};  // or no gaps
  bool wants_lse = true;

  MethodRule rule() const { return {p.method, p.window, p.factor}; }
  MethodBackwardProblem backward() const {
    MethodBackwardProblem b{.type = p.type,
                            .batch = p.batch,
                            .heads = p.heads,
                            .queries = p.queries,
                            .keys = p.keys,
                            .head_dim = p.head_dim,
                            .kv_heads = p.kv_heads};
    b.window = p.window, b.scale = p.scale, b.method = p.method, b.factor = p.factor;
    b.rotary_dim = p.rotary_dim, b.layout = p.layout, b.table_positions = p.table_positions;
    b.attention_factor = p.attention_factor;
    b.q = p.q, b.k = p.k, b.v = p.v, b.o = p.o;
    if (dout) b.dout = *dout;
    if (dq) b.dq = *dq;
    if (dk) b.dk = *dk;
    if (dv) b.dv = *dv;
    return b;
  }
};

MethodCase method_case(DType type, const Sizes& n, const Rule& rule, std::int64_t window,
                       rope::Layout layout = rope::Layout::half_split) {
  MethodProblem p{.type = type,
                  .batch = n.batch,
                  .heads = n.heads,
                  .queries = n.queries,
                  .keys = n.keys,
                  .head_dim = n.head_dim,
                  .kv_heads = n.kv_heads};
  p.window = window, p.method = rule.method, p.factor = rule.factor, p.layout = layout;
  p.scale = 1 / std::sqrt(static_cast<float>(n.head_dim));
  p.table_positions = n.keys;  // not one more
  return {p};
}
MethodCase rotated_in_part(MethodCase c, std::int64_t rotary_dim) {
  c.p.rotary_dim = rotary_dim;
  c.frequencies = rope::frequencies({.rotary_dim = rotary_dim});
  return c;
}

std::string describe(const MethodCase& c) {
  const MethodProblem& p = c.p;
  std::string text(tile::name(p.type));
  const auto add = [&text](const char* name, std::int64_t n) {
    text.append(", ").append(name).append(" ").append(std::to_string(n));
  };
  text.append(", ").append(name(p.method)).append(" ").append(std::to_string(p.factor));
  add("window", p.window), add("batch", p.batch), add("heads", p.heads);
  add("kv_heads", p.kv_heads), add("queries", p.queries), add("keys", p.keys);
  add("head_dim", p.head_dim), add("rotary_dim", p.rotary_dim);
  for (const int n : c.query_lengths) add("query length", n);
  for (const int n : c.key_lengths) add("key length", n);
  add("q's row stride", p.q.row), add("k's", p.k.row), add("v's", p.v.row), add("o's", p.o.row);
  add("offsets", c.offset.q), add("", c.offset.k), add("", c.offset.v), add("", c.offset.o);
  return text + (p.layout == rope::Layout::half_split ? ", half_split" : ", interleaved");
}

/// Whether the step's own kernel runs it.
template <class Step>
bool takes(const Step& step, const MethodCase& c) {
  const MethodCase::Offsets& offset = c.offset;
  const auto at = [&c](std::int64_t elements) {
    const auto size = static_cast<std::int64_t>(tile::size_bytes(c.p.type));
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(256 + elements * size));
  };
  const auto with_tensors = [&](auto buffers, std::int64_t bytes) {
    buffers.q = at(offset.q), buffers.k = at(offset.k), buffers.v = at(offset.v);
    buffers.o = at(offset.o);
    buffers.cos = buffers.sin =
        reinterpret_cast<const float*>(static_cast<std::uintptr_t>(256 + offset.tables * 4));
    buffers.workspace_bytes = bytes;
    return buffers;
  };
  if constexpr (kIsMethodForward<Step>) {
    return tile::is_taken(step, c.p,
                          with_tensors(MethodBuffers{}, workspace_bytes(c.p, step.name)));
  } else {
    const MethodBackwardProblem b = c.backward();
    auto buffers = with_tensors(MethodBackwardBuffers{}, workspace_bytes(b, step.name));
    buffers.dout = at(offset.dout);
    buffers.dq = at(offset.dq), buffers.dk = at(offset.dk), buffers.dv = at(offset.dv);
    return tile::is_taken(step, b, buffers);
  }
}

// ---- Running a step ----

struct MethodRows {
  Values q, k, v;
  Values o, lse, dout;  // of the backward pass only; lse is [batch][queries][heads]
};

tile::AttentionExpected expected_outputs(const MethodCase& c, const MethodRows& in) {
  return reference(c.p, {in.q, in.k, in.v, c.frequencies, c.query_lengths, c.key_lengths});
}
tile::AttentionGradients expected_gradients(const MethodCase& c, const MethodRows& in) {
  return reference(c.backward(), {in.q, in.k, in.v, in.o, in.lse, in.dout, c.frequencies,
                                  c.query_lengths, c.key_lengths});
}

/// Random rows; o and lse are what the forward pass gives the backward pass, as the types hold it.
MethodRows normal(const MethodCase& c) {
  const MethodProblem& p = c.p;
  const std::int64_t of_q = p.batch * p.queries * p.heads * p.head_dim;
  const std::int64_t of_k = p.batch * p.keys * p.kv_heads * p.head_dim;
  MethodRows in{tile::normal(of_q, p.type, 81),
                tile::normal(of_k, p.type, 82),
                tile::normal(of_k, p.type, 83),
                {},
                {},
                tile::normal(of_q, p.type, 84)};
  const tile::AttentionExpected forward = expected_outputs(c, in);
  in.o = tile::rounded(forward.o.value, p.type);
  in.lse = tile::rounded(forward.lse.value, DType::fp32);
  return in;
}

/// In the order of the Results.
template <class Step>
std::vector<tile::Expected> expected_of(const Step&, const MethodCase& c, const MethodRows& in) {
  if constexpr (kIsMethodForward<Step>) {
    tile::AttentionExpected expected = expected_outputs(c, in);
    return {std::move(expected.o), std::move(expected.lse)};
  } else {
    tile::AttentionGradients expected = expected_gradients(c, in);
    return {std::move(expected.dq), std::move(expected.dk), std::move(expected.dv)};
  }
}

/// Runs a step of either ladder with outputs of this poison. Checks all buffers.
template <class Step>
Results run(const Step& step, const MethodCase& c, const MethodRows& in, Poison poison) {
  const MethodProblem& p = c.p;
  const MethodBackwardProblem b = c.backward();
  const MethodCase::Offsets& at = c.offset;
  const Tensor::Shape of_q{p.batch, p.queries, p.heads, p.head_dim};
  const Tensor::Shape of_k{p.batch, p.keys, p.kv_heads, p.head_dim};
  const Tensor q = Tensor::input("q", p.type, of_q, p.q, in.q, at.q);
  const Tensor k = Tensor::input("k", p.type, of_k, p.k, in.k, at.k);
  const Tensor v = Tensor::input("v", p.type, of_k, p.v, in.v, at.v);
  const MethodTables tables =
      method_tables(c.rule(), c.frequencies, p.table_positions, p.attention_factor);
  const auto table = [&at](const char* name, const std::vector<float>& values) {
    return DeviceBuffer::input(name,
                               tile::vector_layout(DType::fp32, std::ssize(values), at.tables),
                               Values(values.begin(), values.end()));
  };
  const DeviceBuffer cos = table("cos", tables.cos), sin = table("sin", tables.sin);
  const auto query_lengths = lengths_buffer("query_lengths", c.query_lengths);
  const auto key_lengths = lengths_buffer("key_lengths", c.key_lengths);
  const auto ints = [](const std::optional<DeviceBuffer>& buffer) {
    return buffer ? static_cast<const int*>(buffer->raw()) : nullptr;
  };
  const auto floats = [](const DeviceBuffer& buffer) {
    return static_cast<const float*>(buffer.raw());
  };
  const tile::Layout of_lse = tile::vector_layout(DType::fp32, p.batch * p.heads * p.queries);
  // If the step falls back, the first one may run.
  const std::string_view runs = takes(step, c) ? step.name : step.ladder->steps[0].name;
  const std::int64_t bytes =
      kIsMethodForward<Step> ? workspace_bytes(p, runs) : workspace_bytes(b, runs);
  const DeviceBuffer workspace =
      DeviceBuffer::output("workspace", tile::vector_layout(DType::fp32, bytes / 4), poison);
  const auto check_inputs = [&] {
    check_intact({q.check(), k.check(), v.check(), cos.check(), sin.check(), workspace.check()});
  };
  if constexpr (kIsMethodForward<Step>) {
    const Tensor o = Tensor::output("o", p.type, of_q, p.o, poison, at.o);
    const DeviceBuffer lse = DeviceBuffer::output("lse", of_lse, poison);
    const Status done = tile::run_step(
        step, p,
        {q.raw(), k.raw(), v.raw(), o.raw(), c.wants_lse ? static_cast<float*>(lse.raw()) : nullptr,
         floats(cos), floats(sin), ints(query_lengths), ints(key_lengths), workspace.raw(), bytes});
    REQUIRE_MESSAGE(done.ok(), done.message);
    check_inputs();
    check_intact({o.check(), lse.check()});
    if (!c.wants_lse) return {{"o", o.download()}};
    return {{"o", o.download()}, {"lse", turned_lse(attention_of(p), lse.download(), false)}};
  } else {
    const Tensor o = Tensor::input("o", p.type, of_q, p.o, in.o, at.o);
    const Tensor dout = Tensor::input("dout", p.type, of_q, b.dout, in.dout, at.dout);
    const DeviceBuffer lse =
        DeviceBuffer::input("lse", of_lse, turned_lse(attention_of(p), in.lse, true));
    const Tensor dq = Tensor::output("dq", p.type, of_q, b.dq, poison, at.dq);
    const Tensor dk = Tensor::output("dk", p.type, of_k, b.dk, poison, at.dk);
    const Tensor dv = Tensor::output("dv", p.type, of_k, b.dv, poison, at.dv);
    const Status done = tile::run_step(
        step, b,
        {q.raw(), k.raw(), v.raw(), o.raw(), floats(lse), dout.raw(), dq.raw(), dk.raw(), dv.raw(),
         floats(cos), floats(sin), ints(query_lengths), ints(key_lengths), workspace.raw(), bytes});
    REQUIRE_MESSAGE(done.ok(), done.message);
    check_inputs();
    check_intact({o.check(), lse.check(), dout.check(), dq.check(), dk.check(), dv.check()});
    return {{"dq", dq.download()}, {"dk", dk.download()}, {"dv", dv.download()}};
  }
}

/// Runs a step of either ladder, and checks what it wrote.
template <class Step>
void check_step(const Step& step, const MethodCase& c, const MethodRows& in,
                const std::vector<tile::Expected>& expected) {
  CAPTURE(step.name);
  const std::string problem = describe(c);
  CAPTURE(problem);
  const Results got = run(step, c, in, poison_in_turn());
  for (std::size_t i = 0; i < got.size(); ++i) check_values(got[i], expected[i]);
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
  const MethodProblem& p = c.p;
  const std::string problem = describe(c);
  CAPTURE(problem);
  tile::Attention plain_call{.type = p.type,
                             .batch = p.batch,
                             .heads = p.heads,
                             .queries = p.queries,
                             .keys = p.queries,
                             .head_dim = p.head_dim,
                             .kv_heads = p.kv_heads};
  plain_call.right = 0, plain_call.scale = p.scale;
  plain_call.rotary = {.rotary_dim = p.rotary_dim,
                       .table_positions = p.queries,
                       .layout = p.layout,
                       .attention_factor = p.attention_factor};
  const MethodRows in = normal(c);
  const std::vector<tile::Expected> of_method = expected_of(step, c, in);
  if constexpr (kIsMethodForward<Step>) {
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

/// How far apart a query at i and a far key at j are for the rotation, as method.hpp says it.
double far_distance(const MethodRule& rule, std::int64_t i, std::int64_t j) {
  const std::int64_t w = rule.window;
  switch (rule.method) {
    case Method::rerope: return static_cast<double>(w);
    case Method::leaky_rerope:
      return static_cast<double>(w) + static_cast<double>(i - j - w) / rule.factor;
    case Method::self_extend: {
      const auto g = static_cast<std::int64_t>(rule.factor);
      return static_cast<double>(i / g - j / g + w - w / g);
    }
  }
  return kNaN;
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("methods: each of them, with heads that share keys") {
    for_each_method_step(
        [](const auto& step, DType type) {
          std::size_t turn = 0;
          for (const Rule& rule : kRules) {
            const rope::Layout layout = kLayouts[turn++ % 2];
            const MethodCase c = method_case(type, {2, 4, 2, 23, 51, 64}, rule, 20, layout);
            if (takes(step, c)) check_step(step, c);
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("methods: windows and lengths on both sides of tiles") {
    for_each_method_step([](const auto& step, DType type) {
      MethodCases cases(step, type, 6);
      std::size_t turn = 0;
      for (const std::int64_t window : {0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129}) {
        for (const auto& [queries, keys] :
             {std::pair{129, 191}, {63, 130}, {161, 143}, {65, 65}, {1, 190}}) {
          const Rule& rule = kRules[(turn / 5 + turn) % std::size(kRules)];
          const std::int64_t dim = turn % 3 == 2 ? 32 : 64;
          const rope::Layout layout = kLayouts[turn++ / 2 % 2];
          cases.check(step, method_case(type, {1, 2, 1, queries, keys, dim}, rule, window, layout));
        }
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

  TEST_CASE("methods: an attention factor, a scale, tables that are longer than the keys") {
    for_each_method_step([](const auto& step, DType type) {
      for (const rope::Layout layout : kLayouts) {
        MethodCase c =
            method_case(type, {1, 2, 1, 40, 66, 64}, {Method::leaky_rerope, 2.5}, 17, layout);
        c.p.attention_factor = 1.25;
        c.p.scale = 0.2f;
        c.p.table_positions = 91;
        if (takes(step, c)) check_step(step, c);
      }
    });
  }

  TEST_CASE("methods: lengths of each batch entry, and no lse") {
    for_each_method_step([](const auto& step, DType type) {
      MethodCases cases(step, type, 3);
      for (const Rule& rule : {kRules[3], kRules[0], kRules[2]}) {
        MethodCase c = method_case(type, {5, 2, 1, 70, 90, 64}, rule, 25);
        c.query_lengths = {70, 33, 65, 1, 0};
        c.key_lengths = {90, 64, 40, 1, 7};  // the third has fewer keys than queries
        cases.check(step, c);
        c.wants_lse = false;
        c.key_lengths = {0, 90, 31, 0, 65};
        cases.check(step, c);
        c.key_lengths.clear();
        cases.check(step, c);
        c.key_lengths = {1, 90, 50, 64, 65};
        c.query_lengths.clear();
        cases.check(step, c);
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
        c.p.q = {n.queries * row, n.head_dim, row};
        c.p.k = c.p.v = {n.keys * row, n.head_dim, row};
        c.p.o = heads_first(n.queries, n.heads, n.head_dim, 16);
        c.dout = heads_first(n.queries, n.heads, n.head_dim);
        c.dq = heads_first(n.queries, n.heads, n.head_dim, 8);
        c.dk = c.p.k;
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
      check_moved([](MethodCase& c, std::int64_t) { c.p.table_positions += 2; });
      using Offsets = MethodCase::Offsets;
      std::vector<std::int64_t Offsets::*> offsets{&Offsets::q, &Offsets::k, &Offsets::v,
                                                   &Offsets::o, &Offsets::tables};
      if (!kIsMethodForward<decltype(step)>) {
        offsets.insert(offsets.end(), {&Offsets::dout, &Offsets::dq, &Offsets::dk, &Offsets::dv});
      }
      for (std::int64_t Offsets::*each : offsets) {
        check_moved([each](MethodCase& c, std::int64_t by) { c.offset.*each = by; });
      }
      for (Strides MethodProblem::*each :
           {&MethodProblem::q, &MethodProblem::k, &MethodProblem::v, &MethodProblem::o}) {
        check_moved([each](MethodCase& c, std::int64_t by) { (c.p.*each).row += by; });
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
      for (const Method method : {Method::leaky_rerope, Method::self_extend}) {
        check_is_plain(step, method_case(type, {1, 2, 1, 70, 70, 64}, {method, 1}, 0));
        MethodCase c =
            method_case(type, {1, 2, 1, 70, 70, 64}, {method, 1}, 33, rope::Layout::interleaved);
        c.p.attention_factor = 1.25;
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
        if constexpr (kIsMethodForward<decltype(step)>) {
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
        const MethodRule of{rule.method, window, rule.factor};
        bool good = true;
        for (std::int64_t i = window; i < window + 300; i += 1 + i % 3) {
          for (std::int64_t j = 0; j <= i - window; j += 1 + j % 2) {
            const double distance = far_query_place(of, i) - far_key_place(of, j);
            good = good && std::abs(distance - far_distance(of, i, j)) < 1e-11;
          }
        }
        CAPTURE(name(rule.method));
        CAPTURE(rule.factor);
        CAPTURE(window);
        CHECK(good);
      }
    }
    // Written out: i = 100, j = 29, W = 50.
    const auto distance = [](const Rule& rule) {
      const MethodRule of{rule.method, 50, rule.factor};
      return far_query_place(of, 100) - far_key_place(of, 29);
    };
    CHECK(distance({Method::rerope}) == 50);
    CHECK(distance({Method::leaky_rerope, 2}) == 50 + 21 / 2.0);
    CHECK(distance({Method::self_extend, 8}) == 12 - 3 + 50 - 6);
  }

  TEST_CASE("methods: at the window's border near and far meet") {
    for (const Rule& rule : kRules) {
      for (const std::int64_t window : {0, 1, 31, 100, 240}) {
        const MethodRule of{rule.method, window, rule.factor};
        for (std::int64_t j = 0; j < 500; ++j) {
          const double distance = far_query_place(of, j + window) - far_key_place(of, j);
          const bool is_grouped = rule.method == Method::self_extend;
          // Groups begin at multiples of G: between them the step is less than one.
          const double most = is_grouped ? 1 : 1e-12;
          const double apart = std::abs(distance - static_cast<double>(window));
          if (!(apart <= most)) FAIL_CHECK(name(rule.method) << ", window " << window);
        }
      }
    }
  }

  TEST_CASE("methods: the tables") {
    const Values frequencies = rope::frequencies({.rotary_dim = 12});
    constexpr std::int64_t kPositions = 41;
    constexpr double kFactor = 1.5;
    for (const Rule& rule : kRules) {
      const MethodRule of{rule.method, 10, rule.factor};
      const MethodTables tables = method_tables(of, frequencies, kPositions, kFactor);
      REQUIRE(std::ssize(tables.cos) == 3 * kPositions * 6);
      REQUIRE(tables.sin.size() == tables.cos.size());
      std::size_t at = 0;
      for (int block = 0; block < 3; ++block) {
        for (std::int64_t position = 0; position < kPositions; ++position) {
          const double place = block == 0   ? static_cast<double>(position)
                               : block == 1 ? far_query_place(of, position)
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
        c.p.attention_factor = 1.25;
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
                    i - j < 4 ? static_cast<double>(i - j) : far_distance(c.rule(), i, j);
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
          const tile::TestedStep<MethodLadder> step{kMethod[number], &kMethodLadder, number};
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
        c.p.attention_factor = 1.5;
        MethodRows in = normal(c);
        const tile::AttentionExpected forward = expected_outputs(c, in);
        in.o = forward.o.value, in.lse = forward.lse.value;
        const tile::AttentionGradients gradients = expected_gradients(c, in);
        const auto loss = [&] {
          const Values o = expected_outputs(c, in).o.value;
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
        reference(c.p, {some_q, in.k, in.v, c.frequencies, {}, c.key_lengths}, rows);
    CHECK(some.o.value == some_of(all.o, rows));
    CHECK(some.lse.value == some_of(all.lse, rows));
    const tile::AttentionGradients gradients = expected_gradients(c, in);
    const tile::AttentionGradients few = reference(
        c.backward(), {in.q, in.k, in.v, in.o, in.lse, in.dout, c.frequencies, {}, c.key_lengths},
        rows, key_rows);
    CHECK(few.dq.value == some_of(gradients.dq, rows));
    CHECK(few.dk.value == some_of(gradients.dk, key_rows));
    CHECK(few.dv.value == some_of(gradients.dv, key_rows));
  }

  TEST_CASE("methods: the workspace holds rotated rows, each twice, and backward gradients") {
    MethodCase c = method_case(DType::bf16, {1, 32, 8, 8192, 8192, 64}, kRules[0], 2048);
    const std::int64_t of_q = 8192 * 32 * 64 * 2, positions = 8192 * 4;
    CHECK(workspace_bytes(c.p, "composed") == 2 * (of_q + of_q / 4) + positions);
    CHECK(workspace_bytes(c.backward(), "composed") > 4 * (of_q + of_q / 4) + positions);
    c.p.batch = c.p.heads = c.p.queries = c.p.keys = kMaxLength;
    CHECK(workspace_bytes(c.p, "composed") == INT64_MAX);
    CHECK(workspace_bytes(c.backward(), "composed") == INT64_MAX);
    c.p.batch = 0;
    CHECK(workspace_bytes(c.p, "composed") == 0);
  }

  TEST_CASE("methods: each step asks for its workspace, to the byte") {
    const auto check = [](const auto& ladder, const auto& p) {
      for (const auto& step : ladder.steps) {
        if (!tile::check_requirements(step.types, step.needs, p.type).ok()) continue;
        typename std::remove_cvref_t<decltype(ladder)>::Buffers b;
        b.workspace_bytes = workspace_bytes(p, step.name);
        const bool is_taken = tile::check_step(step, p, b).ok();
        CAPTURE(step.name);
        if (step.otherwise.empty()) CHECK(is_taken);
        if (!is_taken) continue;
        --b.workspace_bytes;
        const Status less = tile::check_step(step, p, b);
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
      typename std::remove_cvref_t<decltype(ladder)>::Buffers b;
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
      b.q = place(of_q), b.k = place(of_k), b.v = place(of_k), b.o = place(of_q);
      b.lse = floats(4 * 5);
      b.cos = floats(3 * 7 * 32), b.sin = floats(3 * 7 * 32);
      if constexpr (requires { b.dq; }) {
        b.dout = place(of_q), b.dq = place(of_q), b.dk = place(of_k), b.dv = place(of_k);
      }
      b.workspace_bytes = workspace_bytes(p, "composed");
      next = (next + 15) / 16 * 16;
      b.workspace = place(b.workspace_bytes);
      change(p, b);
      if (Status s = ladder.validate(p, b); !s.ok() || ladder.is_empty(p)) return s;
      return tile::check_step(ladder.steps[0], p, b);
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
    accepts("as it is", [](auto&, auto&) {});
    refuses("type", [](auto& p, auto&) { p.type = DType::tf32; });
    refuses("queries", [](auto& p, auto&) { p.queries = -1; });
    refuses("kv_heads", [](auto& p, auto&) { p.kv_heads = 3; });
    refuses("scale", [](auto& p, auto&) { p.scale = 0; });
    refuses("causal", [](auto& p, auto&) { p.causal = false; });

    accepts("a window of none", [](auto& p, auto&) { p.window = 0; });
    refuses("window", [](auto& p, auto&) { p.window = -1; });
    accepts("a window of all", [](auto& p, auto&) { p.window = kUnlimited; });
    refuses("window", [](auto& p, auto&) { p.window = kUnlimited + 1; });
    accepts("a factor that is not read", [](auto& p, auto&) { p.factor = 0; });
    for (const Method method : {Method::leaky_rerope, Method::self_extend}) {
      const auto with = [method](double factor) {
        return [=](auto& p, auto&) { p.method = method, p.factor = factor; };
      };
      accepts("factor 1", with(1));
      refuses("factor", with(0.99));
      refuses("factor", with(kNaN));
      refuses("factor", with(kInfinity));
    }
    const auto two_and_a_half = [](Method method) {
      return [=](auto& p, auto&) { p.method = method, p.factor = 2.5; };
    };
    accepts("a fraction of a leak", two_and_a_half(Method::leaky_rerope));
    refuses("factor", two_and_a_half(Method::self_extend));
    refuses("method", [](auto& p, auto&) { p.method = static_cast<Method>(3); });

    accepts("half of a row", [](auto& p, auto&) { p.rotary_dim = 32; });
    refuses("rotary_dim", [](auto& p, auto&) { p.rotary_dim = 63; });
    refuses("rotary_dim", [](auto& p, auto&) { p.rotary_dim = 66; });
    refuses("attention_factor", [](auto& p, auto&) { p.attention_factor = 0; });
    refuses("layout", [](auto& p, auto&) { p.layout = static_cast<rope::Layout>(2); });
    refuses("table_positions", [](auto& p, auto&) { p.table_positions = 6; });
    refuses("table_positions", [](auto& p, auto&) { p.table_positions = -1; });
    accepts("fewer keys", [](auto& p, auto&) { p.keys = 6; });
    refuses("cos", [](auto&, auto& b) { b.cos = nullptr; });
    refuses("sin", [](auto&, auto& b) { b.sin = nullptr; });

    for (const auto& [name, pointer] : {std::pair{"q", 0}, {"k", 1}, {"v", 2}}) {
      refuses(name, [pointer = pointer](auto&, auto& b) {
        (pointer == 0 ? b.q : pointer == 1 ? b.k : b.v) = nullptr;
      });
    }
    refuses("o", [](auto&, auto& b) { b.o = nullptr; });
    refuses("v", [](auto& p, auto&) { p.v.row = -64; });
    accepts("one head of k for all", [](auto& p, auto&) { p.k.head = 0; });
    accepts("lengths", [](auto&, auto& b) {
      b.query_lengths = b.key_lengths = reinterpret_cast<const int*>(b.q);
    });
    refuses("workspace", [](auto&, auto& b) { b.workspace = nullptr; });
    refuses("workspace_bytes", [](auto&, auto& b) { --b.workspace_bytes; });
    accepts("nothing to do", [](auto& p, auto& b) {
      p.batch = 0;
      b = {};
    });

    // What one of the two asks for.
    const MethodCase c = method_case(DType::bf16, {1, 4, 2, 5, 7, 64}, kRules[0], 3);
    const auto forward = [&](const auto& change) { return status_of(kMethodLadder, c.p, change); };
    const auto backward = [&](const auto& change) {
      return status_of(kMethodBackwardLadder, c.backward(), change);
    };
    const auto no_lse = [](auto&, auto& b) { b.lse = nullptr; };
    CHECK(forward(no_lse).ok());
    CHECK(backward(no_lse).message.rfind("lse: ", 0) == 0);
    const auto o_of_q = [](auto&, MethodBuffers& b) { b.o = const_cast<void*>(b.q); };
    CHECK(forward(o_of_q).message.rfind("o: overlaps q", 0) == 0);
    const auto o_of_sin = [](auto&, MethodBuffers& b) { b.o = const_cast<float*>(b.sin); };
    CHECK(forward(o_of_sin).message.rfind("o: overlaps sin", 0) == 0);
    const auto dk_of_k = [](auto&, auto& b) { b.dk = const_cast<void*>(b.k); };
    CHECK(backward(dk_of_k).message.rfind("dk: overlaps k", 0) == 0);
    const auto no_dv = [](auto&, auto& b) { b.dv = nullptr; };
    CHECK(backward(no_dv).message.rfind("dv: ", 0) == 0);

    // With frequencies the tables may be made later.
    MethodBuffers buffers;
    float inputs[7 * 4 * 64], o[5 * 4 * 64];  // the longest of q, k and v is in the first
    buffers.q = buffers.k = buffers.v = inputs;
    buffers.o = o;
    CHECK(validate_tensors(c.p, buffers).message.rfind("cos: ", 0) == 0);
    CHECK(validate_tensors(c.p, buffers, c.frequencies.data()).ok());
  }
}

}  // namespace windowed_rope
