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
#include "07_windowed_rope/method/method.hpp"
#include "harness/c/test_support.hpp"
#include "harness/convert.hpp"

namespace windowed_attention_test {
namespace {

using windowed_rope::BackwardProblem;
using windowed_rope::ForwardProblem;
using windowed_rope::Method;
using windowed_rope::MethodBackwardProblem;
using windowed_rope::MethodProblem;
using windowed_rope::MethodTables;
using windowed_rope::Strides;

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
  tile_window_method method = TILE_REROPE;
  double factor = 0;
  std::int64_t rotary_dim = 0;
  bool interleaved = false;
  float attention_factor = 0;
};
constexpr Case kCases[] = {{0, 0, 5, false, false, 0},
                           {2, 8, 0, true, false, 0.25f},
                           {1, 16, 4, false, true, 0},
                           {2, 0, INT64_MAX, true, true, 0.5f}};
constexpr Case kMethodCases[] = {
    {0, 0, 6, true, false, 0},
    {2, 8, 4, true, false, 0.25f, TILE_LEAKY_REROPE, 2.5, 32, true, 1.5f},
    {1, 16, 5, true, true, 0, TILE_SELF_EXTEND, 3, 0, false, 0.75f},
    {2, 0, 0, true, true, 0.5f, TILE_LEAKY_REROPE}};
const std::vector<int> kQueryLengths{13, 6}, kKeyLengths{9, 21};

// An operation and its pass: its functions in the library and in the chapter.
template <class ArgsType, class LadderType>
struct Operation {
  using Args = ArgsType;
  using Problem = typename LadderType::Problem;

  const LadderType& ladder;
  std::span<const Case> cases;
  tile_status (*run)(const Args*);
  tile_status (*refer)(const Args*);
  tile_status (*tell)(const Args*, std::int64_t*);
};
template <class Args, class Ladder>
Operation(const Ladder&, std::span<const Case>, tile_status (*)(const Args*),
          tile_status (*)(const Args*), tile_status (*)(const Args*, std::int64_t*))
    -> Operation<Args, Ladder>;

template <class Check>
void for_each_operation(Check check) {
  const std::span<const Case> cases = kCases, method_cases = kMethodCases;
  check(Operation{windowed_rope::kForwardLadder, cases, tile_windowed_attention,
                  tile_windowed_attention_reference, tile_windowed_attention_workspace_bytes});
  check(Operation{windowed_rope::kBackwardLadder, cases, tile_windowed_attention_backward,
                  tile_windowed_attention_backward_reference,
                  tile_windowed_attention_backward_workspace_bytes});
  check(Operation{windowed_rope::kMethodLadder, method_cases, tile_windowed_rotary_attention,
                  tile_windowed_rotary_attention_reference,
                  tile_windowed_rotary_attention_workspace_bytes});
  check(Operation{windowed_rope::kMethodBackwardLadder, method_cases,
                  tile_windowed_rotary_attention_backward,
                  tile_windowed_rotary_attention_backward_reference,
                  tile_windowed_rotary_attention_backward_workspace_bytes});
}

template <class Struct>
inline constexpr bool kIsBackward = requires(Struct s) {
  s.dv;
};
template <class Struct>
inline constexpr bool kIsMethod = requires(Struct s) {
  s.rotary_dim;
};
template <class Args>
using ForwardArgs = std::conditional_t<kIsMethod<Args>, tile_windowed_rotary_attention_args,
                                       tile_windowed_attention_args>;
template <class Problem>
using ForwardOf = std::conditional_t<kIsMethod<Problem>, MethodProblem, ForwardProblem>;

// The members for a tensor in both structs. Outputs are not const.
template <class Pointer>
struct Place {
  static constexpr bool kIsOutput = std::is_same_v<Pointer, void*>;
  const char* name;
  Pointer& data;
  std::int64_t (&strides)[3];
  Strides& stride;
  std::int64_t length, heads;

