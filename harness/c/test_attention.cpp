// Attention by the C interface, called as a C program calls it.
#include <cmath>
#include <cstddef>

#include "05_flash_attention/reference.hpp"
#include "harness/c/test_support.hpp"
#include "harness/convert.hpp"

namespace attention_test {
namespace {

using flash_attention::Strides;
using tile::AttentionBackward;
using tile::AttentionForward;

constexpr std::int64_t kBatch = 2, kHeads = 4, kQueries = 13, kKeys = 21, kDim = 64;

struct Case {
  std::int64_t kv_heads;  // 0: as many as there are of q
  std::int64_t padding;   // elements between rows; 0: strides are left 0
  bool causal, windowed, lengths;
  float scale;  // 0: left to the default
};
constexpr Case kCases[] = {{0, 0, false, false, false, 0},
                           {2, 8, true, false, false, 0.25f},
                           {1, 16, false, true, true, 0},
                           {2, 0, true, true, true, 0.5f}};
constexpr std::int64_t kLeft = 5, kRight = 3;
const std::vector<int> kQueryLengths{13, 6}, kKeyLengths{9, 21};

std::int64_t kv_heads(const Case& c) { return c.kv_heads == 0 ? kHeads : c.kv_heads; }

// Tensors are [batch length][heads dim] in memory. Each has a distance of rows of its own.
Strides strides(const Case& c, std::int64_t length, std::int64_t heads, int tensor) {
  const std::int64_t row = heads * kDim + c.padding * tensor;
  return {length * row, kDim, row};
}

template <class Call>
Call call_of(const Case& c, DType type) {
  Call p{{.type = type,
          .batch = kBatch,
          .heads = kHeads,
          .queries = kQueries,
          .keys = kKeys,
          .head_dim = kDim,
          .kv_heads = kv_heads(c)}};
  if (c.windowed) p.left = kLeft, p.right = kRight;
  if (c.causal) p.right = 0;
  p.scale = c.scale == 0 ? 0.125f : c.scale;
  p.q.stride = strides(c, kQueries, kHeads, 1);
  p.k.stride = strides(c, kKeys, p.kv_heads, 2);
  p.v.stride = strides(c, kKeys, p.kv_heads, 3);
  p.o.stride = strides(c, kQueries, kHeads, 4);
  if constexpr (requires { p.dq; }) {
    p.dout.stride = strides(c, kQueries, kHeads, 5);
    p.dq.stride = strides(c, kQueries, kHeads, 6);
    p.dk.stride = strides(c, kKeys, p.kv_heads, 7);
    p.dv.stride = strides(c, kKeys, p.kv_heads, 8);
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
  args.batch = kBatch, args.heads = kHeads, args.queries = kQueries, args.keys = kKeys;
  args.head_dim = kDim, args.kv_heads = c.kv_heads;
  args.causal = c.causal, args.windowed = c.windowed;
  args.left = kLeft, args.right = kRight;  // used if windowed
  args.scale = c.scale;
  if (c.padding == 0) return args;
  const auto p = call_of<AttentionBackward>(c, DType::fp32);
  set(args.q.strides, p.q.stride), set(args.k.strides, p.k.stride), set(args.v.strides, p.v.stride);
  set(args.o.strides, p.o.stride);
  if constexpr (requires { args.dq; }) {
    set(args.dout.strides, p.dout.stride), set(args.dq.strides, p.dq.stride);
    set(args.dk.strides, p.dk.stride), set(args.dv.strides, p.dv.stride);
  }
  return args;
}

// The inputs of both directions, without padding. o and lse are the reference's, rounded.
struct Inputs {
  Values q, k, v, dout, o, lse, lse_heads_first;
  std::vector<int> query_lengths, key_lengths;
  flash_attention::ForwardExpected forward;
  flash_attention::BackwardExpected backward;

  Inputs(const Case& c, DType type)
      : q(tile::normal(kBatch * kQueries * kHeads * kDim, type, 1)),
        k(tile::normal(kBatch * kKeys * kv_heads(c) * kDim, type, 2)),
        v(tile::normal(kBatch * kKeys * kv_heads(c) * kDim, type, 3)),
        dout(tile::normal(std::ssize(q), type, 4)) {
    if (c.lengths) query_lengths = kQueryLengths, key_lengths = kKeyLengths;
    forward = flash_attention::reference(call_of<AttentionForward>(c, type),
                                         {q, k, v, query_lengths, key_lengths});
    o = tile::rounded(forward.o.value, type);
    lse = tile::rounded(forward.lse.value, type == DType::fp64 ? type : DType::fp32);
    lse_heads_first = heads_first(lse, kBatch, kHeads);
    backward = flash_attention::reference(call_of<AttentionBackward>(c, type),
                                          {q, k, v, o, lse, dout, query_lengths, key_lengths});
  }
};

// Uploads the inputs of both directions.
template <class Args>
void place_inputs(const Case& c, DType type, const Inputs& in, Args* args, Memory* memory) {
  const auto p = call_of<AttentionForward>(c, type);
  args->q.data = memory->input("q", type, kBatch * kQueries, p.q.stride.row, in.q);
  args->k.data = memory->input("k", type, kBatch * kKeys, p.k.stride.row, in.k);
  args->v.data = memory->input("v", type, kBatch * kKeys, p.v.stride.row, in.v);
  args->query_lengths = memory->integers("query_lengths", in.query_lengths);
  args->key_lengths = memory->integers("key_lengths", in.key_lengths);
}

Memory place(const Case& c, DType type, const Inputs& in, tile_attention_args* args) {
  const auto p = call_of<AttentionForward>(c, type);
  Memory memory;
  place_inputs(c, type, in, args, &memory);
  args->o.data =
      memory.output("o", type, kBatch * kQueries, kHeads * kDim, p.o.stride.row, in.forward.o);
  tile::Expected lse = in.forward.lse;
  lse.value = heads_first(lse.value, kBatch, kHeads);
  lse.bound = heads_first(lse.bound, kBatch, kHeads);
  args->lse = memory.output("lse", DType::fp32, 1, std::ssize(in.lse), std::ssize(in.lse), lse);
  check_ok(tile_attention_workspace_bytes(args, &args->workspace_bytes));
  args->workspace = memory.scratch(args->workspace_bytes);
  return memory;
}

Memory place(const Case& c, DType type, const Inputs& in, tile_attention_backward_args* args) {
  const auto p = call_of<AttentionBackward>(c, type);
  const std::int64_t q_cols = kHeads * kDim, k_cols = p.kv_heads * kDim;
  Memory memory;
  place_inputs(c, type, in, args, &memory);
  args->o.data = memory.input("o", type, kBatch * kQueries, p.o.stride.row, in.o);
  args->lse = memory.input("lse", DType::fp32, 1, std::ssize(in.lse), in.lse_heads_first);
  args->dout.data = memory.input("dout", type, kBatch * kQueries, p.dout.stride.row, in.dout);
  args->dq.data =
      memory.output("dq", type, kBatch * kQueries, q_cols, p.dq.stride.row, in.backward.dq);
  args->dk.data =
      memory.output("dk", type, kBatch * kKeys, k_cols, p.dk.stride.row, in.backward.dk);
  args->dv.data =
      memory.output("dv", type, kBatch * kKeys, k_cols, p.dv.stride.row, in.backward.dv);
  check_ok(tile_attention_backward_workspace_bytes(args, &args->workspace_bytes));
  args->workspace = memory.scratch(args->workspace_bytes);
  return memory;
}

tile_status call(const tile_attention_args& args) { return tile_attention(&args); }
tile_status call(const tile_attention_backward_args& args) {
  return tile_attention_backward(&args);
}
tile_status refer(const tile_attention_args& args) { return tile_attention_reference(&args); }
tile_status refer(const tile_attention_backward_args& args) {
  return tile_attention_backward_reference(&args);
}
tile_status tell(const tile_attention_args& args, std::int64_t* bytes) {
  return tile_attention_workspace_bytes(&args, bytes);
}
tile_status tell(const tile_attention_backward_args& args, std::int64_t* bytes) {
  return tile_attention_backward_workspace_bytes(&args, bytes);
}

// Every step by its name, in each type, and the best without one.
template <class Args, class Ladder>
void check_steps(const Ladder& ladder, const Case& c) {
  for (std::size_t t = 0; t < std::size(kTypes); ++t) {
    const DType type = tile::kDTypes[t];
    Args args = sizes<Args>(c, kTypes[t]);
    if (ladder.name == "forward" && type == DType::e4m3) continue;  // has a test of its own
    if (!flash_attention::kTypes.contains(type)) {
      check_refused(call(args), TILE_UNSUPPORTED, "type");
      continue;
    }
    const Inputs in(c, type);
    for (std::size_t i = 0; i <= ladder.steps.size(); ++i) {
      const bool named = i < ladder.steps.size();
      if (tile::device().simulated && named && is_others_turn(&c - kCases, i, type)) continue;
      const std::string name(named ? ladder.steps[i].name : "");
      if (name == "e4m3" || name == "tile_sums") continue;
      CAPTURE(name);
      CAPTURE(&c - kCases);
      args.step = named ? name.c_str() : nullptr;
      const Memory memory = place(c, type, in, &args);
      // These decline so few queries, if there is the workspace for the step that is faster.
      if (ladder.name == "forward" &&
          (name == "wgmma" || name == "turns" || name == "queue" || name == "persistent"))
        args.workspace_bytes = 0;
      check_ok(call(args));
      const std::string ran = tile_last_step();
      CHECK(find_step(ladder, ran) < ladder.steps.size());
      // Its own kernel runs, unless it has other types or needs a feature that this device lacks,
      // or takes 256 columns only.
      if (named && ladder.steps[i].types.contains(type) && tile::device().capability >= 80 &&
          name != "wide") {
        CHECK(ran == name);
      }
      memory.check();
    }
  }
}

}  // namespace

TEST_CASE("every step computes attention, forward and backward, and without a name one does") {
  for (const Case& c : kCases) {
    check_steps<tile_attention_args>(flash_attention::kForwardLadder, c);
    check_steps<tile_attention_backward_args>(flash_attention::kBackwardLadder, c);
  }
}

TEST_CASE("attention of e4m3: a scale for each head of k, and o in bf16") {
  const Case& c = kCases[3];
  const DType type = DType::e4m3;
  auto args = sizes<tile_attention_args>(c, TILE_E4M3);
  if (!tile::check_requirements({type}, {tile::Feature::wgmma}, type).ok()) return;
  const auto p = call_of<AttentionForward>(c, type);
  const std::int64_t group = kHeads / p.kv_heads;
  const auto normal = [&](std::int64_t rows, std::int64_t heads, std::uint64_t seed) {
    return tile::normal(kBatch * rows * heads * kDim, type, seed);
  };
  Inputs in(c, DType::fp32);
  in.q = normal(kQueries, kHeads, 1), in.k = normal(kKeys, p.kv_heads, 2);
  in.v = normal(kKeys, p.kv_heads, 3);
  const Values scales[] = {{2, 0.5, 1, 3}, {1, 0.25, 2, 0.5}, {0.5, 1, 4, 2}};
  const auto scaled = [&](Values values, std::int64_t rows, std::int64_t heads, const Values& by) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / kDim, head = row % heads;
      const std::int64_t of_k = heads == kHeads ? head / group : head;
      values[i] *= by[static_cast<std::size_t>(row / heads / rows * p.kv_heads + of_k)];
    }
    return values;
  };
  in.forward = flash_attention::reference(
      p, {scaled(in.q, kQueries, kHeads, scales[0]), scaled(in.k, kKeys, p.kv_heads, scales[1]),
          scaled(in.v, kKeys, p.kv_heads, scales[2]), in.query_lengths, in.key_lengths});
  Memory memory;
  place_inputs(c, type, in, &args, &memory);
  args.o.data = memory.output("o", DType::bf16, kBatch * kQueries, kHeads * kDim, p.o.stride.row,
                              in.forward.o);
  const auto place_scales = [&](const char* name, const Values& values) {
    return static_cast<const float*>(memory.input(name, DType::fp32, 1, 4, values));
  };
  args.q_scale = place_scales("q_scale", scales[0]);
  args.k_scale = place_scales("k_scale", scales[1]);
  args.v_scale = place_scales("v_scale", scales[2]);
  check_ok(tile_attention(&args));
  CHECK(tile_last_step() == std::string("tile_sums"));
  memory.check();
  args.free_multiprocessors = -1;
  check_refused(tile_attention(&args), TILE_INVALID_ARGUMENT, "free_multiprocessors");
  args.free_multiprocessors = 0;
  args.type = TILE_BF16;
  check_refused(tile_attention(&args), TILE_INVALID_ARGUMENT, "q_scale");
  args.q_scale = nullptr;
  check_refused(tile_attention(&args), TILE_INVALID_ARGUMENT, "k_scale");
  args.k_scale = nullptr;
  check_refused(tile_attention(&args), TILE_INVALID_ARGUMENT, "v_scale");
}

