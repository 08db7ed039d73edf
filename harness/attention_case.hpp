// Shared by the tests of attention, chapters 05 to 07: calls with lengths, strides and offsets, how
// a step runs one of them, and what it is compared with.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "harness/attention_reference.hpp"
#include "harness/buffer.hpp"
#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "harness/pairs.hpp"
#include "harness/tensor.hpp"
#include "harness/test_main.hpp"
#include "tile/host/attention.hpp"

namespace tile {

/// A call with lengths and offsets, the elements from a 256-byte boundary to each tensor. A
/// backward call has the same options; its gradients have strides and offsets of their own.
struct AttentionCase {
  AttentionForward p;
  std::vector<int> query_lengths = {}, key_lengths = {};
  std::vector<int> positions = {};  // of a rotation, [batch][queries]; none: they count
  std::vector<double> q_scale = {}, k_scale = {}, v_scale = {};  // [batch][kv_heads]; none: 1
  struct Offsets {
    std::int64_t q = 0, k = 0, v = 0, o = 0, dout = 0, dq = 0, dk = 0, dv = 0;
    std::int64_t q_far = 0, k_far = 0, dq_far = 0, dk_far = 0, tables = 0;
  } offset = {};
  std::optional<Strides> dout = {}, dq = {}, dk = {}, dv = {};  // none: without gaps
  std::optional<Strides> dq_far = {}, dk_far = {};
  bool has_far_pair = false, wants_lse = true;

  bool is_rotated() const { return p.rotary.rotary_dim > 0 || p.rotary.far != FarRotation::none; }
  AttentionBackward backward() const {
    AttentionBackward b{static_cast<const Attention&>(p)};
    b.q = p.q, b.k = p.k, b.v = p.v, b.o = p.o, b.q_far = p.q_far, b.k_far = p.k_far;
    if (dout) b.dout.stride = *dout;
    if (dq) b.dq.stride = *dq;
    if (dk) b.dk.stride = *dk;
    if (dv) b.dv.stride = *dv;
    if (dq_far) b.dq_far.stride = *dq_far;
    if (dk_far) b.dk_far.stride = *dk_far;
    return b;
  }
  template <class Call>
  Call call() const {
    if constexpr (std::is_same_v<Call, AttentionForward>) {
      return p;
    } else {
      return backward();
    }
  }
};

inline std::string describe(const AttentionCase& c) {
  const AttentionForward& p = c.p;
  std::string text(name(p.type));
  const auto add = [&text](const char* name, std::int64_t n) {
    text.append(", ").append(name).append(" ").append(std::to_string(n));
  };
  add("batch", p.batch), add("heads", p.heads), add("kv_heads", p.kv_heads);
  add("queries", p.queries), add("keys", p.keys), add("head_dim", p.head_dim);
  if (p.left < kUnlimited) add("left", p.left);
  if (p.right < kUnlimited) add("right", p.right);
  if (p.window < kUnlimited) add("window", p.window);
  if (p.rotary.rotary_dim > 0) {
    add("rotary_dim", p.rotary.rotary_dim), add("far", static_cast<int>(p.rotary.far));
    text += p.rotary.layout == RotaryLayout::half_split ? ", half_split" : ", interleaved";
  }
  if (p.rotary.first_position > 0) add("first_position", p.rotary.first_position);
  for (const int n : c.query_lengths) add("query length", n);
  for (const int n : c.key_lengths) add("key length", n);
  add("q's row stride", p.q.stride.row), add("k's", p.k.stride.row);
  add("v's", p.v.stride.row), add("o's", p.o.stride.row);
  add("offsets", c.offset.q), add("", c.offset.k), add("", c.offset.v), add("", c.offset.o);
  if (!c.has_far_pair) return text;
  add("q_far's row stride", p.q_far.stride.row), add("k_far's", p.k_far.stride.row);
  add("offsets", c.offset.q_far), add("", c.offset.k_far);
  return text;
}

/// Whether the step's own kernel runs the case.
template <class Call>
bool takes(const TestedStep<Ladder<Call>>& step, const AttentionCase& c) {
  const auto place = [&c](TensorView& x, std::int64_t elements, bool is_output = false) {
    const DType type = is_output ? output_type(c.p) : c.p.type;
    const auto size = static_cast<std::int64_t>(size_bytes(type));
    x.data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(256 + elements * size));
  };
  const AttentionCase::Offsets& at = c.offset;
  Call p = c.call<Call>();
  place(p.q, at.q), place(p.k, at.k), place(p.v, at.v), place(p.o, at.o, true);
  if (c.has_far_pair) place(p.q_far, at.q_far), place(p.k_far, at.k_far);
  if constexpr (std::is_same_v<Call, AttentionBackward>) {
    place(p.dout, at.dout), place(p.dq, at.dq), place(p.dk, at.dk), place(p.dv, at.dv);
    if (c.has_far_pair) place(p.dq_far, at.dq_far), place(p.dk_far, at.dk_far);
  }
  if (!c.positions.empty()) p.rotary.positions = c.positions.data();
  if (c.is_rotated()) {
    p.rotary.cos = p.rotary.sin =
        reinterpret_cast<const float*>(static_cast<std::uintptr_t>(256 + at.tables * 4));
  }
  p.workspace_bytes = workspace_bytes_of(step, p);
  return is_taken(step, p);
}

