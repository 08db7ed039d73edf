// What the tests of chapter 02 share: problems, their inputs, and how a step is run and checked.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cmath>
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

namespace matmul {

using tile::Comparison;
using tile::DeviceBuffer;
using tile::DType;
using tile::Layout;
using tile::Poison;
using tile::Selection;
using tile::Status;
using Values = std::vector<double>;
using Step = tile::TestedStep<Ladder>;
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Where a type has none, and would become 448.
inline double infinity_of(DType type) { return type == DType::e4m3 ? kNaN : kInfinity; }

// ---- A problem, its inputs, and where they lie ----

struct Shape {
  std::int64_t m, n, k;
};

struct Transposes {
  bool a, b;
};
inline constexpr Transposes kTransposes[] = {
    {false, false}, {false, true}, {true, false}, {true, true}};

/// Of each matrix: elements from a 256-byte boundary to the first, or elements between two rows.
struct Three {
  std::int64_t a, b, c;
};

/// Of e4m3 there is one layout.
inline std::span<const Transposes> transposes_of(DType type) {
  static_assert(!kTransposes[1].a && kTransposes[1].b);
  return type == DType::e4m3 ? std::span(kTransposes).subspan(1, 1) : std::span(kTransposes);
}

inline Problem plain(DType type, Shape shape, Transposes transposes = {}) {
  if (type == DType::e4m3) transposes = kTransposes[1];
  return {type, shape.m, shape.n, shape.k, transposes.a, transposes.b};
}

/// Elements in 16 bytes, the longest vector that a thread loads.
inline std::int64_t vector_length(DType type) {
  return 16 / static_cast<std::int64_t>(tile::size_bytes(type));
}

// With rows that begin at multiples of 16 bytes, or `padding` elements after them.
inline Problem padded(Problem p, Three padding) {
  auto vectors = [length = vector_length(p.type)](std::int64_t count) {
    return (count + length - 1) / length * length;
  };
  p.lda = vectors(p.transpose_a ? p.m : p.k) + padding.a;
  p.ldb = vectors(p.transpose_b ? p.k : p.n) + padding.b;
  p.ldc = vectors(p.n) + padding.c;
  return p;
}

inline Problem scaled(Problem p, float alpha, float beta) {
  p.alpha = alpha;
  p.beta = beta;
  return p;
}

inline Layout layout_a(const Problem& p, std::int64_t offset = 0) {
  return tile::matrix_layout(p.type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda,
                             offset);
}
inline Layout layout_b(const Problem& p, std::int64_t offset = 0) {
  return tile::matrix_layout(p.type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb,
                             offset);
}
inline Layout layout_c(const Problem& p, std::int64_t offset = 0) {
  return tile::matrix_layout(type_of_c(p), p.m, p.n, p.ldc, offset);
}

// "m n k 65 33 9, A transposed, lda ldb ldc 68 36 33, offsets 0 1 0, alpha 1, beta 0"
inline std::string describe(const Problem& p, Three offsets) {
  auto text = [](auto... numbers) {
    std::string all;
    for (const std::int64_t x : {numbers...}) all += (all.empty() ? "" : " ") + std::to_string(x);
    return all;
  };
  return "m n k " + text(p.m, p.n, p.k) + (p.transpose_a ? ", A transposed" : "") +
         (p.transpose_b ? ", B transposed" : "") + ", lda ldb ldc " + text(p.lda, p.ldb, p.ldc) +
         ", offsets " + text(offsets.a, offsets.b, offsets.c) + ", alpha " +
         std::to_string(p.alpha) + ", beta " + std::to_string(p.beta) +
         (p.activation == Activation::relu ? ", relu" : "") +
         (p.activation == Activation::gelu ? ", gelu" : "");
}

/// The matrices as they are stored, without padding. c is what C holds before; no bias is an empty
/// one, and so is a scale.
struct Inputs {
  Values a, b, c, bias = {}, a_scale = {}, b_scale = {};

