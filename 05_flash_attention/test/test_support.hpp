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
inline constexpr bool kIsForward = std::is_same_v<Step, tile::TestedStep<ForwardLadder>>;

// ---- Problems ----

/// A problem with lengths and offsets, the elements from a 256-byte boundary to each tensor.
/// A backward problem has the same options; its gradients have strides and offsets of their own.
struct Case {
  AttentionForward p;
  std::vector<int> query_lengths = {}, key_lengths = {};
  struct Offsets {
    std::int64_t q = 0, k = 0, v = 0, o = 0, dout = 0, dq = 0, dk = 0, dv = 0;
  } offset = {};
  std::optional<Strides> dout = {}, dq = {}, dk = {}, dv = {};  // none: without gaps

  AttentionBackward backward() const {
    AttentionBackward b{p};
    b.q = p.q, b.k = p.k, b.v = p.v, b.o = p.o;
    if (dout) b.dout.stride = *dout;
    if (dq) b.dq.stride = *dq;
    if (dk) b.dk.stride = *dk;
    if (dv) b.dv.stride = *dv;
    return b;
  }
};

struct Sizes {
  std::int64_t batch, heads, kv_heads, queries, keys, head_dim;
};

inline Case full(DType type, const Sizes& n) {
  AttentionForward p{{.type = type,
                      .batch = n.batch,
                      .heads = n.heads,
                      .queries = n.queries,
                      .keys = n.keys,
                      .head_dim = n.head_dim,
                      .kv_heads = n.kv_heads}};
  p.scale = 1 / std::sqrt(static_cast<float>(n.head_dim));
  return {p};
}
inline Case windowed(Case c, std::int64_t left, std::int64_t right) {
  c.p.left = left, c.p.right = right;
  return c;
}
inline Case causal(const Case& c) { return windowed(c, kUnlimited, 0); }

inline std::string describe(const Case& c) {
  const AttentionForward& p = c.p;
  std::string text(tile::name(p.type));
  const auto add = [&text](const char* name, std::int64_t n) {
    text.append(", ").append(name).append(" ").append(std::to_string(n));
  };
  add("batch", p.batch), add("heads", p.heads), add("kv_heads", p.kv_heads);
  add("queries", p.queries), add("keys", p.keys), add("head_dim", p.head_dim);
  if (p.left < kUnlimited) add("left", p.left);
  if (p.right < kUnlimited) add("right", p.right);
  for (const int n : c.query_lengths) add("query length", n);
  for (const int n : c.key_lengths) add("key length", n);
  add("q's row stride", p.q.stride.row), add("k's", p.k.stride.row);
  add("v's", p.v.stride.row), add("o's", p.o.stride.row);
  add("offsets", c.offset.q), add("", c.offset.k), add("", c.offset.v), add("", c.offset.o);
  return text;
}

/// Whether the step's own kernel runs it.
template <class Step>
bool takes(const Step& step, const Case& c) {
  const auto at = [&c](std::int64_t elements) {
    const auto size = static_cast<std::int64_t>(tile::size_bytes(c.p.type));
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(256 + elements * size));
  };
  const auto place = [&](auto p) {
    p.q.data = at(c.offset.q), p.k.data = at(c.offset.k), p.v.data = at(c.offset.v);
    p.o.data = at(c.offset.o);
    p.workspace_bytes = workspace_bytes_of(step, p);
    return p;
  };
  if constexpr (kIsForward<Step>) {
    return tile::is_taken(step, place(c.p));
  } else {
    AttentionBackward p = place(c.backward());
    p.dout.data = at(c.offset.dout);
    p.dq.data = at(c.offset.dq), p.dk.data = at(c.offset.dk), p.dv.data = at(c.offset.dv);
    return tile::is_taken(step, p);
  }
}

/// The case itself; for a step that takes few queries only, with few of its queries.
template <class Step>
Case fitted(const Step& step, const Case& c) {
  Case few = c;
  few.p.queries = std::min<std::int64_t>(c.p.queries, kMostSplitQueries);
  for (int& length : few.query_lengths) length = std::min(length, kMostSplitQueries);
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

/// [batch][heads][queries] as [batch][queries][heads].
inline Values heads_last(const AttentionForward& p, const Values& lse) {
  Values transposed;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t query = 0; query < p.queries; ++query) {
      for (std::int64_t head = 0; head < p.heads; ++head) {
        transposed.push_back(
            lse[static_cast<std::size_t>((b * p.heads + head) * p.queries + query)]);
      }
    }
  }
  return transposed;
}