// ---- Drawn options ----

struct HeadCounts {
  std::int64_t batch, heads, kv_heads;
};
/// Ten heads in all are more than blocks take in a section (tile/heads.cuh), nine heads of keys
/// more than three bits count. Of three heads of queries that share one of keys none can be packed,
/// of six each two.
inline constexpr HeadCounts kHeadCounts[] = {{2, 5, 5}, {1, 9, 9}, {1, 6, 2}, {2, 6, 1}};

struct Lengths {
  std::int64_t queries, keys;
};
/// On both sides of tiles of 16, 32 and 64, and within them.
inline constexpr Lengths kLengths[] = {{65, 33}, {33, 64}, {16, 70}, {1, 97}};
/// For steps that take their time on the CPU device.
inline constexpr Lengths kShortLengths[] = {{17, 33}, {16, 20}, {1, 40}, {35, 8}};

/// Which of them batch entries have for themselves.
enum class OwnLengths { none, queries, keys, both };
inline constexpr OwnLengths kOwnLengths[] = {OwnLengths::none, OwnLengths::queries,
                                             OwnLengths::keys, OwnLengths::both};

/// Without gaps; heads first; and as if in one tensor, a token's heads of all beside one another.
enum class Places { packed, heads_first, side_by_side };
inline constexpr Places kPlaces[] = {Places::packed, Places::heads_first, Places::side_by_side};