  std::int64_t rows() const { return kBatch * length; }
  std::int64_t cols() const { return heads * kDim; }
};

template <class Args, class Problem, class Visit>
void for_each_tensor(Args& a, Problem& p, Visit visit) {
  const auto queries = [&](const char* name, auto& data, std::int64_t(&strides)[3], Strides& s) {
    visit(Place<std::decay_t<decltype(data)>>{name, data, strides, s, kQueries, kHeads});
  };
  const auto keys = [&](const char* name, auto& data, std::int64_t(&strides)[3], Strides& s) {
    visit(Place<std::decay_t<decltype(data)>>{name, data, strides, s, kKeys, p.kv_heads});
  };
  if constexpr (kIsMethod<Args>) {
    queries("q", a.q, a.q_strides, p.q);
    keys("k", a.k, a.k_strides, p.k);
  } else {
    queries("q1", a.q1, a.q1_strides, p.q1);
    keys("k1", a.k1, a.k1_strides, p.k1);
    queries("q2", a.q2, a.q2_strides, p.q2);
    keys("k2", a.k2, a.k2_strides, p.k2);
  }
  keys("v", a.v, a.v_strides, p.v);
  queries("o", a.o, a.o_strides, p.o);
  if constexpr (kIsBackward<Args>) {
    queries("dout", a.dout, a.dout_strides, p.dout);
    if constexpr (kIsMethod<Args>) {
      queries("dq", a.dq, a.dq_strides, p.dq);
      keys("dk", a.dk, a.dk_strides, p.dk);
    } else {
      queries("dq1", a.dq1, a.dq1_strides, p.dq1);
      keys("dk1", a.dk1, a.dk1_strides, p.dk1);
      queries("dq2", a.dq2, a.dq2_strides, p.dq2);
      keys("dk2", a.dk2, a.dk2_strides, p.dk2);
    }
    keys("dv", a.dv, a.dv_strides, p.dv);
  }
}

template <class Args, class Problem>
Problem problem_of(const Case& c, DType type) {
  Problem p{.type = type,
            .batch = kBatch,
            .heads = kHeads,
            .queries = kQueries,
            .keys = kKeys,
            .head_dim = kDim,
            .kv_heads = c.kv_heads == 0 ? kHeads : c.kv_heads};
  p.window = c.window;
  p.causal = c.causal;
  p.scale = c.scale == 0 ? 0.125f : c.scale;
  if constexpr (kIsMethod<Problem>) {
    p.method = static_cast<Method>(c.method);
    p.factor = c.factor == 0 ? 1 : c.factor;
    p.rotary_dim = c.rotary_dim == 0 ? kDim : c.rotary_dim;
    p.layout = c.interleaved ? rope::Layout::interleaved : rope::Layout::half_split;
    p.table_positions = kTablePositions;
    p.attention_factor = c.attention_factor == 0 ? 1 : c.attention_factor;
  }
  // Tensors are [batch length][heads dim] in memory. Each has a distance of rows of its own.
  Args args{};
  int tensor = 0;
  for_each_tensor(args, p, [&](auto place) {
    const std::int64_t row = place.cols() + c.padding * ++tensor;
    place.stride = {place.length * row, kDim, row};
  });
  return p;
}

template <class Operation>
typename Operation::Args sizes(const Operation&, const Case& c, tile_type type) {
  using Args = typename Operation::Args;
  Args args{};
  args.struct_size = sizeof args;
  args.type = type;
  args.causal = c.causal;
  args.scale = c.scale;
  args.batch = kBatch, args.heads = kHeads, args.queries = kQueries, args.keys = kKeys;
  args.head_dim = kDim, args.kv_heads = c.kv_heads;
  args.window = c.window;
  if constexpr (kIsMethod<Args>) {
    args.method = c.method, args.factor = c.factor;
    args.rotary_dim = c.rotary_dim, args.interleaved = c.interleaved;
    args.table_positions = kTablePositions;
    args.attention_factor = c.attention_factor;
  }
  if (c.padding == 0) return args;
  auto p = problem_of<Args, typename Operation::Problem>(c, DType::fp32);
  for_each_tensor(args, p, [](auto place) {
    const Strides& from = place.stride;
    place.strides[0] = from.batch, place.strides[1] = from.head, place.strides[2] = from.row;
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

Outputs of_forward(const tile::AttentionExpected& e) { return {{"o", e.o}, {"lse", e.lse}}; }
Outputs expected_of(const ForwardProblem& p, const Data& d) {
  return of_forward(reference(p, {.q = d["q1"],
                                  .k = d["k1"],
                                  .v = d["v"],
                                  .query_lengths = d.query_lengths,
                                  .key_lengths = d.key_lengths,
                                  .far = {d["q2"], d["k2"]}}));
}
Outputs expected_of(const MethodProblem& p, const Data& d) {
  return of_forward(
      reference(p, {d["q"], d["k"], d["v"], d.frequencies, d.query_lengths, d.key_lengths}));
}
Outputs expected_of(const BackwardProblem& p, const Data& d) {
  const tile::AttentionGradients e = reference(p, {.q = d["q1"],
                                                   .k = d["k1"],
                                                   .v = d["v"],
                                                   .o = d["o"],
                                                   .lse = d["lse"],
                                                   .dout = d["dout"],
                                                   .query_lengths = d.query_lengths,
                                                   .key_lengths = d.key_lengths,
                                                   .far = {d["q2"], d["k2"]}});
  return {{"dq1", e.dq}, {"dk1", e.dk}, {"dq2", e.far_dq}, {"dk2", e.far_dk}, {"dv", e.dv}};
}
Outputs expected_of(const MethodBackwardProblem& p, const Data& d) {
  const tile::AttentionGradients e =
      reference(p, {d["q"], d["k"], d["v"], d["o"], d["lse"], d["dout"], d.frequencies,
                    d.query_lengths, d.key_lengths});
  return {{"dq", e.dq}, {"dk", e.dk}, {"dv", e.dv}};
}

template <class Operation>
Data data_of(const Operation&, const Case& c, DType type) {
  using Args = typename Operation::Args;
  using Problem = typename Operation::Problem;
  auto p = problem_of<Args, Problem>(c, type);
  Data d;
  if (c.lengths) d.query_lengths = kQueryLengths, d.key_lengths = kKeyLengths;
  if constexpr (kIsMethod<Problem>) d.frequencies = rope::paper_frequencies(p.rotary_dim);
  Args args{};
  for_each_tensor(args, p, [&](auto place) {
    const auto seed = static_cast<std::uint64_t>(d.in.size() + 1);
    if (!place.kIsOutput) d.in[place.name] = tile::normal(place.rows() * place.cols(), type, seed);
  });
  if constexpr (kIsBackward<Problem>) {  // o and lse are the reference's, rounded
    const Outputs forward =
        expected_of(problem_of<ForwardArgs<Args>, ForwardOf<Problem>>(c, type), d);
    d.in["o"] = tile::rounded(forward.at("o").value, type);
    d.in["lse"] = tile::rounded(forward.at("lse").value, type == DType::fp64 ? type : DType::fp32);
  }
  d.out = expected_of(p, d);
  return d;
}

template <class Operation>
Memory place(const Operation& operation, const Case& c, DType type, const Data& d,
             typename Operation::Args* args) {
  using Args = typename Operation::Args;
  auto p = problem_of<Args, typename Operation::Problem>(c, type);
  Memory memory;
  for_each_tensor(*args, p, [&](auto at) {
    if constexpr (at.kIsOutput) {
      at.data =
          memory.output(at.name, type, at.rows(), at.cols(), at.stride.row, d.out.at(at.name));
    } else {
      at.data = memory.input(at.name, type, at.rows(), at.stride.row, d[at.name]);
    }
  });
  constexpr std::int64_t kRows = kBatch * kHeads * kQueries;
  if constexpr (kIsBackward<Args>) {
    const Values lse = heads_first(d["lse"], kBatch, kHeads);
    args->lse = memory.input("lse", DType::fp32, 1, kRows, lse);
  } else {
    tile::Expected lse = d.out.at("lse");
    lse.value = heads_first(lse.value, kBatch, kHeads);
    lse.bound = heads_first(lse.bound, kBatch, kHeads);
    args->lse = memory.output("lse", DType::fp32, 1, kRows, kRows, lse);
  }
  if constexpr (kIsMethod<Args>) {
    const MethodTables tables =
        windowed_rope::method_tables({p.method, p.window, p.factor}, d.frequencies,
                                     p.table_positions, static_cast<double>(p.attention_factor));
    const auto input = [&](const char* name, const std::vector<float>& table) {
      return memory.input(name, DType::fp32, 3 * p.table_positions, p.rotary_dim / 2,
                          Values(table.begin(), table.end()));
    };
    args->cos = input("cos", tables.cos);
    args->sin = input("sin", tables.sin);  // no kernel needs frequencies
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
    using Problem = typename std::decay_t<decltype(operation)>::Problem;
    for (const Case& c : operation.cases) {
      CAPTURE(operation.ladder.name);
      CAPTURE(&c - operation.cases.data());
      const Data d = data_of(operation, c, DType::fp64);
      auto p = problem_of<Args, Problem>(c, DType::fp64);
      Args args = sizes(operation, c, TILE_FP64);
      std::map<std::string, Values> host;
      for_each_tensor(args, p, [&](auto place) {
        const Values packed =
            place.kIsOutput
                ? Values(static_cast<std::size_t>(place.rows() * place.cols()), kUntouched)
                : d[place.name];
        host[place.name] = spread(packed, place.cols(), place.stride.row, kUntouched);
        place.data = host[place.name].data();
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
      if constexpr (kIsMethod<Args>) {
        const Values tables(3 * kTablePositions * kDim / 2);  // not read
        args.cos = args.sin = tables.data();
        check_refused(operation.refer(&args), TILE_INVALID_ARGUMENT, "frequencies");
        args.cos = args.sin = nullptr;
        args.frequencies = d.frequencies.data();
      }
      check_ok(operation.refer(&args));
      for_each_tensor(args, p, [&](auto place) {
        const Values& wanted = place.kIsOutput ? d.out.at(place.name).value : d.in.at(place.name);
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
    unsupported("queries, keys, heads and head_dim", [](Args& a) { a.keys = INT64_MAX; });
    invalid("kv_heads", [](Args& a) { a.kv_heads = 3; });
    invalid("v", [](Args& a) { a.v = static_cast<const char*>(a.v) + 1; });
    invalid("v", [](Args& a) { a.v_strides[2] = -1; });
    invalid("workspace_bytes", [](Args& a) { a.workspace_bytes = -1; });
    if constexpr (kIsBackward<Args>) {
      invalid("lse", [](Args& a) { a.lse = nullptr; });
      invalid("dout", [](Args& a) { a.dout = nullptr; });
      invalid("dv", [](Args& a) { a.dv = const_cast<void*>(a.v); });
    } else {
      invalid("o", [](Args& a) { a.o = nullptr; });
      invalid("o", [](Args& a) { a.o = const_cast<void*>(a.v); });
      invalid("lse", [](Args& a) { a.lse = a.o; });
    }
    if constexpr (kIsMethod<Args>) {
      unsupported("causal", [](Args& a) { a.causal = 0; });
      invalid("interleaved", [](Args& a) { a.interleaved = -1; });
      invalid("method", [](Args& a) { a.method = TILE_SELF_EXTEND + 1; });
      invalid("window", [](Args& a) { a.window = -1; });
      invalid("factor", [](Args& a) { a.factor = 0.5; });
      invalid("factor", [](Args& a) { a.method = TILE_SELF_EXTEND; });  // 2.5
      invalid("rotary_dim", [](Args& a) { a.rotary_dim = 3; });
      invalid("table_positions", [](Args& a) { a.table_positions = kKeys - 1; });
      invalid("attention_factor", [](Args& a) { a.attention_factor = NAN; });
      invalid("k", [](Args& a) { a.k = nullptr; });
      invalid("cos", [](Args& a) { a.cos = nullptr, a.frequencies = a.v; });
      invalid("sin", [](Args& a) { a.sin = nullptr; });
      unsupported("workspace_bytes", [](Args& a) { a.step = "composed", a.workspace_bytes -= 1; });
    } else {
      invalid("q1", [](Args& a) { a.q1 = nullptr; });
      invalid("k2", [](Args& a) { a.k2 = nullptr; });
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
    using Problem = typename std::decay_t<decltype(operation)>::Problem;
    CAPTURE(operation.ladder.name);
    const auto& ladder = operation.ladder;
    std::int64_t bytes = -1;
    // The workspace of the step that takes the problem if the pointers are aligned.
    for (const Case& c : operation.cases) {
      const auto p = problem_of<Args, Problem>(c, DType::bf16);
      Args args = sizes(operation, c, TILE_BF16);
      for (std::size_t i = 0; i <= ladder.steps.size(); ++i) {
        const bool named = i < ladder.steps.size();
        const std::string name(named ? ladder.steps[i].name : "");
        args.step = named ? name.c_str() : nullptr;
        check_ok(operation.tell(&args, &bytes));
        typename std::decay_t<decltype(ladder)>::Buffers aligned;
        aligned.workspace_bytes = INT64_MAX;
        tile::Choice taker;
        REQUIRE(choose_step(ladder, named ? i : i - 1, p, aligned, &taker).ok());
        CHECK(bytes == workspace_bytes(p, ladder.steps[taker.step].name));
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
  static_assert(static_cast<int>(Method::rerope) == TILE_REROPE);
  static_assert(static_cast<int>(Method::leaky_rerope) == TILE_LEAKY_REROPE);
  static_assert(static_cast<int>(Method::self_extend) == TILE_SELF_EXTEND);
  constexpr std::int64_t kRotaryDim = 16, kRows = 9;
  const Values frequencies = rope::paper_frequencies(kRotaryDim);
  const auto check = [&](const tile_windowed_rotary_tables_args& wanted,
                         const windowed_rope::MethodRule& rule, double attention_factor) {
    constexpr std::size_t kCount = 3 * kRows * kRotaryDim / 2;
    std::vector<float> cos(kCount + 1, 7), sin = cos;
    tile_windowed_rotary_tables_args args = wanted;
    args.cos = cos.data(), args.sin = sin.data();
    check_ok(tile_windowed_rotary_tables(&args));
    MethodTables tables = windowed_rope::method_tables(rule, frequencies, kRows, attention_factor);
    tables.cos.push_back(7), tables.sin.push_back(7);
    CHECK(cos == tables.cos);
    CHECK(sin == tables.sin);
  };
  for (const tile_window_method method : {TILE_REROPE, TILE_LEAKY_REROPE, TILE_SELF_EXTEND}) {
    CAPTURE(method);
    tile_windowed_rotary_tables_args args{};
    args.struct_size = sizeof args;
    args.method = method;
    args.rotary_dim = kRotaryDim, args.positions = kRows;
    args.frequencies = frequencies.data();
    check_ok(tile_windowed_rotary_tables(&args));  // nothing is wanted
    windowed_rope::MethodRule rule{.method = static_cast<Method>(method)};
    check(args, rule, 1);
    args.window = rule.window = 5, args.factor = rule.factor = 3, args.attention_factor = 1.5f;
    check(args, rule, 1.5);
  }
}

TEST_CASE("windowed attention: what is wrong with tables is named, and nothing is written") {
  const double one = 1;
  float cos[3] = {7, 7, 7};
  tile_windowed_rotary_tables_args good{};
  good.struct_size = sizeof good;
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
  refuses("method", [](Args& a) { a.method = -1; });
  refuses("window", [](Args& a) { a.window = -1; });
  refuses("factor", [](Args& a) { a.method = TILE_LEAKY_REROPE, a.factor = 0.5; });
  refuses("rotary_dim", [](Args& a) { a.rotary_dim = 3; });
  refuses("rotary_dim", [](Args& a) { a.rotary_dim = -2; });
  refuses("positions", [](Args& a) { a.positions = -1; });
  refuses(
      "positions", [](Args& a) { a.positions = INT64_MAX; }, TILE_UNSUPPORTED);
  refuses("attention_factor", [](Args& a) { a.attention_factor = -1; });
  refuses("frequencies", [](Args& a) { a.frequencies = nullptr; });
  check_ok(tile_windowed_rotary_tables(&good));
  CHECK(std::ranges::count(cos, 1) == 3);  // the three rows of position 0
}

}  // namespace windowed_attention_test
