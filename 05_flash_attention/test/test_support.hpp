// Shared by the tests of chapter 05: tensors with strides, problems, and how a step is run and
// checked.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "harness/attention_case.hpp"
#include "harness/buffer.hpp"
#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "harness/selection.hpp"
#include "harness/tensor.hpp"
#include "harness/test_main.hpp"
#include "reference.hpp"
#include "tile/host/device.hpp"

namespace flash_attention {

using tile::Comparison;
using tile::DeviceBuffer;
using tile::DType;
using tile::heads_first;
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

// ---- Calls ----

using Case = tile::AttentionCase;
using Sizes = tile::AttentionSizes;

inline Case full(DType type, const Sizes& n) {
  return {tile::attention_call<AttentionForward>(type, n)};
}
inline Case windowed(Case c, std::int64_t left, std::int64_t right) {
  c.p.left = left, c.p.right = right;
  return c;
}
inline Case causal(const Case& c) { return windowed(c, kUnlimited, 0); }

/// The head dimension of most tests of a step: 64, or 256 if its own kernel takes only that.
template <class Step>
std::int64_t usual_dim(const Step& step, DType type) {
  return takes(step, full(type, {1, 1, 1, 1, 64, 64})) ? 64 : 256;
}

/// The case itself; for a step that takes few queries only, with few of its queries.
template <class Step>
Case fitted(const Step& step, const Case& c) {
  Case few = c;
  few.p.queries = std::min<std::int64_t>(c.p.queries, kAlwaysSplit);
  for (int& length : few.query_lengths) length = std::min(length, kAlwaysSplit);
  return !takes(step, c) && takes(step, few) ? few : c;
}

// ---- Running a step ----

struct Inputs {
  Values q, k, v;
};
inline Inputs normal(const AttentionForward& p) {
  const std::int64_t kv = p.batch * p.keys * p.kv_heads * p.head_dim;
  return {tile::normal(p.batch * p.queries * p.heads * p.head_dim, p.type, 31),
          tile::normal(kv, p.type, 32), tile::normal(kv, p.type, 33)};
}

/// The same of a case. Rows beyond its lengths are NaN.
inline Inputs normal(const Case& c) {
  Inputs in = normal(c.p);
  tile::erase_beyond(c.query_lengths, c.p.queries, &in.q);
  tile::erase_beyond(c.key_lengths, c.p.keys, &in.k);
  tile::erase_beyond(c.key_lengths, c.p.keys, &in.v);
  return in;
}

struct Outputs {
  Values o, lse;  // lse is [batch][queries][heads]
};
struct Gradients {
  Values dq, dk, dv;
};

/// Runs the step with outputs of this poison and gives what it wrote. Checks all buffers.
template <class Step>
Outputs run(const Step& step, const Case& c, const Inputs& in,
            Poison poison = Poison::unwritten_nan) {
  tile::AttentionResults got =
      tile::run_attention(step, c, {.q = in.q, .k = in.k, .v = in.v}, poison);
  return {std::move(got[0].values), c.wants_lse ? std::move(got[1].values) : Values{}};
}

inline void check_values(const char* name, const Values& got, const tile::Expected& expected) {
  const Comparison comparison = tile::compare(name, got, expected);
  CHECK_MESSAGE(comparison.ok(), comparison.message);
}

/// The values of `rows` as the scales of their heads of k leave them.
inline Values scaled(const Case& c, Values values, std::int64_t rows, std::int64_t heads,
                     const Values& scales) {
  const std::int64_t group = heads / c.p.kv_heads;
  for (std::int64_t i = 0; !scales.empty() && i < std::ssize(values); ++i) {
    const std::int64_t row = i / c.p.head_dim, batch = row / heads / rows, head = row % heads;
    values[static_cast<std::size_t>(i)] *=
        scales[static_cast<std::size_t>(batch * c.p.kv_heads + head / group)];
  }
  return values;
}
inline ForwardExpected expected_of(const Case& c, const Inputs& in, bool has_whole_sums = false) {
  const Values q = scaled(c, in.q, c.p.queries, c.p.heads, c.q_scale);
  const Values k = scaled(c, in.k, c.p.keys, c.p.kv_heads, c.k_scale);
  const Values v = scaled(c, in.v, c.p.keys, c.p.kv_heads, c.v_scale);
  tile::AttentionInputs inputs{q, k, v, c.query_lengths, c.key_lengths};
  if (has_whole_sums) inputs.keys_of_sum = kMaxLength;
  return reference(c.p, inputs);
}

/// What the forward pass gives the backward pass, as the types hold it, and dout.
struct BackwardOnly {
  Values o, lse, dout;
};
inline BackwardOnly backward_only(const Case& c, const Inputs& in) {
  const ForwardExpected forward = expected_of(c, in);
  Values dout = tile::normal(std::ssize(in.q), c.p.type, 34);
  tile::erase_beyond(c.query_lengths, c.p.queries, &dout);
  return {tile::rounded(forward.o.value, c.p.type), tile::rounded(forward.lse.value, DType::fp32),
          dout};
}
inline BackwardExpected expected_of(const Case& c, const Inputs& in, const BackwardOnly& more) {
  return reference(c.backward(),
                   {in.q, in.k, in.v, more.o, more.lse, more.dout, c.query_lengths, c.key_lengths});
}

/// The same for a step of the backward pass.
template <class Step>
Gradients run(const Step& step, const Case& c, const Inputs& in, const BackwardOnly& more,
              Poison poison = Poison::unwritten_nan) {
  tile::AttentionResults got = tile::run_attention(
      step, c, {.q = in.q, .k = in.k, .v = in.v, .o = more.o, .lse = more.lse, .dout = more.dout},
      poison);
  return {std::move(got[0].values), std::move(got[1].values), std::move(got[2].values)};
}

/// Runs a step of either ladder on these inputs and checks what it wrote.
template <class Step>
void check_step(const Step& step, const Case& c, const Inputs& in) {
  CAPTURE(step.name);
  const std::string problem = describe(c);
  CAPTURE(problem);
  if constexpr (kIsForward<Step>) {
    const bool has_whole_sums = step.name == "e4m3";  // of its output
    const ForwardExpected expected = expected_of(c, in, has_whole_sums);
    const Outputs got = run(step, c, in, tile::poison_in_turn());
    check_values("o", got.o, expected.o);
    if (c.wants_lse) check_values("lse", got.lse, expected.lse);
  } else {
    const BackwardOnly more = backward_only(c, in);
    const BackwardExpected expected = expected_of(c, in, more);
    const Gradients got = run(step, c, in, more, tile::poison_in_turn());
    check_values("dq", got.dq, expected.dq);
    check_values("dk", got.dk, expected.dk);
    check_values("dv", got.dv, expected.dv);
  }
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
    const Case here = fitted(step, c);
    if (takes(step, here) && selection_.takes_next()) check_step(step, here, normal(here));
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

}  // namespace flash_attention