/// A call with the options that all attention has, each of its values with each value of the
/// others. The mask is left to the caller.
inline AttentionCase drawn_case(Pick& pick, DType type, std::span<const std::int64_t> head_dims,
                                std::span<const Lengths> lengths,
                                std::span<const OwnLengths> own_lengths = kOwnLengths) {
  const HeadCounts n = pick(kHeadCounts);
  const std::int64_t batch = n.batch, heads = n.heads, kv_heads = n.kv_heads;
  const std::int64_t dim = pick(head_dims);
  const auto [queries, keys] = pick(lengths);
  AttentionCase c{
      attention_call<AttentionForward>(type, {batch, heads, kv_heads, queries, keys, dim})};
  const OwnLengths own = pick(own_lengths);
  for (int entry = 0; entry < batch; ++entry) {
    // The last entry has all queries, or no key.
    const std::int64_t some_queries = entry > 0 ? queries : (2 * queries + 2) / 3;
    const std::int64_t some_keys = entry > 0 ? 0 : 2 * keys / 3;
    if (own == OwnLengths::queries || own == OwnLengths::both) {
      c.query_lengths.push_back(static_cast<int>(some_queries));
    }
    if (own == OwnLengths::keys || own == OwnLengths::both) {
      c.key_lengths.push_back(static_cast<int>(some_keys));
    }
  }
  if (pick({false, true})) c.p.scale = 0.2f;
  c.wants_lse = pick({true, false});
  if (type == DType::e4m3 && pick({true, false})) {
    std::int64_t next = 0;  // of 0.5, 0.75, … 2
    for (std::vector<double>* scales : {&c.q_scale, &c.k_scale, &c.v_scale}) {
      for (std::int64_t i = 0; i < batch * kv_heads; ++i) {
        scales->push_back(0.5 + 0.25 * static_cast<double>(next++ % 7));
      }
    }
  }
  const Places places = pick(kPlaces);
  if (places == Places::packed) return c;
  std::int64_t turn = 0;  // gaps and offsets of whole chunks, of each tensor its own
  const auto place = [&](std::int64_t length, std::int64_t count, std::int64_t* offset) -> Strides {
    const std::int64_t gap = (type == DType::e4m3 ? 16 : 8) * (turn++ % 5);
    if (places == Places::heads_first) return heads_first(length, count, dim, gap);
    *offset = gap;
    const std::int64_t row = 2 * (heads + kv_heads) * dim;
    return {length * row, dim, row};
  };
  AttentionCase::Offsets& at = c.offset;
  c.p.q.stride = place(queries, heads, &at.q), c.p.k.stride = place(keys, kv_heads, &at.k);
  c.p.q_far.stride = place(queries, heads, &at.q_far);
  c.p.k_far.stride = place(keys, kv_heads, &at.k_far);
  c.p.v.stride = place(keys, kv_heads, &at.v), c.p.o.stride = place(queries, heads, &at.o);
  c.dout = place(queries, heads, &at.dout), c.dq = place(queries, heads, &at.dq);
  c.dk = place(keys, kv_heads, &at.dk), c.dv = place(keys, kv_heads, &at.dv);
  c.dq_far = place(queries, heads, &at.dq_far), c.dk_far = place(keys, kv_heads, &at.dk_far);
  return c;
}

/// Those of a list of values of which the step's own kernel takes `make(value)`.
template <class Step, class List, class Make>
auto taken(const Step& step, const List& list, const Make& make) {
  std::vector<std::remove_cvref_t<decltype(*std::begin(list))>> some;
  std::ranges::copy_if(list, std::back_inserter(some),
                       [&](const auto& value) { return takes(step, make(value)); });
  return some;
}