/// Runs the step with outputs of this poison and gives what it wrote. Checks all buffers.
template <class Step>
Outputs run(const Step& step, const Case& c, const Inputs& in,
            Poison poison = Poison::unwritten_nan) {
  AttentionForward p = c.p;
  const Tensor::Shape q_shape{p.batch, p.queries, p.heads, p.head_dim};
  const Tensor::Shape kv_shape{p.batch, p.keys, p.kv_heads, p.head_dim};
  const Tensor q = Tensor::input("q", p.type, q_shape, p.q.stride, in.q, c.offset.q);
  const Tensor k = Tensor::input("k", p.type, kv_shape, p.k.stride, in.k, c.offset.k);
  const Tensor v = Tensor::input("v", p.type, kv_shape, p.v.stride, in.v, c.offset.v);
  const Tensor o = Tensor::output("o", p.type, q_shape, p.o.stride, poison, c.offset.o);
  const DeviceBuffer lse = DeviceBuffer::output(
      "lse", tile::vector_layout(DType::fp32, p.batch * p.heads * p.queries), poison);
  const std::int64_t bytes = workspace_bytes_of(step, p);
  const DeviceBuffer workspace =
      DeviceBuffer::output("workspace", tile::vector_layout(DType::fp32, bytes / 4), poison);
  const auto query_lengths = lengths_buffer("query_lengths", c.query_lengths);
  const auto key_lengths = lengths_buffer("key_lengths", c.key_lengths);
  const auto ints = [](const std::optional<DeviceBuffer>& buffer) {
    return buffer ? static_cast<const int*>(buffer->raw()) : nullptr;
  };
  p.q.data = q.raw(), p.k.data = k.raw(), p.v.data = v.raw(), p.o.data = o.raw();
  p.lse = static_cast<float*>(lse.raw());
  p.query_lengths = ints(query_lengths), p.key_lengths = ints(key_lengths);
  p.workspace = workspace.raw(), p.workspace_bytes = bytes;
  const Status done = tile::run_step(step, p);
  REQUIRE_MESSAGE(done.ok(), done.message);
  for (const Tensor* tensor : {&q, &k, &v, &o}) {
    const Status intact = tensor->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
  for (const DeviceBuffer* buffer : {&lse, &workspace}) {
    const Status intact = buffer->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
  return {o.download(), heads_last(p, lse.download())};
}

inline void check_values(const char* name, const Values& got, const tile::Expected& expected) {
  const Comparison comparison = tile::compare(name, got, expected);
  CHECK_MESSAGE(comparison.ok(), comparison.message);
}

inline ForwardExpected expected_of(const Case& c, const Inputs& in) {
  return reference(c.p, {in.q, in.k, in.v, c.query_lengths, c.key_lengths});
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

/// [batch][queries][heads] as [batch][heads][queries].
inline Values heads_first(const AttentionForward& p, const Values& lse) {
  Values transposed;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      for (std::int64_t query = 0; query < p.queries; ++query) {
        transposed.push_back(
            lse[static_cast<std::size_t>((b * p.queries + query) * p.heads + head)]);
      }
    }
  }
  return transposed;
}

/// The same for a step of the backward pass.
template <class Step>
Gradients run(const Step& step, const Case& c, const Inputs& in, const BackwardOnly& more,
              Poison poison = Poison::unwritten_nan) {
  AttentionBackward p = c.backward();
  const Tensor::Shape q_shape{p.batch, p.queries, p.heads, p.head_dim};
  const Tensor::Shape kv_shape{p.batch, p.keys, p.kv_heads, p.head_dim};
  const Tensor q = Tensor::input("q", p.type, q_shape, p.q.stride, in.q, c.offset.q);
  const Tensor k = Tensor::input("k", p.type, kv_shape, p.k.stride, in.k, c.offset.k);
  const Tensor v = Tensor::input("v", p.type, kv_shape, p.v.stride, in.v, c.offset.v);
  const Tensor o = Tensor::input("o", p.type, q_shape, p.o.stride, more.o, c.offset.o);
  const Tensor dout =
      Tensor::input("dout", p.type, q_shape, p.dout.stride, more.dout, c.offset.dout);
  const DeviceBuffer lse = DeviceBuffer::input(
      "lse", tile::vector_layout(DType::fp32, std::ssize(more.lse)), heads_first(c.p, more.lse));
  const Tensor dq = Tensor::output("dq", p.type, q_shape, p.dq.stride, poison, c.offset.dq);
  const Tensor dk = Tensor::output("dk", p.type, kv_shape, p.dk.stride, poison, c.offset.dk);
  const Tensor dv = Tensor::output("dv", p.type, kv_shape, p.dv.stride, poison, c.offset.dv);
  const std::int64_t bytes = workspace_bytes_of(step, p);
  const DeviceBuffer workspace =
      DeviceBuffer::output("workspace", tile::vector_layout(DType::fp32, bytes / 4), poison);
  const auto query_lengths = lengths_buffer("query_lengths", c.query_lengths);
  const auto key_lengths = lengths_buffer("key_lengths", c.key_lengths);
  const auto ints = [](const std::optional<DeviceBuffer>& buffer) {
    return buffer ? static_cast<const int*>(buffer->raw()) : nullptr;
  };
  p.q.data = q.raw(), p.k.data = k.raw(), p.v.data = v.raw(), p.o.data = o.raw();
  p.lse = static_cast<const float*>(lse.raw());
  p.dout.data = dout.raw(), p.dq.data = dq.raw(), p.dk.data = dk.raw(), p.dv.data = dv.raw();
  p.query_lengths = ints(query_lengths), p.key_lengths = ints(key_lengths);
  p.workspace = workspace.raw(), p.workspace_bytes = bytes;
  const Status done = tile::run_step(step, p);
  REQUIRE_MESSAGE(done.ok(), done.message);
  for (const Tensor* tensor : {&q, &k, &v, &o, &dout, &dq, &dk, &dv}) {
    const Status intact = tensor->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
  for (const DeviceBuffer* buffer : {&lse, &workspace}) {
    const Status intact = buffer->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
  return {dq.download(), dk.download(), dv.download()};
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
  if constexpr (kIsForward<Step>) {
    const ForwardExpected expected = expected_of(c, in);
    const Outputs got = run(step, c, in, poison_in_turn());
    check_values("o", got.o, expected.o);
    check_values("lse", got.lse, expected.lse);
  } else {
    const BackwardOnly more = backward_only(c, in);
    const BackwardExpected expected = expected_of(c, in, more);
    const Gradients got = run(step, c, in, more, poison_in_turn());
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
