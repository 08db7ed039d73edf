// Attention with two scores, and the methods on it, by the C interface, called as a C program
// calls it.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "06_rope/test/rotation.hpp"
#include "07_windowed_rope/method/reference.hpp"
#include "07_windowed_rope/method/tables.hpp"
#include "07_windowed_rope/windowed/reference.hpp"
#include "harness/c/test_support.hpp"
#include "harness/convert.hpp"

namespace windowed_attention_test {
namespace {

namespace method = windowed_rope::method;
using tile::AttentionBackward;
using tile::AttentionForward;
using tile::FarRotation;
using tile::Strides;

constexpr std::int64_t kBatch = 2, kHeads = 4, kQueries = 13, kKeys = 21, kDim = 64,
                       kTablePositions = 24;
constexpr double kUntouched = -77;  // what lies between rows on the host

struct Case {
  std::int64_t kv_heads;  // 0: as many as there are of q
  std::int64_t padding;   // elements between rows; 0: strides are left 0
  std::int64_t window;
  bool causal, lengths;
  float scale;  // 0: left to the default, and so are the factors and rotary_dim
  // Of methods only:
  tile_far_rotation far = TILE_FAR_NONE;
  double far_factor = 0;
  std::int64_t rotary_dim = 0;
  bool interleaved = false;
  double attention_factor = 0;
};
constexpr Case kCases[] = {{0, 0, 5, false, false, 0},
                           {2, 8, 0, true, false, 0.25f},
                           {1, 16, 4, false, true, 0},
                           {2, 0, INT64_MAX, true, true, 0.5f}};
constexpr Case kMethodCases[] = {
    {0, 0, 6, true, false, 0, TILE_FAR_REROPE},
    {2, 8, 4, true, false, 0.25f, TILE_FAR_LEAKY_REROPE, 2.5, 32, true, 1.5f},
    {1, 16, 5, true, true, 0, TILE_FAR_SELF_EXTEND, 3, 0, false, 0.75f},
    {2, 0, 0, true, true, 0.5f, TILE_FAR_LEAKY_REROPE}};
const std::vector<int> kQueryLengths{13, 6}, kKeyLengths{9, 21};

// An operation and its pass: its functions in the library and in the chapter.
template <class ArgsType, class CallType>
struct Operation {
  using Args = ArgsType;
  using Call = CallType;

  bool is_method;
  const tile::Ladder<Call>& ladder;
  std::span<const Case> cases;
  tile_status (*run)(const Args*);
  tile_status (*refer)(const Args*);
  tile_status (*tell)(const Args*, std::int64_t*);
};
template <class Args, class Call>
Operation(bool, const tile::Ladder<Call>&, std::span<const Case>, tile_status (*)(const Args*),
          tile_status (*)(const Args*), tile_status (*)(const Args*, std::int64_t*))
    -> Operation<Args, Call>;

template <class Check>
void for_each_operation(Check check) {
  const std::span<const Case> cases = kCases, method_cases = kMethodCases;
  check(Operation{false, windowed_rope::kForwardLadder, cases, tile_windowed_attention,
                  tile_windowed_attention_reference, tile_windowed_attention_workspace_bytes});
  check(Operation{false, windowed_rope::kBackwardLadder, cases, tile_windowed_attention_backward,
                  tile_windowed_attention_backward_reference,
                  tile_windowed_attention_backward_workspace_bytes});
  check(Operation{true, method::kMethodLadder, method_cases, tile_windowed_rotary_attention,
                  tile_windowed_rotary_attention_reference,
                  tile_windowed_rotary_attention_workspace_bytes});
  check(Operation{true, method::kMethodBackwardLadder, method_cases,
                  tile_windowed_rotary_attention_backward,
                  tile_windowed_rotary_attention_backward_reference,
                  tile_windowed_rotary_attention_backward_workspace_bytes});
}

template <class Struct>
inline constexpr bool kIsBackward = requires(Struct s) {
  s.dv;
};

// A tensor in both structs.
struct Place {
  const char* name;
  bool is_output;
  tile_tensor& tensor;
  Strides& stride;
  std::int64_t length, heads;

