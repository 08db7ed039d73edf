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

template <class Step>
Inputs normal(const Step&, const Case& c) {
  Inputs in = tile::random_rows(c, 71);
  // Rows beyond its lengths are NaN.
  for (Values* each : {&in.q, &in.q_far, &in.dout}) {
    tile::erase_beyond(c.query_lengths, c.p.queries, each);
  }
  for (Values* each : {&in.k, &in.k_far, &in.v}) tile::erase_beyond(c.key_lengths, c.p.keys, each);
  if (!kIsForward<Step>) tile::add_outputs(expected_outputs(c, in), c.p.type, &in);
  return in;
}

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
    return tile::in_order(expected_outputs(c, in));
  } else {
    return tile::in_order(expected_gradients(c, in), c.has_far_pair);
  }
}

/// Runs a step of either ladder on these inputs and checks what it wrote.
template <class Step>
void check_step(const Step& step, const Case& c, const Inputs& in) {
  CAPTURE(step.name);
  const std::string problem = describe(c);
  CAPTURE(problem);
  const std::vector<tile::Expected> expected = expected_of(step, c, in);
  check_values(run(step, c, in, tile::poison_in_turn()), expected);
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
