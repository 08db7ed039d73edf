// Shared by the tests of chapter 07: tensors with strides, problems, and how a step is run and
// checked.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "harness/buffer.hpp"
#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "harness/selection.hpp"
#include "harness/tensor.hpp"
#include "harness/test_main.hpp"
#include "tile/host/device.hpp"
#include "windowed/windowed_rope.hpp"

namespace windowed_rope {

using tile::DeviceBuffer;
using tile::DType;
using tile::heads_first;
using tile::kMaxLength;
using tile::lengths_buffer;
using tile::Poison;
using tile::Status;
using tile::Tensor;
using Values = std::vector<double>;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

inline double as_type(double value, DType type) {
  return tile::rounded(std::span(&value, 1), type)[0];
}

template <class Step>
inline constexpr bool kIsForward =
    std::is_same_v<std::remove_cvref_t<Step>, tile::TestedStep<ForwardLadder>>;

// ---- Problems ----

/// A problem with lengths and offsets, the elements from a 256-byte boundary to each tensor.
/// A backward problem has the same options; its gradients have strides and offsets of their own.
struct Case {
  ForwardProblem p;
  std::vector<int> query_lengths = {}, key_lengths = {};
  struct Offsets {
    std::int64_t q1 = 0, k1 = 0, q2 = 0, k2 = 0, v = 0, o = 0, dout = 0;
    std::int64_t dq1 = 0, dk1 = 0, dq2 = 0, dk2 = 0, dv = 0;
  } offset = {};
  std::optional<Strides> dout = {}, dq1 = {}, dk1 = {}, dq2 = {}, dk2 = {}, dv = {};  // or no gaps
  bool wants_lse = true;

  BackwardProblem backward() const {
    BackwardProblem b{.type = p.type,
                      .batch = p.batch,
                      .heads = p.heads,
                      .queries = p.queries,
                      .keys = p.keys,
                      .head_dim = p.head_dim,
                      .kv_heads = p.kv_heads};
    b.window = p.window, b.causal = p.causal, b.scale = p.scale;
    b.distance_factor = p.distance_factor;
    b.q1 = p.q1, b.k1 = p.k1, b.q2 = p.q2, b.k2 = p.k2, b.v = p.v, b.o = p.o;
    if (dout) b.dout = *dout;
    if (dq1) b.dq1 = *dq1;
    if (dk1) b.dk1 = *dk1;
    if (dq2) b.dq2 = *dq2;
    if (dk2) b.dk2 = *dk2;
    if (dv) b.dv = *dv;
    return b;
  }
};

struct Sizes {
  std::int64_t batch, heads, kv_heads, queries, keys, head_dim;
};

inline Case full(DType type, const Sizes& n, std::int64_t window) {
  ForwardProblem p{.type = type,
                   .batch = n.batch,
                   .heads = n.heads,
                   .queries = n.queries,
                   .keys = n.keys,
                   .head_dim = n.head_dim,
                   .kv_heads = n.kv_heads};
  p.window = window, p.causal = false;
  p.scale = 1 / std::sqrt(static_cast<float>(n.head_dim));
  return {p};
}
inline Case causal(Case c) {
  c.p.causal = true;
  return c;
}

inline std::string describe(const Case& c) {
  const ForwardProblem& p = c.p;
  std::string text(tile::name(p.type));
  const auto add = [&text](const char* name, std::int64_t n) {
    text.append(", ").append(name).append(" ").append(std::to_string(n));
  };
  add("batch", p.batch), add("heads", p.heads), add("kv_heads", p.kv_heads);
  add("queries", p.queries), add("keys", p.keys), add("head_dim", p.head_dim);
  add("window", p.window);
  text += p.causal ? ", causal" : ", full";
  for (const int n : c.query_lengths) add("query length", n);
  for (const int n : c.key_lengths) add("key length", n);
  add("q1's row stride", p.q1.row), add("k1's", p.k1.row), add("q2's", p.q2.row);
  add("k2's", p.k2.row), add("v's", p.v.row), add("o's", p.o.row);
  add("offsets", c.offset.q1), add("", c.offset.k1), add("", c.offset.q2), add("", c.offset.k2);
  add("", c.offset.v), add("", c.offset.o);
  return text;
}

/// Whether the step's own kernel runs it.
template <class Step>
bool takes(const Step& step, const Case& c) {
  const auto at = [&c](std::int64_t elements) {
    const auto size = static_cast<std::int64_t>(tile::size_bytes(c.p.type));
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(256 + elements * size));
  };
  const Case::Offsets& offset = c.offset;
  const auto with_factors = [&](auto buffers) {
    buffers.q1 = at(offset.q1), buffers.k1 = at(offset.k1);
    buffers.q2 = at(offset.q2), buffers.k2 = at(offset.k2);
    buffers.v = at(offset.v), buffers.o = at(offset.o);
    return buffers;
  };
  if constexpr (kIsForward<Step>) {
    auto buffers = with_factors(ForwardBuffers{});
    buffers.workspace_bytes = workspace_bytes(c.p, step.name);
    return tile::is_taken(step, c.p, buffers);
  } else {
    auto buffers = with_factors(BackwardBuffers{});
    buffers.dout = at(offset.dout);
    buffers.dq1 = at(offset.dq1), buffers.dk1 = at(offset.dk1);
    buffers.dq2 = at(offset.dq2), buffers.dk2 = at(offset.dk2), buffers.dv = at(offset.dv);
    buffers.workspace_bytes = workspace_bytes(c.backward(), step.name);
    return tile::is_taken(step, c.backward(), buffers);
  }
}