  std::int64_t rows() const { return kBatch * length; }
  std::int64_t cols() const { return heads * kDim; }
};

// A method has no second pair.
template <class Args, class Call, class Visit>
void for_each_tensor(bool is_method, Args& a, Call& p, Visit visit) {
  constexpr bool kIsInput = false, kIsOutput = true;
  const auto queries = [&](const char* name, bool is_output, tile_tensor& tensor,
                           tile::TensorView& view) {
    visit(Place{name, is_output, tensor, view.stride, kQueries, kHeads});
  };
  const auto keys = [&](const char* name, bool is_output, tile_tensor& tensor,
                        tile::TensorView& view) {
    visit(Place{name, is_output, tensor, view.stride, kKeys, p.kv_heads});
  };
  queries("q", kIsInput, a.q, p.q);
  keys("k", kIsInput, a.k, p.k);
  if (!is_method) {
    queries("q_far", kIsInput, a.q_far, p.q_far);
    keys("k_far", kIsInput, a.k_far, p.k_far);
  }
  keys("v", kIsInput, a.v, p.v);
  queries("o", !kIsBackward<Args>, a.o, p.o);
  if constexpr (kIsBackward<Args>) {
    queries("dout", kIsInput, a.dout, p.dout);
    queries("dq", kIsOutput, a.dq, p.dq);
    keys("dk", kIsOutput, a.dk, p.dk);
    if (!is_method) {
      queries("dq_far", kIsOutput, a.dq_far, p.dq_far);
      keys("dk_far", kIsOutput, a.dk_far, p.dk_far);
    }
    keys("dv", kIsOutput, a.dv, p.dv);
  }
}

template <class Call>
Call call_of(bool is_method, const Case& c, DType type) {
  Call p{{.type = type,
          .batch = kBatch,
          .heads = kHeads,
          .queries = kQueries,
          .keys = kKeys,
          .head_dim = kDim,
          .kv_heads = c.kv_heads == 0 ? kHeads : c.kv_heads}};
  p.window = c.window;
  if (c.causal) p.right = 0;
  p.scale = c.scale == 0 ? 0.125f : c.scale;
  if (is_method) {
    p.rotary.far = static_cast<FarRotation>(c.far);
    p.rotary.far_factor = c.far_factor == 0 ? 1 : c.far_factor;
    p.rotary.rotary_dim = c.rotary_dim == 0 ? kDim : c.rotary_dim;
    p.rotary.layout =
        c.interleaved ? tile::RotaryLayout::interleaved : tile::RotaryLayout::half_split;
    p.rotary.table_positions = kTablePositions;
    p.rotary.attention_factor = c.attention_factor == 0 ? 1 : c.attention_factor;
  }
  // Tensors are [batch length][heads dim] in memory. Each has a distance of rows of its own.
  std::conditional_t<kIsBackward<Call>, tile_attention_backward_args, tile_attention_args> args{};
  int tensor = 0;
  for_each_tensor(is_method, args, p, [&](const Place& place) {
    const std::int64_t row = place.cols() + c.padding * ++tensor;
    place.stride = {place.length * row, kDim, row};
  });
  return p;
}

template <class Operation>
typename Operation::Args sizes(const Operation& operation, const Case& c, tile_type type) {
  typename Operation::Args args{};
  args.struct_size = sizeof args;
  args.type = type;
  args.causal = c.causal;
  args.scale = c.scale;
  args.batch = kBatch, args.heads = kHeads, args.queries = kQueries, args.keys = kKeys;
  args.head_dim = kDim, args.kv_heads = c.kv_heads;
  args.window = c.window;
  if (operation.is_method) {
    tile_rotation& rotation = args.rotation;
    rotation.far = c.far, rotation.far_factor = c.far_factor;
    rotation.rotary_dim = c.rotary_dim, rotation.interleaved = c.interleaved;
    rotation.table_positions = kTablePositions;
    rotation.attention_factor = c.attention_factor;
  }
  if (c.padding == 0) return args;
  auto p = call_of<typename Operation::Call>(operation.is_method, c, DType::fp32);
  for_each_tensor(operation.is_method, args, p, [](const Place& place) {
    auto& to = place.tensor.strides;
    to[0] = place.stride.batch, to[1] = place.stride.head, to[2] = place.stride.row;
  });
  return args;
}

// The inputs of a pass, without padding, and its outputs, by name. lse is [batch][query][head].
struct Data {
  std::map<std::string, Values> in;
  std::map<std::string, tile::Expected> out;
  std::vector<int> query_lengths, key_lengths;
  Values frequencies;  // of methods

