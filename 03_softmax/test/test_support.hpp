// What the tests of chapter 03 share: problems, their inputs, and how a step is run and checked.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "harness/buffer.hpp"
#include "harness/convert.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"
#include "harness/inputs.hpp"
#include "harness/selection.hpp"
#include "harness/test_main.hpp"
#include "softmax.hpp"

namespace softmax {

using tile::Comparison;
using tile::DeviceBuffer;
using tile::Direction;
using tile::DType;
using tile::Layout;
using tile::Poison;
using tile::Status;
using Values = std::vector<double>;
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- A problem, its inputs, and where they lie ----

/// What a step can be asked for.
struct Mode {
  Direction direction;
  bool log;
};
inline constexpr Mode kModes[] = {{Direction::forward, false},
                                  {Direction::forward, true},
                                  {Direction::backward, false},
                                  {Direction::backward, true}};

inline Problem plain(DType type, std::int64_t rows, std::int64_t cols, Mode mode) {
  return {type, rows, cols, mode.direction, mode.log};
}

inline Problem causal(Problem p, std::int64_t queries) {
  p.causal = true;
  p.queries = queries;
  return p;
}

inline Problem scaled(Problem p, float scale) {
  p.scale = scale;
  return p;
}

/// Of each matrix (`first` is x forward, y backward; `output` is y or dx): elements from a 256-byte
/// boundary to the first, or elements between two rows.
struct Three {
  std::int64_t first, dy, output;
};

inline bool is_forward(const Problem& p) { return p.direction == Direction::forward; }

inline Problem padded(Problem p, Three padding) {
  p.ldx = p.cols + padding.first;
  p.ldy = p.cols + (is_forward(p) ? padding.output : padding.first);
  p.lddy = p.cols + padding.dy;
  p.lddx = p.cols + padding.output;
  return p;
}

/// Elements in 16 bytes, the longest vector that a thread loads.
inline std::int64_t vector_length(DType type) {
  return 16 / static_cast<std::int64_t>(tile::size_bytes(type));
}

inline std::string describe(const Problem& p, Three offsets = {}) {
  auto text = [](auto... numbers) {
    std::string all;
    for (const std::int64_t x : {numbers...}) all += (all.empty() ? "" : " ") + std::to_string(x);
    return all;
  };
  return std::string(tile::name(p.type)) + " " + std::string(tile::name(p.direction)) +
         (p.log ? " log" : "") + ", rows cols " + text(p.rows, p.cols) +
         (p.causal ? ", causal, queries " + text(p.queries) : "") + ", scale " +
         std::to_string(p.scale) + ", ldx ldy lddy lddx " + text(p.ldx, p.ldy, p.lddy, p.lddx) +
         ", offsets " + text(offsets.first, offsets.dy, offsets.output);
}

/// x forward, y backward; and dy. Without padding.
struct Inputs {
  Values first, dy = {};
};

/// The probabilities that the reference finds, or their logarithms, as the type stores them.
inline Values softmax_of(Problem p, const Values& x) {
  p.direction = Direction::forward;
  return tile::rounded(reference(p, x).value, p.type);
}

/// x for the forward pass; for the backward pass what it makes of that, and dy.
inline Inputs inputs_of(const Problem& p, const Values& x) {
  if (is_forward(p)) return {x};
  return {softmax_of(p, x), tile::normal(p.rows * p.cols, p.type, 12)};
}

inline Inputs normal(const Problem& p) {
  return inputs_of(p, tile::normal(p.rows * p.cols, p.type, 11));
}

// ---- Running a step ----

inline Layout layout_of(const Problem& p, std::int64_t ld, std::int64_t offset) {
  return tile::matrix_layout(p.type, p.rows, p.cols, ld, offset);
}

/// Runs the step with outputs of this poison and gives what it wrote. Checks all buffers.
inline Values run(const Step& step, const Problem& p, const Inputs& in, Three offsets = {0, 0, 0},
                  Poison poison = Poison::unwritten_nan) {
  const bool forward = is_forward(p);
  DeviceBuffer first = DeviceBuffer::input(
      forward ? "x" : "y", layout_of(p, forward ? p.ldx : p.ldy, offsets.first), in.first);
  // Forward there is none.
  DeviceBuffer dy =
      DeviceBuffer::input("dy", forward ? Layout{p.type} : layout_of(p, p.lddy, offsets.dy), in.dy);
  DeviceBuffer output = DeviceBuffer::output(
      forward ? "y" : "dx", layout_of(p, forward ? p.ldy : p.lddx, offsets.output), poison);
  const Buffers buffers = forward ? Buffers{.x = first.raw(), .y = output.raw()}
                                  : Buffers{.y = first.raw(), .dy = dy.raw(), .dx = output.raw()};
  const Status done = tile::run_step(step, p, buffers);
  REQUIRE_MESSAGE(done.ok(), done.message);
  for (const DeviceBuffer* buffer : {&first, &dy, &output}) {
    const Status intact = buffer->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
  return output.download();
}

inline void check_values(const Problem& p, const Values& got, const tile::Expected& expected) {
  const Comparison comparison = tile::compare(is_forward(p) ? "y" : "dx", got, expected);
  CHECK_MESSAGE(comparison.ok(), comparison.message);
}

/// For long lists, whose cases need not run with each poison.
inline Poison poison_in_turn() {
  static std::size_t turn = 0;
  return tile::kOutputPoisons[++turn % std::size(tile::kOutputPoisons)];
}

/// Runs the step on these inputs, with these poisons in the output, checks the results and the
/// buffers, and gives the last result.
inline Values check_step(const Step& step, const Problem& p, const Inputs& in, Three offsets,
                         std::initializer_list<Poison> poisons) {
  CAPTURE(step.name);
  const std::string problem = describe(p, offsets);
  CAPTURE(problem);
  const tile::Expected expected = reference(p, in.first, in.dy);
  Values result;
  for (const Poison poison : poisons) {
    result = run(step, p, in, offsets, poison);
    check_values(p, result, expected);
  }
  return result;
}

inline void check_step(const Step& step, const Problem& p, const Inputs& in) {
  static_assert(std::size(tile::kOutputPoisons) == 2);
  check_step(step, p, in, {0, 0, 0}, {tile::kOutputPoisons[0], tile::kOutputPoisons[1]});
}

}  // namespace softmax