TEST_CASE("the references of attention compute in double on the host") {
  constexpr double kUntouched = -77;
  for (const Case& c : kCases) {
    CAPTURE(&c - kCases);
    const Inputs in(c, DType::fp64);
    const auto p = call_of<AttentionBackward>(c, DType::fp64);
    const std::int64_t q_cols = kHeads * kDim, k_cols = p.kv_heads * kDim;
    const auto read = [&](const Values& packed, std::int64_t cols, const Strides& stride) {
      return spread(packed, cols, stride.row, kUntouched);
    };
    const auto empty = [&](std::int64_t length, const Strides& stride) {
      return Values(static_cast<std::size_t>(kBatch * length * stride.row), kUntouched);
    };
    // Not const, as the struct's pointers are not.
    Values q = read(in.q, q_cols, p.q.stride), k = read(in.k, k_cols, p.k.stride),
           v = read(in.v, k_cols, p.v.stride), dout = read(in.dout, q_cols, p.dout.stride),
           o_in = read(in.o, q_cols, p.o.stride);
    const auto inputs = [&](auto& args) {
      args.q.data = q.data(), args.k.data = k.data(), args.v.data = v.data();
      if (c.lengths) args.query_lengths = in.query_lengths.data();
      if (c.lengths) args.key_lengths = in.key_lengths.data();
    };
    auto forward = sizes<tile_attention_args>(c, TILE_FP64);
    inputs(forward);
    Values o = empty(kQueries, p.o.stride), lse(in.lse.size(), kUntouched);
    forward.o.data = o.data(), forward.lse = lse.data();
    check_ok(refer(forward));
    CHECK(o == read(in.forward.o.value, q_cols, p.o.stride));
    CHECK(lse == in.lse_heads_first);

    auto backward = sizes<tile_attention_backward_args>(c, TILE_FP64);
    inputs(backward);
    Values dq = empty(kQueries, p.dq.stride), dk = empty(kKeys, p.dk.stride),
           dv = empty(kKeys, p.dv.stride);
    backward.o.data = o_in.data(), backward.lse = in.lse_heads_first.data();
    backward.dout.data = dout.data();
    backward.dq.data = dq.data(), backward.dk.data = dk.data(), backward.dv.data = dv.data();
    check_ok(refer(backward));
    CHECK(dq == read(in.backward.dq.value, q_cols, p.dq.stride));
    CHECK(dk == read(in.backward.dk.value, k_cols, p.dk.stride));
    CHECK(dv == read(in.backward.dv.value, k_cols, p.dv.stride));
  }
}