  const Values& operator[](const char* name) const { return in.at(name); }
};
using Outputs = std::map<std::string, tile::Expected>;

Outputs expected_of(bool is_method, const AttentionForward& p, const Data& d) {
  const tile::AttentionExpected e =
      is_method ? method::reference(
                      p, {d["q"], d["k"], d["v"], d.frequencies, d.query_lengths, d.key_lengths})
                : windowed_rope::reference(p, {.q = d["q"],
                                               .k = d["k"],
                                               .v = d["v"],
                                               .query_lengths = d.query_lengths,
                                               .key_lengths = d.key_lengths,
                                               .far = {d["q_far"], d["k_far"]}});
  return {{"o", e.o}, {"lse", e.lse}};
}
Outputs expected_of(bool is_method, const AttentionBackward& p, const Data& d) {
  const tile::AttentionGradients e =
      is_method ? method::reference(p, {d["q"], d["k"], d["v"], d["o"], d["lse"], d["dout"],
                                        d.frequencies, d.query_lengths, d.key_lengths})
                : windowed_rope::reference(p, {.q = d["q"],
                                               .k = d["k"],
                                               .v = d["v"],
                                               .o = d["o"],
                                               .lse = d["lse"],
                                               .dout = d["dout"],
                                               .query_lengths = d.query_lengths,
                                               .key_lengths = d.key_lengths,
                                               .far = {d["q_far"], d["k_far"]}});
  return {{"dq", e.dq}, {"dk", e.dk}, {"dq_far", e.far_dq}, {"dk_far", e.far_dk}, {"dv", e.dv}};
}

template <class Operation>
Data data_of(const Operation& operation, const Case& c, DType type) {
  using Args = typename Operation::Args;
  auto p = call_of<typename Operation::Call>(operation.is_method, c, type);
  Data d;
  if (c.lengths) d.query_lengths = kQueryLengths, d.key_lengths = kKeyLengths;
  if (operation.is_method) d.frequencies = rope::paper_frequencies(p.rotary.rotary_dim);
  Args args{};
  for_each_tensor(operation.is_method, args, p, [&](const Place& place) {
    const auto seed = static_cast<std::uint64_t>(d.in.size() + 1);
    if (!place.is_output) d.in[place.name] = tile::normal(place.rows() * place.cols(), type, seed);
  });
  if constexpr (kIsBackward<Args>) {  // o and lse are the reference's, rounded
    const Outputs forward = expected_of(operation.is_method,
                                        call_of<AttentionForward>(operation.is_method, c, type), d);
    d.in["o"] = tile::rounded(forward.at("o").value, type);
    d.in["lse"] = tile::rounded(forward.at("lse").value, type == DType::fp64 ? type : DType::fp32);
  }
  d.out = expected_of(operation.is_method, p, d);
  return d;
}

template <class Operation>
Memory place(const Operation& operation, const Case& c, DType type, const Data& d,
             typename Operation::Args* args) {
  auto p = call_of<typename Operation::Call>(operation.is_method, c, type);
  Memory memory;
  for_each_tensor(operation.is_method, *args, p, [&](const Place& at) {
    at.tensor.data =
        at.is_output
            ? memory.output(at.name, type, at.rows(), at.cols(), at.stride.row, d.out.at(at.name))
            : memory.input(at.name, type, at.rows(), at.stride.row, d[at.name]);
  });
  constexpr std::int64_t kRows = kBatch * kHeads * kQueries;
  if constexpr (kIsBackward<typename Operation::Args>) {
    const Values lse = heads_first(d["lse"], kBatch, kHeads);
    args->lse = memory.input("lse", DType::fp32, 1, kRows, lse);
  } else {
    tile::Expected lse = d.out.at("lse");
    lse.value = heads_first(lse.value, kBatch, kHeads);
    lse.bound = heads_first(lse.bound, kBatch, kHeads);
    args->lse = memory.output("lse", DType::fp32, 1, kRows, kRows, lse);
  }
  if (operation.is_method) {
    const rope::Tables tables =
        method::make_tables(p.rotary, p.window, d.frequencies, p.rotary.table_positions);
    const auto input = [&](const char* name, const std::vector<float>& table) {
      return memory.input(name, DType::fp32, 3 * p.rotary.table_positions, p.rotary.rotary_dim / 2,
                          Values(table.begin(), table.end()));
    };
    args->rotation.cos = input("cos", tables.cos);
    args->rotation.sin = input("sin", tables.sin);  // no kernel needs frequencies
  }
  args->query_lengths = memory.integers("query_lengths", d.query_lengths);
  args->key_lengths = memory.integers("key_lengths", d.key_lengths);
  check_ok(operation.tell(args, &args->workspace_bytes));
  args->workspace = memory.scratch(args->workspace_bytes);
  return memory;
}

}  // namespace

TEST_CASE("windowed attention: every step by its name, in each type, and the best without one") {
  for_each_operation([](const auto& operation) {
    const auto& steps = operation.ladder.steps;
    for (const Case& c : operation.cases) {
      for (std::size_t t = 0; t < std::size(kTypes); ++t) {
        const DType type = tile::kDTypes[t];
        auto args = sizes(operation, c, kTypes[t]);
        if (!windowed_rope::kTypes.contains(type)) {
          check_refused(operation.run(&args), TILE_UNSUPPORTED, "type");
          continue;
        }
        const Data d = data_of(operation, c, type);
        for (std::size_t i = 0; i <= steps.size(); ++i) {
          const bool named = i < steps.size();
          if (tile::device().simulated && named &&
              is_others_turn(&c - operation.cases.data(), i, type)) {
            continue;
          }
          const std::string name(named ? steps[i].name : "");
          CAPTURE(operation.ladder.name);
          CAPTURE(name);
          CAPTURE(&c - operation.cases.data());
          args.step = named ? name.c_str() : nullptr;
          const Memory memory = place(operation, c, type, d, &args);
          check_ok(operation.run(&args));
          const std::string ran = tile_last_step();
          CHECK(find_step(operation.ladder, ran) < steps.size());
          // Its own kernel runs, unless it has other types or needs a feature that this device
          // lacks. Only the first step rotates rows in part, or interleaved.
          if (named && steps[i].types.contains(type) && tile::device().capability >= 80 &&
              (i == 0 || (c.rotary_dim == 0 && !c.interleaved))) {
            CHECK(ran == name);
          }
          memory.check();
        }
      }
    }
  });
}

TEST_CASE("windowed attention: the references take doubles of the host") {
  for_each_operation([](const auto& operation) {
    using Args = typename std::decay_t<decltype(operation)>::Args;
    using Call = typename std::decay_t<decltype(operation)>::Call;
    for (const Case& c : operation.cases) {
      CAPTURE(operation.ladder.name);
      CAPTURE(&c - operation.cases.data());
      const Data d = data_of(operation, c, DType::fp64);
      auto p = call_of<Call>(operation.is_method, c, DType::fp64);
      Args args = sizes(operation, c, TILE_FP64);
      std::map<std::string, Values> host;
      for_each_tensor(operation.is_method, args, p, [&](const Place& place) {
        const Values packed =
            place.is_output
                ? Values(static_cast<std::size_t>(place.rows() * place.cols()), kUntouched)
                : d[place.name];
        host[place.name] = spread(packed, place.cols(), place.stride.row, kUntouched);
        place.tensor.data = host[place.name].data();
      });
      Values lse;
      if constexpr (kIsBackward<Args>) {
        lse = heads_first(d["lse"], kBatch, kHeads);
      } else {
        lse.assign(d.out.at("lse").value.size(), kUntouched);
      }
      args.lse = lse.data();
      if (c.lengths) args.query_lengths = d.query_lengths.data();
      if (c.lengths) args.key_lengths = d.key_lengths.data();
      if (operation.is_method) {
        const Values tables(3 * kTablePositions * kDim / 2);  // not read
        args.rotation.cos = args.rotation.sin = tables.data();
        check_refused(operation.refer(&args), TILE_INVALID_ARGUMENT, "frequencies");
        args.rotation.cos = args.rotation.sin = nullptr;
        args.rotation.frequencies = d.frequencies.data();
      }
      check_ok(operation.refer(&args));
      for_each_tensor(operation.is_method, args, p, [&](const Place& place) {
        const Values& wanted = place.is_output ? d.out.at(place.name).value : d.in.at(place.name);
        const bool is_equal =
            host[place.name] == spread(wanted, place.cols(), place.stride.row, kUntouched);
        CHECK_MESSAGE(is_equal, std::string(place.name));
      });
      if constexpr (!kIsBackward<Args>) {
        CHECK(lse == heads_first(d.out.at("lse").value, kBatch, kHeads));
      }
    }
  });
}

TEST_CASE("windowed attention: what is wrong is named, and nothing is touched") {
  for_each_operation([](const auto& operation) {
    using Args = typename std::decay_t<decltype(operation)>::Args;
    CAPTURE(operation.ladder.name);
    const Case& c = operation.cases[1];
    const Data d = data_of(operation, c, DType::fp32);
    Args args = sizes(operation, c, TILE_FP32);
    const Memory memory = place(operation, c, DType::fp32, d, &args);
    const auto refused = [&](tile_status status, const char* argument, auto change) {
      Args bad = args;
      change(bad);
      check_refused(operation.run(&bad), status, argument);
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
    invalid("step", [](Args& a) { a.step = "welford"; });
    invalid("causal", [](Args& a) { a.causal = 2; });
    invalid("scale", [](Args& a) { a.scale = -1; });
    for (const auto extent : {&Args::batch, &Args::heads, &Args::queries, &Args::keys,
                              &Args::head_dim, &Args::kv_heads}) {
      Args bad = args;
      bad.*extent = -1;
      CHECK(operation.run(&bad) == TILE_INVALID_ARGUMENT);
    }
    for (const auto extent : {&Args::keys, &Args::kv_heads}) {
      unsupported("queries, keys, heads, kv_heads and head_dim",
                  [extent](Args& a) { a.*extent = INT64_MAX; });
    }
    invalid("kv_heads", [](Args& a) { a.kv_heads = 3; });
    invalid("windowed", [](Args& a) { a.windowed = 2; });
    invalid("interleaved", [](Args& a) { a.rotation.interleaved = -1; });
    invalid("q", [](Args& a) { a.q.data = nullptr; });
    invalid("k", [](Args& a) { a.k.data = nullptr; });
    invalid("v", [](Args& a) { a.v.data = static_cast<char*>(a.v.data) + 1; });
    invalid("v", [](Args& a) { a.v.strides[2] = -1; });
    invalid("workspace_bytes", [](Args& a) { a.workspace_bytes = -1; });
    if constexpr (kIsBackward<Args>) {
      invalid("lse", [](Args& a) { a.lse = nullptr; });
      invalid("dout", [](Args& a) { a.dout.data = nullptr; });
      invalid("dq", [](Args& a) { a.dq.data = nullptr; });
      invalid("dv", [](Args& a) { a.dv.data = a.v.data; });
    } else {
      invalid("o", [](Args& a) { a.o.data = nullptr; });
      invalid("o", [](Args& a) { a.o.data = a.v.data; });
      invalid("lse", [](Args& a) { a.lse = a.o.data; });
    }
    // A band of keys, which only chapter 05 has.
    unsupported("left", [](Args& a) { a.windowed = 1, a.left = a.right = 3; });
    unsupported("right",
                [](Args& a) { a.windowed = 1, a.causal = 0, a.left = INT64_MAX, a.right = 3; });
    static constexpr std::int32_t kPositions[kBatch * kQueries] = {};
    if (operation.is_method) {
      unsupported("causal", [](Args& a) { a.causal = 0; });
      invalid("far", [](Args& a) { a.rotation.far = TILE_FAR_SELF_EXTEND + 1; });
      invalid("far", [](Args& a) { a.rotation.far = TILE_FAR_NONE; });
      invalid("window", [](Args& a) { a.window = -1; });
      invalid("far_factor", [](Args& a) { a.rotation.far_factor = 0.5; });
      invalid("far_factor", [](Args& a) { a.rotation.far = TILE_FAR_SELF_EXTEND; });  // 2.5
      invalid("rotary_dim", [](Args& a) { a.rotation.rotary_dim = 3; });
      invalid("table_positions", [](Args& a) { a.rotation.table_positions = kKeys - 1; });
      invalid("attention_factor", [](Args& a) { a.rotation.attention_factor = NAN; });
      invalid("cos", [](Args& a) { a.rotation.cos = nullptr, a.rotation.frequencies = a.v.data; });
      invalid("sin", [](Args& a) { a.rotation.sin = nullptr; });
      unsupported("workspace_bytes", [](Args& a) { a.step = "composed", a.workspace_bytes -= 1; });
      unsupported("positions", [](Args& a) { a.rotation.positions = kPositions; });
      unsupported("first_position", [](Args& a) { a.rotation.first_position = 1; });
      unsupported("q_far", [](Args& a) { a.q_far = a.q; });
      unsupported("k_far", [](Args& a) { a.k_far = a.k; });
      if constexpr (kIsBackward<Args>) {
        unsupported("dq_far", [](Args& a) { a.dq_far = a.dq; });
        unsupported("dk_far", [](Args& a) { a.dk_far = a.dk; });
      }
    } else {
      invalid("q_far", [](Args& a) { a.q_far.data = nullptr; });
      invalid("k_far", [](Args& a) { a.k_far.data = nullptr; });
      if constexpr (kIsBackward<Args>) {
        invalid("dq_far", [](Args& a) { a.dq_far.data = nullptr; });
        invalid("dk_far", [](Args& a) { a.dk_far.data = nullptr; });
      }
      // What is not used must be zero.
      unsupported("rotation", [](Args& a) { a.rotation.cos = a.q.data; });
      unsupported("rotation", [](Args& a) { a.rotation.sin = a.q.data; });
      unsupported("rotation", [](Args& a) { a.rotation.frequencies = a.q.data; });
      unsupported("rotation", [](Args& a) { a.rotation.positions = kPositions; });
      unsupported("rotation", [](Args& a) { a.rotation.rotary_dim = 2; });
      unsupported("rotation", [](Args& a) { a.rotation.table_positions = 1; });
      unsupported("rotation", [](Args& a) { a.rotation.first_position = 1; });
      unsupported("rotation", [](Args& a) { a.rotation.interleaved = 1; });
      unsupported("rotation", [](Args& a) { a.rotation.attention_factor = 1; });
      unsupported("rotation", [](Args& a) { a.rotation.far = TILE_FAR_REROPE; });
      unsupported("rotation", [](Args& a) { a.rotation.far_factor = 1; });
    }
    // The reference does not take the kernels' types.
    check_refused(operation.refer(&args), TILE_UNSUPPORTED, "type");
    check_refused(operation.run(nullptr), TILE_INVALID_ARGUMENT, "args");
    check_refused(operation.refer(nullptr), TILE_INVALID_ARGUMENT, "args");
    memory.check_untouched();
    check_ok(operation.run(&args));
    memory.check();
  });
}

TEST_CASE("windowed attention: the workspace's size for each step, and what is refused") {
  for_each_operation([](const auto& operation) {
    using Args = typename std::decay_t<decltype(operation)>::Args;
    using Call = typename std::decay_t<decltype(operation)>::Call;
    CAPTURE(operation.ladder.name);
    const auto& ladder = operation.ladder;
    std::int64_t bytes = -1;
    // The workspace of the step that takes the problem if the pointers are aligned.
    for (const Case& c : operation.cases) {
      auto aligned = call_of<Call>(operation.is_method, c, DType::bf16);  // null pointers are
      aligned.workspace_bytes = INT64_MAX;
      Args args = sizes(operation, c, TILE_BF16);
      for (std::size_t i = 0; i <= ladder.steps.size(); ++i) {
        const bool named = i < ladder.steps.size();
        const std::string name(named ? ladder.steps[i].name : "");
        args.step = named ? name.c_str() : nullptr;
        check_ok(operation.tell(&args, &bytes));
        tile::Choice taker;
        REQUIRE(choose_step(ladder, named ? i : i - 1, aligned, &taker).ok());
        CHECK(bytes == workspace_bytes_of(ladder.steps[taker.step], aligned));
      }
    }
    Args args = sizes(operation, operation.cases[0], TILE_BF16);
    Args empty = args;
    empty.queries = empty.keys = 0;
    check_ok(operation.tell(&empty, &bytes));
    CHECK(bytes == 0);
    const auto refused = [&](tile_status status, const char* argument, auto change) {
      Args bad = args;
      change(bad);
      bytes = -1;
      check_refused(operation.tell(&bad, &bytes), status, argument);
      CHECK(bytes == 0);
    };
    refused(TILE_INVALID_ARGUMENT, "batch", [](Args& a) { a.batch = -1; });
    refused(TILE_INVALID_ARGUMENT, "head_dim", [](Args& a) { a.head_dim = 0; });
    refused(TILE_INVALID_ARGUMENT, "step", [](Args& a) { a.step = "welford"; });
    refused(TILE_UNSUPPORTED, "type", [](Args& a) { a.type = TILE_FP64; });
    refused(TILE_INVALID_ARGUMENT, "struct_size", [](Args& a) { a.struct_size = 8; });
    check_refused(operation.tell(&args, nullptr), TILE_INVALID_ARGUMENT, "bytes");
  });
}

TEST_CASE("windowed attention: tables of each method, on the host") {
  static_assert(static_cast<int>(FarRotation::none) == TILE_FAR_NONE);
  static_assert(static_cast<int>(FarRotation::rerope) == TILE_FAR_REROPE);
  static_assert(static_cast<int>(FarRotation::leaky_rerope) == TILE_FAR_LEAKY_REROPE);
  static_assert(static_cast<int>(FarRotation::self_extend) == TILE_FAR_SELF_EXTEND);
  constexpr std::int64_t kRotaryDim = 16, kRows = 9;
  const Values frequencies = rope::paper_frequencies(kRotaryDim);
  const auto check = [&](const tile_windowed_rotary_tables_args& wanted,
                         const tile::Rotary& rotary) {
    constexpr std::size_t kCount = 3 * kRows * kRotaryDim / 2;
    std::vector<float> cos(kCount + 1, 7), sin = cos;
    tile_windowed_rotary_tables_args args = wanted;
    args.cos = cos.data(), args.sin = sin.data();
    check_ok(tile_windowed_rotary_tables(&args));
    rope::Tables tables = method::make_tables(rotary, wanted.window, frequencies, kRows);
    tables.cos.push_back(7), tables.sin.push_back(7);
    CHECK(cos == tables.cos);
    CHECK(sin == tables.sin);
  };
  for (const tile_far_rotation far :
       {TILE_FAR_REROPE, TILE_FAR_LEAKY_REROPE, TILE_FAR_SELF_EXTEND}) {
    CAPTURE(far);
    tile_windowed_rotary_tables_args args{};
    args.struct_size = sizeof args;
    args.far = far;
    args.rotary_dim = kRotaryDim, args.positions = kRows;
    args.frequencies = frequencies.data();
    check_ok(tile_windowed_rotary_tables(&args));  // nothing is wanted
    tile::Rotary rotary{.far = static_cast<FarRotation>(far)};
    check(args, rotary);
    args.window = 5, args.far_factor = rotary.far_factor = 3;
    args.attention_factor = rotary.attention_factor = 1.3;  // no number of fp32
    check(args, rotary);
  }
}

TEST_CASE("windowed attention: what is wrong with tables is named, and nothing is written") {
  const double one = 1;
  float cos[3] = {7, 7, 7};
  tile_windowed_rotary_tables_args good{};
  good.struct_size = sizeof good;
  good.far = TILE_FAR_REROPE;
  good.rotary_dim = 2, good.positions = 1, good.frequencies = &one, good.cos = cos;
  using Args = tile_windowed_rotary_tables_args;
  const auto refuses = [&](const char* argument, auto change,
                           tile_status wanted = TILE_INVALID_ARGUMENT) {
    Args args = good;
    change(args);
    check_refused(tile_windowed_rotary_tables(&args), wanted, argument);
    CHECK(std::ranges::count(cos, 7) == 3);
  };
  check_refused(tile_windowed_rotary_tables(nullptr), TILE_INVALID_ARGUMENT, "args");
  refuses("struct_size", [](Args& a) { a.struct_size -= 1; });
  refuses("far", [](Args& a) { a.far = -1; });
  refuses("far", [](Args& a) { a.far = TILE_FAR_SELF_EXTEND + 1; });
  refuses("far", [](Args& a) { a.far = TILE_FAR_NONE; });
  refuses("window", [](Args& a) { a.window = -1; });
  refuses("far_factor", [](Args& a) { a.far = TILE_FAR_LEAKY_REROPE, a.far_factor = 0.5; });
  refuses("rotary_dim", [](Args& a) { a.rotary_dim = 3; });
  refuses("rotary_dim", [](Args& a) { a.rotary_dim = -2; });
  refuses(
      "rotary_dim", [](Args& a) { a.rotary_dim = INT64_MAX - 1; }, TILE_UNSUPPORTED);
  refuses("positions", [](Args& a) { a.positions = -1; });
  refuses(
      "positions", [](Args& a) { a.positions = INT64_MAX; }, TILE_UNSUPPORTED);
  refuses("attention_factor", [](Args& a) { a.attention_factor = -1; });
  refuses("frequencies", [](Args& a) { a.frequencies = nullptr; });
  check_ok(tile_windowed_rotary_tables(&good));
  CHECK(std::ranges::count(cos, 1) == 3);  // the three rows of position 0
}

}  // namespace windowed_attention_test