/// [batch][heads][queries] as [batch][queries][heads], or back.
inline std::vector<double> transposed_lse(const Attention& p, const std::vector<double>& lse,
                                          bool heads_first) {
  std::vector<double> transposed(lse.size());
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

/// What a step wrote, by name: o and lse ([batch][queries][heads]), or the gradients.
struct AttentionResult {
  const char* name;
  std::vector<double> values;
};
using AttentionResults = std::vector<AttentionResult>;

inline void check_intact(std::initializer_list<Status> all) {
  for (const Status& intact : all) CHECK_MESSAGE(intact.ok(), intact.message);
}

/// Runs a step of either pass with outputs of this poison, and with these tables if the case is
/// rotated. Checks all buffers.
template <class Call>
AttentionResults run_attention(const TestedStep<Ladder<Call>>& step, const AttentionCase& c,
                               const AttentionRows& in, Poison poison,
                               std::span<const float> cos = {}, std::span<const float> sin = {}) {
  constexpr bool kIsForward = std::is_same_v<Call, AttentionForward>;
  Call p = c.call<Call>();
  const AttentionCase::Offsets& at = c.offset;
  const Tensor::Shape of_q{p.batch, p.queries, p.heads, p.head_dim};
  const Tensor::Shape of_k{p.batch, p.keys, p.kv_heads, p.head_dim};
  std::deque<Tensor> tensors;  // all of the call's
  std::vector<std::pair<const char*, const Tensor*>> outputs;
  const auto input = [&](const char* name, const Tensor::Shape& shape, TensorView& x,
                         const std::vector<double>& values, std::int64_t offset) {
    tensors.push_back(Tensor::input(name, p.type, shape, x.stride, values, offset));
    x.data = tensors.back().raw();
  };
  const auto output = [&](const char* name, const Tensor::Shape& shape, TensorView& x,
                          std::int64_t offset) {
    tensors.push_back(Tensor::output(name, output_type(p), shape, x.stride, poison, offset));
    outputs.emplace_back(name, &tensors.back());
    x.data = tensors.back().raw();
  };
  input("q", of_q, p.q, in.q, at.q), input("k", of_k, p.k, in.k, at.k);
  input("v", of_k, p.v, in.v, at.v);
  if (c.has_far_pair) {
    input("q_far", of_q, p.q_far, in.q_far, at.q_far);
    input("k_far", of_k, p.k_far, in.k_far, at.k_far);
  }
  const Layout of_lse = vector_layout(DType::fp32, p.batch * p.heads * p.queries);
  std::optional<DeviceBuffer> lse;
  if constexpr (kIsForward) {
    output("o", of_q, p.o, at.o);
    lse = DeviceBuffer::output("lse", of_lse, poison);
    p.lse = c.wants_lse ? static_cast<float*>(lse->raw()) : nullptr;
  } else {
    input("o", of_q, p.o, in.o, at.o), input("dout", of_q, p.dout, in.dout, at.dout);
    lse = DeviceBuffer::input("lse", of_lse, transposed_lse(p, in.lse, true));
    p.lse = static_cast<const float*>(lse->raw());
    output("dq", of_q, p.dq, at.dq), output("dk", of_k, p.dk, at.dk);
    if (c.has_far_pair) {
      output("dq_far", of_q, p.dq_far, at.dq_far), output("dk_far", of_k, p.dk_far, at.dk_far);
    }
    output("dv", of_k, p.dv, at.dv);
  }
  const auto query_lengths = lengths_buffer("query_lengths", c.query_lengths);
  const auto key_lengths = lengths_buffer("key_lengths", c.key_lengths);
  const auto ints = [](const std::optional<DeviceBuffer>& buffer) {
    return buffer ? static_cast<const int*>(buffer->raw()) : nullptr;
  };
  p.query_lengths = ints(query_lengths), p.key_lengths = ints(key_lengths);
  const auto positions = lengths_buffer("positions", c.positions);
  p.rotary.positions = ints(positions);
  std::deque<DeviceBuffer> tables;
  const auto table = [&](const char* name, std::span<const float> values) {
    const Layout of_table = vector_layout(DType::fp32, std::ssize(values), at.tables);
    const std::vector<double> doubles(values.begin(), values.end());
    tables.push_back(DeviceBuffer::input(name, of_table, doubles));
    return static_cast<const float*>(tables.back().raw());
  };
  if (c.is_rotated()) p.rotary.cos = table("cos", cos), p.rotary.sin = table("sin", sin);
  const auto scales = [&](const char* name, const std::vector<double>& values) -> const float* {
    if (values.empty()) return nullptr;
    const Layout of_scales = vector_layout(DType::fp32, std::ssize(values));
    tables.push_back(DeviceBuffer::input(name, of_scales, values));
    return static_cast<const float*>(tables.back().raw());
  };
  p.q_scale = scales("q_scale", c.q_scale), p.k_scale = scales("k_scale", c.k_scale);
  p.v_scale = scales("v_scale", c.v_scale);
  p.workspace_bytes = workspace_bytes_of(step, p);
  if (!takes(step, c)) {  // the first one may run
    const std::int64_t more = workspace_bytes_of(step.ladder->steps[0], p);
    p.workspace_bytes = std::max(p.workspace_bytes, more);
  }
  const DeviceBuffer workspace =
      DeviceBuffer::output("workspace", vector_layout(DType::fp32, p.workspace_bytes / 4), poison);
  p.workspace = workspace.raw();

  const Status done = run_step(step, p);
  REQUIRE_MESSAGE(done.ok(), done.message);
  for (const Tensor& tensor : tensors) check_intact({tensor.check()});
  for (const DeviceBuffer& each : tables) check_intact({each.check()});
  check_intact({lse->check(), workspace.check()});
  AttentionResults results;
  for (const auto& [name, tensor] : outputs) results.push_back({name, tensor->download()});
  if (kIsForward && c.wants_lse) {
    results.push_back({"lse", transposed_lse(p, lse->download(), false)});
  }
  return results;
}

/// Random values of all inputs but o and lse.
inline AttentionRows random_rows(const AttentionCase& c, std::uint64_t seed) {
  const AttentionForward& p = c.p;
  const auto random = [&](std::int64_t rows, std::int64_t heads) {
    return normal(p.batch * rows * heads * p.head_dim, p.type, seed++);
  };
  AttentionRows in;
  in.q = random(p.queries, p.heads), in.k = random(p.keys, p.kv_heads);
  if (c.has_far_pair) {
    in.q_far = random(p.queries, p.heads), in.k_far = random(p.keys, p.kv_heads);
  }
  in.v = random(p.keys, p.kv_heads), in.dout = random(p.queries, p.heads);
  return in;
}

/// Sets o and lse to what the forward pass gives the backward pass, as the types hold it.
inline void add_outputs(const AttentionExpected& forward, DType type, AttentionRows* in) {
  in->o = rounded(forward.o.value, type);
  in->lse = rounded(forward.lse.value, DType::fp32);
}

/// What a step should write, in the order of the AttentionResults.
inline std::vector<Expected> in_order(AttentionExpected expected) {
  return {std::move(expected.o), std::move(expected.lse)};
}
inline std::vector<Expected> in_order(AttentionGradients expected, bool has_far_pair = false) {
  if (!has_far_pair) {
    return {std::move(expected.dq), std::move(expected.dk), std::move(expected.dv)};
  }
  return {std::move(expected.dq), std::move(expected.dk), std::move(expected.far_dq),
          std::move(expected.far_dk), std::move(expected.dv)};
}

inline void check_values(const AttentionResult& got, const Expected& expected) {
  const Comparison comparison = compare(got.name, got.values, expected);
  CHECK_MESSAGE(comparison.ok(), comparison.message);
}
inline void check_values(const AttentionResults& got, const std::vector<Expected>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) check_values(got[i], expected.at(i));
}

/// Checks that the gradients are the slopes of sum(o dout), where o is the reference `outputs(in)`
/// in fp64.
template <class Outputs>
void check_slopes(AttentionRows in, const AttentionGradients& gradients, const Outputs& outputs) {
  const auto loss = [&] {
    const AttentionExpected forward = outputs(in);
    const std::vector<double>& o = forward.o.value;
    return std::inner_product(o.begin(), o.end(), in.dout.begin(), 0.0);
  };
  constexpr double kStep = 6e-6;
  for (const auto& [values, slope] : {std::pair{&in.q, &gradients.dq.value},
                                      {&in.k, &gradients.dk.value},
                                      {&in.q_far, &gradients.far_dq.value},
                                      {&in.k_far, &gradients.far_dk.value},
                                      {&in.v, &gradients.dv.value}}) {
    if (values->empty()) continue;  // there is no far pair
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

/// For long lists, whose cases need not run with each poison.
inline Poison poison_in_turn() {
  static std::size_t turn = 0;
  return kOutputPoisons[++turn % std::size(kOutputPoisons)];
}

}  // namespace tile
