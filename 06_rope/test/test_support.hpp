// What the tests of the rotation share: problems, and how a step is run and checked.
#pragma once

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "harness/buffer.hpp"
#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "harness/tensor.hpp"
#include "harness/test_main.hpp"
#include "rotary/reference.hpp"
#include "rotation.hpp"
#include "tile/host/device.hpp"

namespace rope {

using tile::Comparison;
using tile::DeviceBuffer;
using tile::DType;
using tile::Poison;
using tile::Status;
using tile::Tensor;
using Values = std::vector<double>;
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A problem, and what is not in it.
struct Case {
  RotaryProblem p;
  Values frequencies = paper_frequencies(p.rotary_dim);
  std::vector<int> positions = {};  // of each token; none: they count
  struct Offsets {
    std::int64_t q = 0, k = 0, q_out = 0, k_out = 0, tables = 0;
  } offset = {};
  bool in_place = false;
};

struct Sizes {
  std::int64_t batch, length, heads, kv_heads, head_dim, rotary_dim;
};
inline Case simple(DType type, const Sizes& n, Layout layout = Layout::half_split,
                   Pass pass = Pass::forward) {
  RotaryProblem p{.type = type,
                  .batch = n.batch,
                  .length = n.length,
                  .heads = n.heads,
                  .kv_heads = n.kv_heads,
                  .head_dim = n.head_dim,
                  .rotary_dim = n.rotary_dim};
  p.layout = layout;
  p.pass = pass;
  p.table_positions = n.length;
  return {p};
}

inline std::string describe(const Case& c) {
  std::string text(tile::name(c.p.type));
  for (const auto& [name, n] : {std::pair{"batch", c.p.batch},
                                {"length", c.p.length},
                                {"heads", c.p.heads},
                                {"kv_heads", c.p.kv_heads},
                                {"head_dim", c.p.head_dim},
                                {"rotary_dim", c.p.rotary_dim},
                                {"first_position", c.p.first_position},
                                {"q's row stride", c.p.q.row},
                                {"q's offset", c.offset.q}}) {
    text.append(", ").append(name).append(" ").append(std::to_string(n));
  }
  text += c.p.layout == Layout::half_split ? ", half_split" : ", interleaved";
  text += c.p.pass == Pass::forward ? ", forward" : ", backward";
  return text + (c.in_place ? ", in place" : "");
}

struct Rows {
  Values q, k;
};
inline Rows normal(const RotaryProblem& p) {
  const std::int64_t rows = p.batch * p.length * p.head_dim;
  return {tile::normal(rows * p.heads, p.type, 61), tile::normal(rows * p.kv_heads, p.type, 62)};
}

/// Runs the step and gives what it wrote. Checks all buffers.
inline Rows run(const tile::TestedStep<RotaryLadder>& step, const Case& c, const Rows& in,
                Poison poison = Poison::unwritten_nan) {
  const RotaryProblem& p = c.p;
  const Tensor::Shape of_q{p.batch, p.length, p.heads, p.head_dim};
  const Tensor::Shape of_k{p.batch, p.length, p.kv_heads, p.head_dim};
  const auto input = c.in_place ? Tensor::in_out : Tensor::input;
  const Tensor q = input("q", p.type, of_q, p.q, in.q, c.offset.q);
  const Tensor k = input("k", p.type, of_k, p.k, in.k, c.offset.k);
  const Tensor q_out = Tensor::output("q_out", p.type, of_q, p.q_out, poison, c.offset.q_out);
  const Tensor k_out = Tensor::output("k_out", p.type, of_k, p.k_out, poison, c.offset.k_out);
  const TestTables tables = tables_of(c.frequencies, p.table_positions, p.attention_factor);
  const auto table = [&](const char* name, DType type, const Values& values, std::int64_t offset) {
    return DeviceBuffer::input(name, tile::vector_layout(type, std::ssize(values), offset), values);
  };
  const DeviceBuffer cos = table("cos", DType::fp32, tables.cos, c.offset.tables);
  const DeviceBuffer sin = table("sin", DType::fp32, tables.sin, c.offset.tables);
  const DeviceBuffer frequencies = table("frequencies", DType::fp64, c.frequencies, 0);
  const auto positions = tile::lengths_buffer("positions", c.positions);
  const Status done = tile::run_step(
      step, p,
      {q.raw(), k.raw(), c.in_place ? q.raw() : q_out.raw(), c.in_place ? k.raw() : k_out.raw(),
       static_cast<const float*>(cos.raw()), static_cast<const float*>(sin.raw()),
       static_cast<const double*>(frequencies.raw()),
       positions ? static_cast<const int*>(positions->raw()) : nullptr});
  REQUIRE_MESSAGE(done.ok(), done.message);
  for (const Tensor* tensor : {&q, &k, &q_out, &k_out}) {
    const Status intact = tensor->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
  for (const DeviceBuffer* buffer : {&cos, &sin, &frequencies}) {
    const Status intact = buffer->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
  if (c.in_place) return {q.download(), k.download()};
  return {q_out.download(), k_out.download()};
}

inline void check_values(const char* name, const Values& got, const tile::Expected& expected) {
  const Comparison comparison = tile::compare(name, got, expected);
  CHECK_MESSAGE(comparison.ok(), comparison.message);
}

/// Runs the step with poison in its outputs, and compares what it wrote.
inline void check_step(const tile::TestedStep<RotaryLadder>& step, const Case& c, const Rows& in) {
  CAPTURE(step.name);
  CAPTURE(describe(c));
  const auto expected = [&](const Values& x, std::int64_t heads) {
    const Angles angles = step.name == "sincos" ? Angles::computed : Angles::tables;
    return reference(c.p, x, heads, c.frequencies, c.positions, angles);
  };
  const tile::Expected q = expected(in.q, c.p.heads), k = expected(in.k, c.p.kv_heads);
  for (const Poison poison : tile::poisons_for({&q, &k})) {
    const Rows got = run(step, c, in, poison);
    check_values("q_out", got.q, q);
    check_values("k_out", got.k, k);
    if (c.in_place) break;  // there is no poison
  }
}
inline void check_step(const tile::TestedStep<RotaryLadder>& step, const Case& c) {
  check_step(step, c, normal(c.p));
}

inline constexpr Layout kLayouts[] = {Layout::half_split, Layout::interleaved};
inline constexpr Pass kPasses[] = {Pass::forward, Pass::backward};

}  // namespace rope