TEST_CASE("what attention refuses, it names and touches nothing") {
  const Case& c = kCases[1];
  const Inputs in(c, DType::fp32);
  const auto refuses = [&](auto args) {
    const Memory memory = place(c, DType::fp32, in, &args);
    const auto refused = [&](tile_status status, const char* argument, auto change) {
      auto bad = args;
      change(bad);
      check_refused(call(bad), status, argument);
    };
    const auto invalid = [&](const char* argument, auto change) {
      refused(TILE_INVALID_ARGUMENT, argument, change);
    };
    invalid("struct_size",
            [](auto& a) { a.struct_size = offsetof(std::decay_t<decltype(a)>, stream); });
    invalid("type", [](auto& a) { a.type = 0; });
    invalid("step", [](auto& a) { a.step = "welford"; });
    invalid("causal", [](auto& a) { a.causal = 2; });
    invalid("windowed", [](auto& a) { a.windowed = -1; });
    invalid("left", [](auto& a) { a.windowed = 1, a.left = -1; });
    invalid("scale", [](auto& a) { a.scale = -1; });
    invalid("scale", [](auto& a) { a.scale = NAN; });
    invalid("kv_heads", [](auto& a) { a.kv_heads = 3; });
    for (const auto extent :
         {&decltype(args)::batch, &decltype(args)::heads, &decltype(args)::queries,
          &decltype(args)::keys, &decltype(args)::head_dim, &decltype(args)::kv_heads}) {
      auto bad = args;
      bad.*extent = -1;
      CHECK(call(bad) == TILE_INVALID_ARGUMENT);
    }
    invalid("q", [](auto& a) { a.q.data = nullptr; });
    invalid("k", [](auto& a) { a.k.data = static_cast<char*>(a.k.data) + 1; });
    invalid("v", [](auto& a) { a.v.strides[2] = -1; });
    invalid("workspace_bytes", [](auto& a) { a.workspace_bytes = -1; });
    if constexpr (requires { args.dq; }) {
      invalid("lse", [](auto& a) { a.lse = nullptr; });
      invalid("dout", [](auto& a) { a.dout.data = nullptr; });
      invalid("dq", [](auto& a) { a.dq.data = a.q.data; });
      invalid("dv", [](auto& a) { a.dv.data = a.dk.data; });
    } else {
      invalid("o", [](auto& a) { a.o.data = nullptr; });
      invalid("o", [](auto& a) { a.o.strides[2] = kDim; });
      invalid("lse", [](auto& a) { a.lse = a.o.data; });
    }
    // What only later chapters compute.
    const auto lacks = [&](const char* argument, auto change) {
      refused(TILE_UNSUPPORTED, argument, change);
    };
    static constexpr int kPositions[] = {0};
    lacks("rotation", [](auto& a) { a.rotation.cos = a.q.data; });
    lacks("rotation", [](auto& a) { a.rotation.sin = a.q.data; });
    lacks("rotation", [](auto& a) { a.rotation.frequencies = a.q.data; });
    lacks("rotation", [](auto& a) { a.rotation.positions = kPositions; });
    lacks("rotation", [](auto& a) { a.rotation.rotary_dim = 2; });
    lacks("rotation", [](auto& a) { a.rotation.table_positions = 1; });
    lacks("rotation", [](auto& a) { a.rotation.first_position = 1; });
    lacks("rotation", [](auto& a) { a.rotation.interleaved = 1; });
    lacks("rotation", [](auto& a) { a.rotation.attention_factor = 1; });
    lacks("rotation", [](auto& a) { a.rotation.far = TILE_FAR_REROPE; });
    lacks("rotation", [](auto& a) { a.rotation.far_factor = 1; });
    invalid("interleaved", [](auto& a) { a.rotation.interleaved = 2; });
    lacks("q_far", [](auto& a) { a.q_far = a.q; });
    lacks("k_far", [](auto& a) { a.k_far = a.k; });
    lacks("window", [](auto& a) { a.window = 3; });
    if constexpr (requires { args.dq_far; }) {
      lacks("dq_far", [](auto& a) { a.dq_far = a.dq; });
      lacks("dk_far", [](auto& a) { a.dk_far = a.dk; });
    }
    // The reference does not take the kernels' types.
    check_refused(refer(args), TILE_UNSUPPORTED, "type");
    refused(TILE_UNSUPPORTED, "type", [](auto& a) { a.type = TILE_FP64; });
    memory.check_untouched();
    check_ok(call(args));
    memory.check();
  };
  refuses(sizes<tile_attention_args>(c, TILE_FP32));
  refuses(sizes<tile_attention_backward_args>(c, TILE_FP32));
  check_refused(tile_attention(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_attention_backward(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_attention_reference(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_attention_backward_reference(nullptr), TILE_INVALID_ARGUMENT, "args");
}

TEST_CASE("the workspace of attention: its size for each step, and what is refused") {
  const auto sizes_of = [](const auto& ladder, auto args) {
    using Ladder = std::decay_t<decltype(ladder)>;
    auto p = call_of<typename Ladder::Problem>(kCases[0], DType::bf16);
    p.workspace_bytes = INT64_MAX;
    std::int64_t bytes = -1;
    tile::Choice runs;
    for (std::size_t i = 0; i < ladder.steps.size(); ++i) {
      const std::string name(ladder.steps[i].name);
      if (name == "e4m3" || name == "tile_sums") continue;  // no other types, and no earlier step
      args.step = name.c_str();
      check_ok(tell(args, &bytes));
      REQUIRE(choose_step(ladder, i, p, &runs).ok());
      CHECK(bytes == workspace_bytes_of(ladder.steps[runs.step], p));
    }
    args.step = nullptr;
    check_ok(tell(args, &bytes));
    REQUIRE(choose_last(ladder, p, &runs).ok());
    CHECK(bytes == workspace_bytes_of(ladder.steps[runs.step], p));
    const auto refused = [&](tile_status status, const char* argument, auto change) {
      auto bad = args;
      change(bad);
      bytes = -1;
      check_refused(tell(bad, &bytes), status, argument);
      CHECK(bytes == 0);
    };
    refused(TILE_INVALID_ARGUMENT, "batch", [](auto& a) { a.batch = -1; });
    refused(TILE_INVALID_ARGUMENT, "head_dim", [](auto& a) { a.head_dim = 0; });
    refused(TILE_INVALID_ARGUMENT, "kv_heads", [](auto& a) { a.kv_heads = 8; });
    refused(TILE_INVALID_ARGUMENT, "step", [](auto& a) { a.step = "welford"; });
    refused(TILE_UNSUPPORTED, "type", [](auto& a) { a.type = TILE_FP64; });
    refused(TILE_INVALID_ARGUMENT, "struct_size", [](auto& a) { a.struct_size = 8; });
    check_refused(tell(args, nullptr), TILE_INVALID_ARGUMENT, "bytes");
  };
  sizes_of(flash_attention::kForwardLadder, sizes<tile_attention_args>(kCases[0], TILE_BF16));
  sizes_of(flash_attention::kBackwardLadder,
           sizes<tile_attention_backward_args>(kCases[0], TILE_BF16));
}

}  // namespace attention_test
