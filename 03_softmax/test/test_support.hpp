// What the tests of chapter 03 share: problems, their inputs, and how a step is run and checked.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "harness/buffer.hpp"
#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "harness/selection.hpp"
#include "harness/test_main.hpp"
#include "reference.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"
#include "tile/host/tensor_argument.hpp"

namespace softmax {

using tile::Comparison;
using tile::DeviceBuffer;
using tile::DType;
using tile::Layout;
using tile::Poison;
using tile::Status;
using Values = std::vector<double>;
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- Problems ----

/// A problem of the step's ladder.
template <class Ladder>
typename Ladder::Problem plain(const tile::TestedStep<Ladder>&, DType type, std::int64_t rows,
                               std::int64_t cols, bool log = false) {
  return {.type = type, .rows = rows, .cols = cols, .log = log};
}

template <class Problem>
Problem causal(Problem p, std::int64_t queries) {
  p.causal = true;
  p.queries = queries;
  return p;
}

template <class Problem>
Problem scaled(Problem p, float scale) {
  p.scale = scale;
  return p;
}

constexpr bool is_forward(const ForwardProblem&) { return true; }
constexpr bool is_forward(const BackwardProblem&) { return false; }

/// Of each matrix (`first` is x forward, y backward; `output` is y or dx): elements from a 256-byte
/// boundary to the first, or elements between two rows.
struct Three {
  std::int64_t first, dy, output;
};

inline ForwardProblem padded(ForwardProblem p, Three padding) {
  p.ldx = p.cols + padding.first;
  p.ldy = p.cols + padding.output;
  return p;
}
inline BackwardProblem padded(BackwardProblem p, Three padding) {
  p.ldy = p.cols + padding.first;
  p.lddy = p.cols + padding.dy;
  p.lddx = p.cols + padding.output;
  return p;
}

/// The leading dimensions. Forward there is no dy.
inline Three lds(const ForwardProblem& p) { return {p.ldx, 0, p.ldy}; }
inline Three lds(const BackwardProblem& p) { return {p.ldy, p.lddy, p.lddx}; }

inline ForwardBuffers buffers_of(const ForwardProblem&, void* first, void*, void* output) {
  return {first, output, nullptr, 0};
}
inline BackwardBuffers buffers_of(const BackwardProblem&, void* first, void* dy, void* output) {
  return {first, dy, output, nullptr, 0};
}

/// The forward problem whose gradient it is.
inline ForwardProblem forward_of(const BackwardProblem& p) {
  ForwardProblem forward{.type = p.type, .rows = p.rows, .cols = p.cols, .log = p.log};
  forward.causal = p.causal;
  forward.queries = p.queries;
  forward.scale = p.scale;
  return forward;
}
inline ForwardProblem forward_of(const ForwardProblem& p) { return p; }

/// Elements in 16 bytes, the longest vector that a thread loads.
inline std::int64_t vector_length(DType type) {
  return 16 / static_cast<std::int64_t>(tile::size_bytes(type));
}

template <class Problem>
std::string describe(const Problem& p, Three offsets = {}) {
  auto text = [](auto... numbers) {
    std::string all;
    for (const std::int64_t x : {numbers...}) all += (all.empty() ? "" : " ") + std::to_string(x);
    return all;
  };
  const Three ld = lds(p);
  return std::string(tile::name(p.type)) + (is_forward(p) ? " forward" : " backward") +
         (p.log ? " log" : "") + ", rows cols " + text(p.rows, p.cols) +
         (p.causal ? ", causal, queries " + text(p.queries) : "") + ", scale " +
         std::to_string(p.scale) + ", lds " + text(ld.first, ld.dy, ld.output) + ", offsets " +
         text(offsets.first, offsets.dy, offsets.output);
}

// ---- Which cases a step runs ----

/// The steps of the tests. The rows of `split` are too long for most tests, or too few to fill a
/// card: here it also has those that a cluster would share.
template <std::size_t kSteps, class Step>
std::array<Step, kSteps> tested_steps(const Step (&steps)[kSteps]) {
  auto tested = std::to_array(steps);
  for (Step& step : tested) {
    if (step.name != "split") continue;
    step.shows.small = {2, 66'001};
    step.takes = [](const auto& p, const auto& buffers, const tile::Device&) {
      if (p.cols < 60'000) return tile::unsupported("cols", "are few");
      return tile::check_workspace(split_bytes(p), buffers.workspace_bytes);
    };
  }
  return tested;
}
inline const auto kTestedForward = tested_steps(kForward);
inline const auto kTestedBackward = tested_steps(kBackward);

/// The ladder with these steps.
template <class Ladder>
Ladder with_steps(Ladder ladder, std::span<const typename Ladder::Step> steps) {
  ladder.steps = steps;
  return ladder;
}
inline const ForwardLadder kForwardTests = with_steps(kForwardLadder, kTestedForward);
inline const BackwardLadder kBackwardTests = with_steps(kBackwardLadder, kTestedBackward);

/// Runs the test on both ladders.
template <class Check>
void for_each_step(Check check, tile::OwnKernel own = tile::OwnKernel::must_run,
                   tile::Types types = tile::Types::in_turn) {
  tile::for_each_step(kForwardTests, check, own, types);
  tile::for_each_step(kBackwardTests, check, own, types);
}

/// Whether the step's own kernel runs this, with its matrices at these offsets.
template <class Ladder>
bool takes(const tile::TestedStep<Ladder>& step, const typename Ladder::Problem& p,
           Three offsets = {0, 0, 0}) {
  auto at = [&p](std::int64_t elements) {
    const auto bytes = 256 + elements * static_cast<std::int64_t>(tile::size_bytes(p.type));
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(bytes));
  };
  auto buffers = buffers_of(p, at(offsets.first), at(offsets.dy), at(offsets.output));
  buffers.workspace_bytes = workspace_bytes_of(step, p);
  return tile::is_taken(step, p, buffers);
}

/// The cases of a list that are to be run: of those that the step takes a selection.
class Cases {
 public:
  template <class Step>
  Cases(const Step& step, DType type) : selection_(step, type) {}

  template <class Step, class Problem>
  bool runs(const Step& step, const Problem& p, Three offsets = {0, 0, 0}) {
    return takes(step, p, offsets) && selection_.takes_next();
  }

 private:
  tile::Selection selection_;
};

/// These columns, and so many that every step runs its own kernel: those of its small example.
template <class Step>
std::vector<std::int64_t> columns_of(const Step& step, std::vector<std::int64_t> columns) {
  columns.push_back(step.shows.small[1]);
  return columns;
}

// ---- Inputs ----

/// x forward, y backward; and dy. Without padding.
struct Inputs {
  Values first, dy = {};
};

inline tile::Expected expected_of(const ForwardProblem& p, const Inputs& in) {
  return reference(p, in.first);
}
inline tile::Expected expected_of(const BackwardProblem& p, const Inputs& in) {
  return reference(p, in.first, in.dy);
}

/// x for the forward pass; for the backward pass the probabilities that the reference finds, or
/// their logarithms, as the type stores them, and dy.
template <class Problem>
Inputs inputs_of(const Problem& p, const Values& x) {
  if (is_forward(p)) return {x};
  return {tile::rounded(reference(forward_of(p), x).value, p.type),
          tile::normal(p.rows * p.cols, p.type, 12)};
}

template <class Problem>
Inputs normal(const Problem& p) {
  return inputs_of(p, tile::normal(p.rows * p.cols, p.type, 11));
}

// ---- Running a step ----

template <class Problem>
Layout layout_of(const Problem& p, std::int64_t ld, std::int64_t offset) {
  return tile::matrix_layout(p.type, p.rows, p.cols, ld, offset);
}

/// Gives the buffers the workspace that the step has, full of this poison.
template <class Step, class Problem, class Buffers>
DeviceBuffer give_workspace(const Step& step, const Problem& p, Buffers* buffers,
                            Poison poison = Poison::unwritten_nan) {
  buffers->workspace_bytes = workspace_bytes_of(step, p);
  DeviceBuffer workspace = DeviceBuffer::output(
      "workspace", tile::vector_layout(DType::fp32, buffers->workspace_bytes / 4), poison);
  buffers->workspace = workspace.raw();
  return workspace;
}

/// Runs the step with outputs of this poison and gives what it wrote. Checks all buffers.
template <class Step, class Problem>
Values run(const Step& step, const Problem& p, const Inputs& in, Three offsets = {0, 0, 0},
           Poison poison = Poison::unwritten_nan) {
  const bool forward = is_forward(p);
  const Three ld = lds(p);
  DeviceBuffer first =
      DeviceBuffer::input(forward ? "x" : "y", layout_of(p, ld.first, offsets.first), in.first);
  // Forward there is none.
  DeviceBuffer dy =
      DeviceBuffer::input("dy", forward ? Layout{p.type} : layout_of(p, ld.dy, offsets.dy), in.dy);
  DeviceBuffer output =
      DeviceBuffer::output(forward ? "y" : "dx", layout_of(p, ld.output, offsets.output), poison);
  auto buffers = buffers_of(p, first.raw(), dy.raw(), output.raw());
  const DeviceBuffer workspace = give_workspace(step, p, &buffers, poison);
  const Status done = tile::run_step(step, p, buffers);
  REQUIRE_MESSAGE(done.ok(), done.message);
  for (const auto& intact : {first.check(), dy.check(), output.check(), workspace.check()}) {
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
  return output.download();
}

template <class Problem>
void check_values(const Problem& p, const Values& got, const tile::Expected& expected) {
  const Comparison comparison = tile::compare(is_forward(p) ? "y" : "dx", got, expected);
  CHECK_MESSAGE(comparison.ok(), comparison.message);
}

/// Runs the step on these inputs, with poison in the output, checks the result and the buffers, and
/// gives the result.
template <class Step, class Problem>
Values check_step(const Step& step, const Problem& p, const Inputs& in,
                  const Three& offsets = {0, 0, 0}) {
  CAPTURE(step.name);
  const std::string problem = describe(p, offsets);
  CAPTURE(problem);
  const tile::Expected expected = expected_of(p, in);
  Values result;
  for (const Poison poison : tile::poisons_for({&expected})) {
    result = run(step, p, in, offsets, poison);
    check_values(p, result, expected);
  }
  return result;
}

// ---- Inputs whose results are exact ----

/// Forward zeros and -infinities, so that y is 1 / (number of zeros) or 0; backward the same, or
/// their exponentials 1 and 0, and gradients that are small integers.
template <class Problem>
Inputs exact_inputs(const Problem& p) {
  Values first = tile::integers(p.rows * p.cols, p.type, 21, 0, 1);
  if (is_forward(p) || p.log) {
    for (double& x : first) x = x == 0 ? -kInfinity : 0;
  }
  if (is_forward(p)) return {first};
  return {first, tile::integers(p.rows * p.cols, p.type, 22, -2, 2)};
}

/// Sums of zeros may be either zero.
inline Values without_negative_zeros(Values values) {
  for (double& x : values) {
    if (x == 0) x = 0;
  }
  return values;
}

/// No sum rounds: these are the same bits, except for the logarithm. Of that the sum is exact. The
/// cases of a list have the poisons in turn.
template <class Step, class Problem>
void check_exact(const Step& step, const Problem& p, Three offsets = {0, 0, 0}) {
  CAPTURE(step.name);
  const std::string problem = describe(p, offsets);
  CAPTURE(problem);
  const Inputs in = exact_inputs(p);
  tile::Expected expected = expected_of(p, in);
  // 1 / sum rounds to fp32 before it is stored.
  const Values in_fp32 =
      is_forward(p) && !p.log ? tile::rounded(expected.value, DType::fp32) : expected.value;
  if (is_forward(p) && p.log) {
    // 1 ulp of logf, and the type's rounding.
    const double relative = 2.1 * tile::unit_roundoff(DType::fp32) +
                            (p.type == DType::fp32 ? 0 : tile::unit_roundoff(p.type));
    for (std::size_t i = 0; i < expected.bound.size(); ++i) {
      expected.bound[i] = std::isinf(expected.value[i]) ? 0 : -expected.value[i] * relative;
    }
  } else {
    expected.value = tile::rounded(in_fp32, p.type);
    expected.bound.assign(expected.bound.size(), 0.0);
  }
  expected.value = without_negative_zeros(std::move(expected.value));
  check_values(p, without_negative_zeros(run(step, p, in, offsets)), expected);
}

}  // namespace softmax
