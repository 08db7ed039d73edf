// Attention with rotation by the C interface, called as a C program calls it.
#include <cmath>
#include <cstddef>

#include "06_rope/attention/reference.hpp"
#include "06_rope/test/rotation.hpp"
#include "harness/c/test_support.hpp"
#include "harness/convert.hpp"
#include "harness/test_main.hpp"

namespace rotary_attention_test {
namespace {

using rope::AttentionBackward;
using rope::AttentionForward;
using rope::Strides;

constexpr std::int64_t kBatch = 2, kLength = 7, kHeads = 4, kDim = 64, kTablePositions = 12;

struct Case {
  std::int64_t kv_heads;    // 0: as many as there are of q
  std::int64_t rotary_dim;  // 0: all of a row is rotated
  std::int64_t padding;     // elements between rows; 0: strides are left 0
  std::int64_t first_position;
  double attention_factor;  // 0: left to the default, as scale
  float scale;
  bool causal, interleaved, positions;

  bool only_in_memory() const { return positions || rotary_dim > 0; }
};
constexpr Case kCases[] = {{0, 0, 0, 0, 0, 0, false, false, false},
                           {2, 0, 8, 5, 1.3, 0.25f, true, true, false},
                           {2, 32, 0, 5, 0, 0, true, false, false},
                           {1, 0, 16, 0, 0, 0, true, false, true}};
const std::vector<int> kPositions{3, 1, 4, 1, 5, 11, 2, 6, 5, 3, 5, 10, 9, 7};

std::int64_t kv_heads(const Case& c) { return c.kv_heads == 0 ? kHeads : c.kv_heads; }

// Tensors are [batch length][heads dim] in memory. Each has a distance of rows of its own.
Strides strides(const Case& c, std::int64_t heads, int tensor) {
  const std::int64_t row = heads * kDim + c.padding * tensor;
  return {kLength * row, kDim, row};
}

template <class Call>
Call call_of(const Case& c, DType type) {
  Call p{{.type = type,
          .batch = kBatch,
          .heads = kHeads,
          .queries = kLength,
          .keys = kLength,
          .head_dim = kDim,
          .kv_heads = kv_heads(c)}};
  p.right = c.causal ? 0 : tile::kUnlimited;
  p.scale = c.scale == 0 ? 0.125f : c.scale;
  p.rotary.rotary_dim = c.rotary_dim == 0 ? kDim : c.rotary_dim;
  p.rotary.layout = c.interleaved ? rope::Layout::interleaved : rope::Layout::half_split;
  p.rotary.first_position = c.first_position;
  p.rotary.table_positions = kTablePositions;
  if (c.attention_factor != 0) p.rotary.attention_factor = c.attention_factor;
  p.q.stride = strides(c, kHeads, 1), p.k.stride = strides(c, p.kv_heads, 2);
  p.v.stride = strides(c, p.kv_heads, 3), p.o.stride = strides(c, kHeads, 4);
  if constexpr (requires { p.dq; }) {
    p.dout.stride = strides(c, kHeads, 5), p.dq.stride = strides(c, kHeads, 6);
    p.dk.stride = strides(c, p.kv_heads, 7), p.dv.stride = strides(c, p.kv_heads, 8);
  }
  return p;
}

void set(std::int64_t (&to)[3], const Strides& from) {
  to[0] = from.batch, to[1] = from.head, to[2] = from.row;
}

template <class Args>
Args sizes(const Case& c, tile_type type) {
  Args args{};
  args.struct_size = sizeof args;
  args.type = type;
  args.causal = c.causal, args.scale = c.scale;
  args.batch = kBatch, args.queries = args.keys = kLength, args.heads = kHeads;
  args.head_dim = kDim, args.kv_heads = c.kv_heads;
  tile_rotation& rotation = args.rotation;
  rotation.interleaved = c.interleaved, rotation.attention_factor = c.attention_factor;
  rotation.rotary_dim = c.rotary_dim, rotation.table_positions = kTablePositions;
  rotation.first_position = c.first_position;
  if (c.padding == 0) return args;
  const auto p = call_of<AttentionBackward>(c, DType::bf16);
  set(args.q.strides, p.q.stride), set(args.k.strides, p.k.stride), set(args.v.strides, p.v.stride);
  set(args.o.strides, p.o.stride);
  if constexpr (requires { args.dq; }) {
    set(args.dout.strides, p.dout.stride), set(args.dq.strides, p.dq.stride);
    set(args.dk.strides, p.dk.stride), set(args.dv.strides, p.dv.stride);
  }
  return args;
}

// The inputs of both passes, without padding. o and lse are the reference's, rounded.
struct Inputs {
  Values q, k, v, dout, frequencies, o, lse;
  std::vector<int> positions;
  tile::AttentionExpected forward;
  tile::AttentionGradients backward;

