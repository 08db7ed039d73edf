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

#include "harness/attention_case.hpp"
#include "harness/buffer.hpp"
#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "harness/selection.hpp"
#include "harness/tensor.hpp"
#include "harness/test_main.hpp"
#include "tile/host/device.hpp"
#include "windowed/reference.hpp"
#include "windowed/window.hpp"

namespace windowed_rope {

using tile::check_intact;
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

// ---- Calls ----

using Case = tile::AttentionCase;
using Sizes = tile::AttentionSizes;

/// Windowed attention, with two pairs.
inline Case full(DType type, const Sizes& n, std::int64_t window) {
  Case c{tile::attention_call<AttentionForward>(type, n)};
  c.p.window = window;
  c.has_far_pair = true;
  return c;
}
inline Case causal(Case c) {
  c.p.right = 0;
  return c;
}

// ---- Running a step ----

using Inputs = tile::AttentionRows;

inline tile::AttentionExpected expected_outputs(const Case& c, const Inputs& in) {
  return reference(c.p, {.q = in.q,
                         .k = in.k,
                         .v = in.v,
                         .query_lengths = c.query_lengths,
                         .key_lengths = c.key_lengths,
                         .far = {in.q_far, in.k_far}});
}
inline tile::AttentionGradients expected_gradients(const Case& c, const Inputs& in) {
  return reference(c.backward(), {.q = in.q,
                                  .k = in.k,
                                  .v = in.v,
                                  .o = in.o,
                                  .lse = in.lse,
                                  .dout = in.dout,
                                  .query_lengths = c.query_lengths,
                                  .key_lengths = c.key_lengths,
                                  .far = {in.q_far, in.k_far}});
}

/// What the forward pass gives the backward pass, as the types hold it.
inline void add_outputs(const Case& c, Inputs* in) {
  const tile::AttentionExpected forward = expected_outputs(c, *in);
  in->o = tile::rounded(forward.o.value, c.p.type);
  in->lse = tile::rounded(forward.lse.value, DType::fp32);
}
template <class Step>
Inputs normal(const Step&, const Case& c) {
  const AttentionForward& p = c.p;
  const std::int64_t q = p.batch * p.queries * p.heads * p.head_dim;
  const std::int64_t k = p.batch * p.keys * p.kv_heads * p.head_dim;
  Inputs in{.q = tile::normal(q, p.type, 71),
            .k = tile::normal(k, p.type, 72),
            .v = tile::normal(k, p.type, 75),
            .q_far = tile::normal(q, p.type, 73),
            .k_far = tile::normal(k, p.type, 74),
            .o = {},
            .lse = {},
            .dout = tile::normal(q, p.type, 76)};
  // Rows beyond its lengths are NaN.
  for (Values* each : {&in.q, &in.q_far, &in.dout}) {
    tile::erase_beyond(c.query_lengths, p.queries, each);
  }
  for (Values* each : {&in.k, &in.k_far, &in.v}) tile::erase_beyond(c.key_lengths, p.keys, each);
  if (!kIsForward<Step>) add_outputs(c, &in);
  return in;
}

using Result = tile::AttentionResult;
using Results = tile::AttentionResults;

template <class Step>
Results run(const Step& step, const Case& c, const Inputs& in,
            Poison poison = Poison::unwritten_nan) {
  return tile::run_attention(step, c, in, poison);
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

/// Runs a step of either ladder on these inputs and checks what it wrote.
template <class Step>
void check_step(const Step& step, const Case& c, const Inputs& in) {
  CAPTURE(step.name);
  const std::string problem = describe(c);
  CAPTURE(problem);
  const std::vector<tile::Expected> expected = expected_of(step, c, in);
  const Results got = run(step, c, in, tile::poison_in_turn());
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