  double scale() const {
    return (a_scale.empty() ? 1 : a_scale.front()) * (b_scale.empty() ? 1 : b_scale.front());
  }
};

// C rounds to its type once: every partial sum is an integer that fp32 holds.
inline Inputs integers(const Problem& p, std::int64_t most = 8) {
  return {tile::integers(p.m * p.k, p.type, 1, -most, most),
          tile::integers(p.k * p.n, p.type, 2, -most, most),
          tile::integers(p.m * p.n, p.type, 3, -8, 8)};
}

inline Inputs normal(const Problem& p) {
  return {tile::normal(p.m * p.k, p.type, 4), tile::normal(p.k * p.n, p.type, 5),
          tile::normal(p.m * p.n, p.type, 6)};
}

// What a multiplier makes of the elements of A and B: of tf32 it sees the nearest number of 11
// bits, and of two as near the greater in magnitude (PTX ISA, cvt.rna.tf32).
inline Values multiplied(Values values, DType type) {
  if (type != DType::tf32) return values;
  for (double& x : values) {
    int exponent = 0;
    const double significand = std::frexp(x, &exponent);
    x = std::ldexp(std::round(std::ldexp(significand, 11)), exponent - 11);
  }
  return values;
}

// The element of op(A) at (row, l), and of op(B) at (l, col).
inline double& element_of_a(Inputs& in, const Problem& p, std::int64_t row, std::int64_t l) {
  return in.a[static_cast<std::size_t>(p.transpose_a ? l * p.m + row : row * p.k + l)];
}
inline double& element_of_b(Inputs& in, const Problem& p, std::int64_t l, std::int64_t col) {
  return in.b[static_cast<std::size_t>(p.transpose_b ? col * p.k + l : l * p.n + col)];
}

/// What the inputs promise about the sums, and so how far off a correct kernel may be.
enum class Sums {
  exact,      ///< no addition rounds, and C's type rounds once: not at all
  zero_mean,  ///< roundings cancel
  any,
};

// ---- Running a step ----

// Sums of zeros may be either zero.
inline Values without_negative_zeros(Values values) {
  for (double& x : values) {
    if (x == 0) x = 0;
  }
  return values;
}

inline tile::Expected expected_of(const Step& step, const Problem& p, const Inputs& in, Sums sums) {
  if (sums != Sums::exact) {
    return reference(p, in.a, in.b, in.c, sums == Sums::zero_mean, in.bias, !step.rounds_twice,
                     in.scale());
  }
  tile::Expected expected = reference(p, multiplied(in.a, p.type), multiplied(in.b, p.type), in.c,
                                      false, in.bias, false, in.scale(), true);
  expected.value = without_negative_zeros(tile::rounded(expected.value, type_of_c(p)));
  return expected;
}

// Step stream_k is the fastest where C has many tiles, and k is long; split_k where C has few, and
// k is longer still. Here they take all that their kernels can compute.
inline const auto kTestedSteps = [] {
  auto steps = std::to_array(kSteps);
  for (Ladder::Step& step : steps) {
    if (step.name == "stream_k") step.takes = can_stream_k;
    if (step.name == "split_k") step.takes = takes_padded_boxes;
  }
  return steps;
}();
inline const Ladder kTested{.name = kLadder.name,
                            .kernels = kLadder.kernels,
                            .steps = kTestedSteps,
                            .validate = kLadder.validate,
                            .is_empty = kLadder.is_empty};

/// A problem that the step's own kernel takes, if rows that begin at multiples of 16 bytes are all
/// that it lacks: TMA copies no others.
inline Problem with_rows_for(const Step& step, const Problem& p) {
  return step.needs.contains(tile::Feature::tma) ? padded(p, {0, 0, 0}) : p;
}

/// The bytes of the workspace of the step or, if that needs none, of the one that runs instead.
inline std::int64_t most_workspace(const Step& step, const Problem& p) {
  std::int64_t most = 0;
  for (const Ladder::Step& each : kSteps) {
    if (each.types.contains(p.type)) most = std::max(most, workspace_bytes_of(each, p));
    if (each.name == step.name) break;
  }
  return most;
}

/// Whether TMA's rule excludes the problem, and no other step takes its type.
inline bool is_refused(const Problem& p, const Buffers& buffers) {
  if (p.type != DType::e4m3 || p.k == 0 || p.alpha == 0) return false;
  const auto breaks = [](const void* data, std::int64_t ld_bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 != 0 || ld_bytes % 16 != 0;
  };
  return breaks(buffers.a, p.lda) || breaks(buffers.b, p.ldb) || breaks(buffers.c, 2 * p.ldc);
}

// Runs the step on these inputs, and checks the result and the buffers. What C held must not matter
// if beta is 0: the step runs with poison in it.
inline void check_step(const Step& step, const Problem& given, const Inputs& in, Sums sums,
                       Three offsets = {0, 0, 0}, std::int64_t bias_offset = 0) {
  const bool on_purpose =
      given.ldc != given.n || offsets.a != 0 || offsets.b != 0 || offsets.c != 0;
  const Problem p = on_purpose ? given : with_rows_for(step, given);
  CAPTURE(step.name);
  const std::string type(tile::name(p.type));
  CAPTURE(type);
  const std::string problem = describe(p, offsets);
  CAPTURE(problem);
  const tile::Expected expected = expected_of(step, p, in, sums);

  auto check = [&](DeviceBuffer device_c) {
    DeviceBuffer device_a = DeviceBuffer::input("a", layout_a(p, offsets.a), in.a);
    DeviceBuffer device_b = DeviceBuffer::input("b", layout_b(p, offsets.b), in.b);
    DeviceBuffer device_bias = DeviceBuffer::input(
        "bias", tile::vector_layout(type_of_c(p), std::ssize(in.bias), bias_offset), in.bias);
    const auto scale = [](const char* name, const Values& value) {
      return DeviceBuffer::input(name, tile::vector_layout(DType::fp32, std::ssize(value)), value);
    };
    DeviceBuffer a_scale = scale("a_scale", in.a_scale), b_scale = scale("b_scale", in.b_scale);
    DeviceBuffer workspace = DeviceBuffer::output(
        "workspace", tile::vector_layout(DType::fp32, most_workspace(step, p) / 4),
        tile::kOutputPoisons[0]);
    Buffers buffers{device_a.raw(), device_b.raw(), device_c.raw()};
    buffers.workspace_bytes = most_workspace(step, p);
    if (buffers.workspace_bytes > 0) buffers.workspace = workspace.raw();
    if (!in.bias.empty()) buffers.bias = device_bias.raw();
    if (!in.a_scale.empty()) buffers.a_scale = static_cast<const float*>(a_scale.raw());
    if (!in.b_scale.empty()) buffers.b_scale = static_cast<const float*>(b_scale.raw());
    const Status done = tile::run_step(step, p, buffers);
    if (is_refused(p, buffers)) {
      CHECK(done.code == tile::Code::unsupported);
      return;
    }
    REQUIRE_MESSAGE(done.ok(), done.message);
    Values result = device_c.download();
    if (sums == Sums::exact) result = without_negative_zeros(std::move(result));
    const Comparison comparison = tile::compare("c", result, expected);
    CHECK_MESSAGE(comparison.ok(), comparison.message);
    for (const DeviceBuffer* buffer :
         {&device_a, &device_b, &device_c, &device_bias, &a_scale, &b_scale, &workspace}) {
      const Status intact = buffer->check();
      CHECK_MESSAGE(intact.ok(), intact.message);
    }
  };
  if (p.beta == 0) {
    for (const Poison poison : tile::poisons_for({&expected})) {
      check(DeviceBuffer::output("c", layout_c(p, offsets.c), poison));
    }
  } else {
    check(DeviceBuffer::in_out("c", layout_c(p, offsets.c), in.c));
  }
}

// ---- Sizes ----

// Around the tiles of all steps, one and two of them; and primes.
inline constexpr std::int64_t kExtents[] = {1,  2,  3,  7,  8,  9,   15,  16,  17,  31,  32, 33,
                                            63, 64, 65, 71, 97, 113, 127, 128, 129, 255, 257};
inline constexpr std::int64_t kExtentCount = std::size(kExtents);

// In round r each extent comes once on each axis, with others on the other two. The count is prime,
// so that the multiples of a number meet all.
static_assert(kExtentCount == 23);
inline Shape shape_of(std::int64_t i, std::int64_t round) {
  return {kExtents[i], kExtents[(5 * i + 3 + round) % kExtentCount],
          kExtents[(7 * i + 11 + 2 * round) % kExtentCount]};
}

}  // namespace matmul