  Inputs(const Case& c, DType type)
      : q(tile::normal(kBatch * kLength * kHeads * kDim, type, 1)),
        k(tile::normal(kBatch * kLength * kv_heads(c) * kDim, type, 2)),
        v(tile::normal(std::ssize(k), type, 3)),
        dout(tile::normal(std::ssize(q), type, 4)),
        frequencies(rope::paper_frequencies(c.rotary_dim == 0 ? kDim : c.rotary_dim)) {
    if (c.positions) positions = kPositions;
    forward =
        rope::reference(call_of<AttentionForward>(c, type), {q, k, v, frequencies, positions});
    o = tile::rounded(forward.o.value, type);
    lse = tile::rounded(forward.lse.value, type == DType::fp64 ? type : DType::fp32);
    backward = rope::reference(call_of<AttentionBackward>(c, type),
                               {q, k, v, o, lse, dout, frequencies, positions});
  }
};

tile_status call(const tile_attention_args& args) { return tile_rotary_attention(&args); }
tile_status call(const tile_attention_backward_args& args) {
  return tile_rotary_attention_backward(&args);
}
tile_status refer(const tile_attention_args& args) {
  return tile_rotary_attention_reference(&args);
}
tile_status refer(const tile_attention_backward_args& args) {
  return tile_rotary_attention_backward_reference(&args);
}
tile_status tell(const tile_attention_args& args, std::int64_t* bytes) {
  return tile_rotary_attention_workspace_bytes(&args, bytes);
}
tile_status tell(const tile_attention_backward_args& args, std::int64_t* bytes) {
  return tile_rotary_attention_backward_workspace_bytes(&args, bytes);
}

// Uploads the inputs and makes the outputs of a pass. The frequencies are left out: no kernel needs
// them.
template <class Args>
Memory place(const Case& c, DType type, const Inputs& in, Args* args) {
  const auto p = call_of<AttentionBackward>(c, type);
  const std::int64_t rows = kBatch * kLength, q_cols = kHeads * kDim, k_cols = p.kv_heads * kDim;
  Memory memory;
  args->q.data = memory.input("q", type, rows, p.q.stride.row, in.q);
  args->k.data = memory.input("k", type, rows, p.k.stride.row, in.k);
  args->v.data = memory.input("v", type, rows, p.v.stride.row, in.v);
  const rope::TestTables tables =
      rope::tables_of(in.frequencies, kTablePositions, p.rotary.attention_factor);
  const std::int64_t pairs = p.rotary.rotary_dim / 2;
  args->rotation.cos = memory.input("cos", DType::fp32, kTablePositions, pairs, tables.cos);
  args->rotation.sin = memory.input("sin", DType::fp32, kTablePositions, pairs, tables.sin);
  args->rotation.positions = memory.integers("positions", in.positions);
  const Values lse = heads_first(in.lse, kBatch, kHeads);
  if constexpr (requires { args->dq; }) {
    args->o.data = memory.input("o", type, rows, p.o.stride.row, in.o);
    args->lse = memory.input("lse", DType::fp32, 1, std::ssize(lse), lse);
    args->dout.data = memory.input("dout", type, rows, p.dout.stride.row, in.dout);
    args->dq.data = memory.output("dq", type, rows, q_cols, p.dq.stride.row, in.backward.dq);
    args->dk.data = memory.output("dk", type, rows, k_cols, p.dk.stride.row, in.backward.dk);
    args->dv.data = memory.output("dv", type, rows, k_cols, p.dv.stride.row, in.backward.dv);
  } else {
    args->o.data = memory.output("o", type, rows, q_cols, p.o.stride.row, in.forward.o);
    tile::Expected expected = in.forward.lse;
    expected.value = heads_first(expected.value, kBatch, kHeads);
    expected.bound = heads_first(expected.bound, kBatch, kHeads);
    args->lse = memory.output("lse", DType::fp32, 1, std::ssize(lse), std::ssize(lse), expected);
  }
  check_ok(tell(*args, &args->workspace_bytes));
  args->workspace = memory.scratch(args->workspace_bytes);
  return memory;
}

// Every step by its name, in each type, and the best without one.
template <class Args, class Ladder>
void check_steps(const Ladder& ladder, const Case& c) {
  for (std::size_t t = 0; t < std::size(kTypes); ++t) {
    const DType type = tile::kDTypes[t];
    Args args = sizes<Args>(c, kTypes[t]);
    if (!rope::k16Bits.contains(type)) {
      check_refused(call(args), TILE_UNSUPPORTED, "type");
      continue;
    }
    const Inputs in(c, type);
    for (std::size_t i = 0; i <= ladder.steps.size(); ++i) {
      const bool named = i < ladder.steps.size();
      const std::string name(named ? ladder.steps[i].name : "");
      CAPTURE(name);
      CAPTURE(&c - kCases);
      args.step = named ? name.c_str() : nullptr;
      const Memory memory = place(c, type, in, &args);
      check_ok(call(args));
      const std::string own = named ? name : "fused";
      CHECK(std::string(tile_last_step()) == (c.only_in_memory() ? "composed" : own));
      memory.check();
    }
  }
}

bool has_tensor_cores() {
  const Status status = tile::check_requirements(rope::k16Bits, rope::kNeeds, DType::bf16);
  if (!status.ok()) tile::skip(status.message);
  return status.ok();
}

}  // namespace

TEST_CASE("rotary attention: every step by its name, in each type, and the best without one") {
  if (!has_tensor_cores()) return;
  for (const Case& c : kCases) {
    check_steps<tile_attention_args>(rope::kAttentionLadder, c);
    check_steps<tile_attention_backward_args>(rope::kAttentionBackwardLadder, c);
  }
}

TEST_CASE("rotary attention: the references take doubles of the host") {
  constexpr double kUntouched = -77;
  for (const Case& c : kCases) {
    CAPTURE(&c - kCases);
    const Inputs in(c, DType::fp64);
    const auto p = call_of<AttentionBackward>(c, DType::fp64);
    const std::int64_t q_cols = kHeads * kDim, k_cols = p.kv_heads * kDim;
    const auto read = [&](const Values& packed, std::int64_t cols, const Strides& stride) {
      return spread(packed, cols, stride.row, kUntouched);
    };
    const auto empty = [&](const Strides& stride) {
      return Values(static_cast<std::size_t>(kBatch * kLength * stride.row), kUntouched);
    };
    // Not const, as the struct's pointers are not.
    Values q = read(in.q, q_cols, p.q.stride), k = read(in.k, k_cols, p.k.stride),
           v = read(in.v, k_cols, p.v.stride), dout = read(in.dout, q_cols, p.dout.stride),
           o_in = read(in.o, q_cols, p.o.stride), lse_in = heads_first(in.lse, kBatch, kHeads);
    const auto compute = [&](auto& args) {
      args.q.data = q.data(), args.k.data = k.data(), args.v.data = v.data();
      if (c.positions) args.rotation.positions = in.positions.data();
      const Values tables(kTablePositions * kDim / 2);  // not read
      args.rotation.cos = args.rotation.sin = tables.data();
      check_refused(refer(args), TILE_INVALID_ARGUMENT, "frequencies");
      args.rotation.cos = args.rotation.sin = nullptr;
      args.rotation.frequencies = in.frequencies.data();
      check_ok(refer(args));
    };
    auto forward = sizes<tile_attention_args>(c, TILE_FP64);
    Values o = empty(p.o.stride), lse(lse_in.size(), kUntouched);
    forward.o.data = o.data(), forward.lse = lse.data();
    compute(forward);
    CHECK(o == read(in.forward.o.value, q_cols, p.o.stride));
    CHECK(lse == lse_in);

    auto backward = sizes<tile_attention_backward_args>(c, TILE_FP64);
    Values dq = empty(p.dq.stride), dk = empty(p.dk.stride), dv = empty(p.dv.stride);
    backward.o.data = o_in.data(), backward.lse = lse_in.data();
    backward.dout.data = dout.data();
    backward.dq.data = dq.data(), backward.dk.data = dk.data(), backward.dv.data = dv.data();
    compute(backward);
    CHECK(dq == read(in.backward.dq.value, q_cols, p.dq.stride));
    CHECK(dk == read(in.backward.dk.value, k_cols, p.dk.stride));
    CHECK(dv == read(in.backward.dv.value, k_cols, p.dv.stride));
  }
}

TEST_CASE("rotary attention: what is wrong is named, and nothing is touched") {
  if (!has_tensor_cores()) return;
  const Case& c = kCases[1];
  const Inputs in(c, DType::bf16);
  const auto refuses = [&](auto args) {
    using Args = decltype(args);
    const Memory memory = place(c, DType::bf16, in, &args);
    const auto refused = [&](tile_status status, const char* argument, auto change) {
      auto bad = args;
      change(bad);
      check_refused(call(bad), status, argument);
    };
    const auto invalid = [&](const char* argument, auto change) {
      refused(TILE_INVALID_ARGUMENT, argument, change);
    };
    const auto unsupported = [&](const char* argument, auto change) {
      refused(TILE_UNSUPPORTED, argument, change);
    };
    invalid("struct_size", [](Args& a) { a.struct_size = offsetof(Args, stream); });
    invalid("type", [](Args& a) { a.type = 0; });
    unsupported("type", [](Args& a) { a.type = TILE_FP64; });
    invalid("step", [](Args& a) { a.step = "vectors"; });
    invalid("causal", [](Args& a) { a.causal = 2; });
    invalid("interleaved", [](Args& a) { a.rotation.interleaved = -1; });
    invalid("scale", [](Args& a) { a.scale = NAN; });
    invalid("attention_factor", [](Args& a) { a.rotation.attention_factor = -1; });
    invalid("batch", [](Args& a) { a.batch = -1; });
    invalid("queries", [](Args& a) { a.queries = -1; });
    invalid("keys", [](Args& a) { a.keys = -1; });
    unsupported("queries, keys, heads, kv_heads and head_dim",
                [](Args& a) { a.queries = INT64_MAX; });
    invalid("kv_heads", [](Args& a) { a.kv_heads = 3; });
    invalid("rotary_dim", [](Args& a) { a.rotation.rotary_dim = 3; });
    invalid("table_positions", [](Args& a) { a.rotation.first_position = 6; });
    invalid("q", [](Args& a) { a.q.data = nullptr; });
    invalid("k", [](Args& a) { a.k.data = static_cast<char*>(a.k.data) + 1; });
    invalid("v", [](Args& a) { a.v.strides[2] = -1; });
    invalid("sin", [](Args& a) { a.rotation.sin = nullptr; });
    invalid("cos", [](Args& a) {
      a.rotation.cos = a.rotation.sin = nullptr, a.rotation.frequencies = a.q.data;
    });
    invalid("workspace_bytes", [](Args& a) { a.workspace_bytes = -1; });
    if constexpr (requires { args.dq; }) {
      invalid("lse", [](Args& a) { a.lse = nullptr; });
      invalid("dout", [](Args& a) { a.dout.data = nullptr; });
      invalid("dq", [](Args& a) { a.dq.data = a.q.data; });
      invalid("dv", [](Args& a) { a.dv.data = a.dk.data; });
    } else {
      invalid("o", [](Args& a) { a.o.data = nullptr; });
      invalid("lse", [](Args& a) { a.lse = a.o.data; });
    }
    // Problems that no step takes, or only `composed`, which has no memory here.
    unsupported("head_dim", [](Args& a) { a.head_dim = 32; });
    unsupported("k", [](Args& a) { a.k.strides[2] += 4; });
    unsupported("workspace_bytes", [](Args& a) { a.step = "composed"; });
    const auto some = [](Args& a) { a.rotation.rotary_dim = 32; };
    const auto by_id = [](Args& a) {
      a.rotation.positions = static_cast<const std::int32_t*>(a.rotation.cos);
    };
    unsupported("workspace_bytes", some);  // all that keeps `composed` from it
    unsupported("workspace_bytes", by_id);
    unsupported("workspace_bytes", [&](Args& a) { a.step = "fused", some(a); });
    unsupported("workspace_bytes", [&](Args& a) { a.step = "fused", by_id(a); });
    // What only other attentions have.
    unsupported("keys", [](Args& a) { a.keys += 1; });
    unsupported("left", [](Args& a) { a.windowed = 1, a.left = 3, a.right = 3; });
    unsupported("right",
                [](Args& a) { a.windowed = 1, a.causal = 0, a.left = INT64_MAX, a.right = 3; });
    const auto ints = [](const Args& a) {
      return static_cast<const std::int32_t*>(a.rotation.cos);
    };
    unsupported("query_lengths", [&](Args& a) { a.query_lengths = ints(a); });
    unsupported("key_lengths", [&](Args& a) { a.key_lengths = ints(a); });
    unsupported("q_far", [](Args& a) { a.q_far = a.q; });
    unsupported("k_far", [](Args& a) { a.k_far = a.k; });
    unsupported("window", [](Args& a) { a.window = 3; });
    unsupported("far", [](Args& a) { a.rotation.far = TILE_FAR_REROPE; });
    if constexpr (requires { args.dq_far; }) {
      unsupported("dq_far", [](Args& a) { a.dq_far = a.dq; });
      unsupported("dk_far", [](Args& a) { a.dk_far = a.dk; });
    }
    // The reference does not take the kernels' types.
    check_refused(refer(args), TILE_UNSUPPORTED, "type");
    memory.check_untouched();
    check_ok(call(args));
    memory.check();
  };
  refuses(sizes<tile_attention_args>(c, TILE_BF16));
  refuses(sizes<tile_attention_backward_args>(c, TILE_BF16));
  check_refused(tile_rotary_attention(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_rotary_attention_backward(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_rotary_attention_reference(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_rotary_attention_backward_reference(nullptr), TILE_INVALID_ARGUMENT, "args");
}

TEST_CASE("rotary attention: the workspace's size for each step, and what is refused") {
  if (!has_tensor_cores()) return;
  const auto sizes_of = [](const auto& ladder, auto args) {
    using Args = decltype(args);
    const auto p =
        call_of<typename std::decay_t<decltype(ladder)>::Problem>(kCases[0], DType::bf16);
    const auto tells = [](const Args& of, std::int64_t wanted) {
      std::int64_t bytes = -1;
      check_ok(tell(of, &bytes));
      CHECK(bytes == wanted);
    };
    const std::int64_t in_memory = workspace_bytes_of(ladder.steps[0], p);
    for (const char* step : {"composed", "fused", static_cast<const char*>(nullptr)}) {
      args.step = step;
      tells(args, step && std::string(step) == "composed" ? in_memory
                                                          : workspace_bytes_of(ladder.steps[1], p));
      Args partial = args, with_positions = args;
      partial.rotation.rotary_dim = 32;
      tells(partial, in_memory);
      with_positions.rotation.positions = kPositions.data();
      tells(with_positions, in_memory);
    }
    const auto refused = [&](tile_status status, const char* argument, auto change) {
      auto bad = args;
      change(bad);
      std::int64_t bytes = -1;
      check_refused(tell(bad, &bytes), status, argument);
      CHECK(bytes == 0);
    };
    refused(TILE_INVALID_ARGUMENT, "batch", [](Args& a) { a.batch = -1; });
    refused(TILE_INVALID_ARGUMENT, "head_dim", [](Args& a) { a.head_dim = 0; });
    refused(TILE_INVALID_ARGUMENT, "step", [](Args& a) { a.step = "vectors"; });
    refused(TILE_UNSUPPORTED, "type", [](Args& a) { a.type = TILE_FP32; });
    refused(TILE_INVALID_ARGUMENT, "struct_size", [](Args& a) { a.struct_size = 8; });
    check_refused(tell(args, nullptr), TILE_INVALID_ARGUMENT, "bytes");
  };
  sizes_of(rope::kAttentionLadder, sizes<tile_attention_args>(kCases[0], TILE_BF16));
  sizes_of(rope::kAttentionBackwardLadder,
           sizes<tile_attention_backward_args>(kCases[0], TILE_BF16));
}

}  // namespace rotary_attention_test