// ---- Running a step ----

/// [batch][heads][queries] as [batch][queries][heads], or back.
inline Values turned_lse(const ForwardProblem& p, const Values& lse, bool heads_first) {
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

struct Inputs {
  Values q1, k1, q2, k2, v;
  Values o, lse, dout;  // of the backward pass only; lse is [batch][queries][heads]
};

inline tile::AttentionExpected expected_outputs(const Case& c, const Inputs& in) {
  return reference(c.p, {.q = in.q1,
                         .k = in.k1,
                         .v = in.v,
                         .query_lengths = c.query_lengths,
                         .key_lengths = c.key_lengths,
                         .far = {in.q2, in.k2}});
}
inline tile::AttentionGradients expected_gradients(const Case& c, const Inputs& in) {
  return reference(c.backward(), {.q = in.q1,
                                  .k = in.k1,
                                  .v = in.v,
                                  .o = in.o,
                                  .lse = in.lse,
                                  .dout = in.dout,
                                  .query_lengths = c.query_lengths,
                                  .key_lengths = c.key_lengths,
                                  .far = {in.q2, in.k2}});
}

/// What the forward pass gives the backward pass, as the types hold it.
inline void add_outputs(const Case& c, Inputs* in) {
  const tile::AttentionExpected forward = expected_outputs(c, *in);
  in->o = tile::rounded(forward.o.value, c.p.type);
  in->lse = tile::rounded(forward.lse.value, DType::fp32);
}
template <class Step>
Inputs normal(const Step&, const Case& c) {
  const ForwardProblem& p = c.p;
  const std::int64_t q = p.batch * p.queries * p.heads * p.head_dim;
  const std::int64_t k = p.batch * p.keys * p.kv_heads * p.head_dim;
  Inputs in{tile::normal(q, p.type, 71),
            tile::normal(k, p.type, 72),
            tile::normal(q, p.type, 73),
            tile::normal(k, p.type, 74),
            tile::normal(k, p.type, 75),
            {},
            {},
            tile::normal(q, p.type, 76)};
  // Rows beyond its lengths are NaN.
  for (Values* each : {&in.q1, &in.q2, &in.dout}) {
    tile::erase_beyond(c.query_lengths, p.queries, each);
  }
  for (Values* each : {&in.k1, &in.k2, &in.v}) tile::erase_beyond(c.key_lengths, p.keys, each);
  if (!kIsForward<Step>) add_outputs(c, &in);
  return in;
}

/// What a step wrote, by name: o and lse, or the gradients.
struct Result {
  const char* name;
  Values values;
};
using Results = std::vector<Result>;

inline void check_intact(std::initializer_list<Status> all) {
  for (const Status& intact : all) CHECK_MESSAGE(intact.ok(), intact.message);
}

/// Runs a step of either ladder with outputs of this poison. Checks all buffers.
template <class Step>
Results run(const Step& step, const Case& c, const Inputs& in,
            Poison poison = Poison::unwritten_nan) {
  const ForwardProblem& p = c.p;
  const BackwardProblem b = c.backward();
  const Case::Offsets& at = c.offset;
  const Tensor::Shape of_q{p.batch, p.queries, p.heads, p.head_dim};
  const Tensor::Shape of_k{p.batch, p.keys, p.kv_heads, p.head_dim};
  const Tensor q1 = Tensor::input("q1", p.type, of_q, p.q1, in.q1, at.q1);
  const Tensor k1 = Tensor::input("k1", p.type, of_k, p.k1, in.k1, at.k1);
  const Tensor q2 = Tensor::input("q2", p.type, of_q, p.q2, in.q2, at.q2);
  const Tensor k2 = Tensor::input("k2", p.type, of_k, p.k2, in.k2, at.k2);
  const Tensor v = Tensor::input("v", p.type, of_k, p.v, in.v, at.v);
  const auto query_lengths = lengths_buffer("query_lengths", c.query_lengths);
  const auto key_lengths = lengths_buffer("key_lengths", c.key_lengths);
  const auto ints = [](const std::optional<DeviceBuffer>& buffer) {
    return buffer ? static_cast<const int*>(buffer->raw()) : nullptr;
  };
  const tile::Layout of_lse = tile::vector_layout(DType::fp32, p.batch * p.heads * p.queries);
  // If the step falls back, the first one may run.
  const std::string_view runs = takes(step, c) ? step.name : step.ladder->steps[0].name;
  const std::int64_t bytes = kIsForward<Step> ? workspace_bytes(p, runs) : workspace_bytes(b, runs);
  const DeviceBuffer workspace =
      DeviceBuffer::output("workspace", tile::vector_layout(DType::fp32, bytes / 4), poison);
  if constexpr (kIsForward<Step>) {
    const Tensor o = Tensor::output("o", p.type, of_q, p.o, poison, at.o);
    const DeviceBuffer lse = DeviceBuffer::output("lse", of_lse, poison);
    const Status done =
        tile::run_step(step, p,
                       {q1.raw(), k1.raw(), q2.raw(), k2.raw(), v.raw(), o.raw(),
                        c.wants_lse ? static_cast<float*>(lse.raw()) : nullptr, ints(query_lengths),
                        ints(key_lengths), workspace.raw(), bytes});
    REQUIRE_MESSAGE(done.ok(), done.message);
    check_intact({q1.check(), k1.check(), q2.check(), k2.check(), v.check(), o.check(), lse.check(),
                  workspace.check()});
    if (!c.wants_lse) return {{"o", o.download()}};
    return {{"o", o.download()}, {"lse", turned_lse(p, lse.download(), false)}};
  } else {
    const Tensor o = Tensor::input("o", p.type, of_q, p.o, in.o, at.o);
    const Tensor dout = Tensor::input("dout", p.type, of_q, b.dout, in.dout, at.dout);
    const DeviceBuffer lse = DeviceBuffer::input("lse", of_lse, turned_lse(p, in.lse, true));
    const Tensor dq1 = Tensor::output("dq1", p.type, of_q, b.dq1, poison, at.dq1);
    const Tensor dk1 = Tensor::output("dk1", p.type, of_k, b.dk1, poison, at.dk1);
    const Tensor dq2 = Tensor::output("dq2", p.type, of_q, b.dq2, poison, at.dq2);
    const Tensor dk2 = Tensor::output("dk2", p.type, of_k, b.dk2, poison, at.dk2);
    const Tensor dv = Tensor::output("dv", p.type, of_k, b.dv, poison, at.dv);
    const Status done = tile::run_step(
        step, b,
        {q1.raw(), k1.raw(), q2.raw(), k2.raw(), v.raw(), o.raw(),
         static_cast<const float*>(lse.raw()), dout.raw(), dq1.raw(), dk1.raw(), dq2.raw(),
         dk2.raw(), dv.raw(), ints(query_lengths), ints(key_lengths), workspace.raw(), bytes});
    REQUIRE_MESSAGE(done.ok(), done.message);
    check_intact({q1.check(), k1.check(), q2.check(), k2.check(), v.check(), o.check(), lse.check(),
                  dout.check(), dq1.check(), dk1.check(), dq2.check(), dk2.check(), dv.check(),
                  workspace.check()});
    return {{"dq1", dq1.download()},
            {"dk1", dk1.download()},
            {"dq2", dq2.download()},
            {"dk2", dk2.download()},
            {"dv", dv.download()}};
  }
}

/// In the order of the Results.
template <class Step>
std::vector<tile::Expected> expected_of(const Step&, const Case& c, const Inputs& in) {
  if constexpr (kIsForward<Step>) {
    tile::AttentionExpected expected = expected_outputs(c, in);
    return {std::move(expected.o), std::move(expected.lse)};
  } else {
    tile::AttentionGradients expected = expected_gradients(c, in);
    return {std::move(expected.dq), std::move(expected.dk), std::move(expected.far_dq),
            std::move(expected.far_dk), std::move(expected.dv)};
  }
}

inline void check_values(const Result& got, const tile::Expected& expected) {
  const tile::Comparison comparison = tile::compare(got.name, got.values, expected);
  CHECK_MESSAGE(comparison.ok(), comparison.message);
}

/// For long lists, whose cases need not run with each poison.
inline Poison poison_in_turn() {
  static std::size_t turn = 0;
  return tile::kOutputPoisons[++turn % std::size(tile::kOutputPoisons)];
}

/// Runs a step of either ladder on these inputs and checks what it wrote.
template <class Step>
void check_step(const Step& step, const Case& c, const Inputs& in) {
  CAPTURE(step.name);
  const std::string problem = describe(c);
  CAPTURE(problem);
  const std::vector<tile::Expected> expected = expected_of(step, c, in);
  const Results got = run(step, c, in, poison_in_turn());
  for (std::size_t i = 0; i < got.size(); ++i) check_values(got[i], expected[i]);
}

/// Runs a selection of those cases of a list that the step takes, on the CPU device fewer of the
/// steps in fp32, which take the longest there.
class Cases {
 public:
  template <class Step>
  Cases(const Step& step, DType type)
      : selection_(step, type, step.types.contains(DType::fp32) ? 10 : 1) {}

  template <class Step>
  void check(const Step& step, const Case& c) {
    if (takes(step, c) && selection_.takes_next()) check_step(step, c, normal(step, c));
  }

 private:
  tile::Selection selection_;
};

/// Runs the test on both ladders.
template <class Check>
void for_each_step(Check check, tile::OwnKernel own = tile::OwnKernel::must_run,
                   tile::Types types = tile::Types::in_turn) {
  tile::for_each_step(kForwardLadder, check, own, types);
  tile::for_each_step(kBackwardLadder, check, own, types);
}

}  // namespace windowed_rope
