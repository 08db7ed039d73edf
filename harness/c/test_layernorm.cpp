// LayerNorm and RMSNorm by the C interface, called as a C program calls it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

#include "04_layernorm/reference.hpp"
#include "harness/c/test_support.hpp"

namespace layernorm_test {
namespace {

constexpr std::int64_t kRows = 23, kCols = 45;

struct Case {
  layernorm::Norm norm;
  std::int64_t padding;  // of each matrix; 0: leading dimensions are left 0
  bool affine;           // with gamma, and beta if there is one
  bool all;              // with outputs that may be left out
  std::optional<float> eps;
};
constexpr Case kCases[] = {{layernorm::Norm::layer, 0, true, true, {}},
                           {layernorm::Norm::layer, 3, true, true, 0.f},
                           {layernorm::Norm::layer, 5, false, false, 0.5f},
                           {layernorm::Norm::rms, 0, true, true, 0.25f},
                           {layernorm::Norm::rms, 2, false, false, {}}};

layernorm::ForwardProblem forward_problem(const Case& c, DType type) {
  layernorm::ForwardProblem p{type, kRows, kCols, c.norm};
  if (c.eps) p.eps = *c.eps;
  p.ldx = kCols + c.padding;
  p.ldy = kCols + 2 * c.padding;
  return p;
}
layernorm::BackwardProblem backward_problem(const Case& c, DType type) {
  layernorm::BackwardProblem p{type, kRows, kCols, c.norm};
  p.ldx = kCols + c.padding;
  p.lddy = kCols + 2 * c.padding;
  p.lddx = kCols + 3 * c.padding;
  return p;
}

template <class Args>
Args sized(tile_type type, std::int64_t rows, std::int64_t cols) {
  Args args{};
  args.struct_size = sizeof args;
  args.type = type;
  args.rows = rows;
  args.cols = cols;
  return args;
}

tile_norm norm_of(const Case& c) {
  return c.norm == layernorm::Norm::layer ? TILE_LAYER_NORM : TILE_RMS_NORM;
}

// The arguments of a case without pointers. Defaults are left to the library.
tile_layernorm_args forward_arguments(const Case& c, tile_type type) {
  auto args = sized<tile_layernorm_args>(type, kRows, kCols);
  args.norm = norm_of(c);
  if (c.eps) args.eps = &*c.eps;
  if (c.padding == 0) return args;
  const auto p = forward_problem(c, DType::fp32);
  args.ldx = p.ldx;
  args.ldy = p.ldy;
  return args;
}
tile_layernorm_backward_args backward_arguments(const Case& c, tile_type type) {
  auto args = sized<tile_layernorm_backward_args>(type, kRows, kCols);
  args.norm = norm_of(c);
  if (c.padding == 0) return args;
  const auto p = backward_problem(c, DType::fp32);
  args.ldx = p.ldx;
  args.lddy = p.lddy;
  args.lddx = p.lddx;
  return args;
}

// The inputs of both directions, without padding. mean and rstd are any numbers of fp32.
struct Inputs {
  Values x, gamma, beta, mean, rstd, dy;

  Inputs(const Case& c, DType type)
      : x(tile::normal(kRows * kCols, type, 1)),
        rstd(tile::uniform(kRows, DType::fp32, 5, 0.5, 1.5)),
        dy(tile::normal(kRows * kCols, type, 6)) {
    if (c.affine) gamma = tile::normal(kCols, type, 2);
    if (c.norm == layernorm::Norm::rms) return;
    if (c.affine) beta = tile::normal(kCols, type, 3);
    mean = tile::uniform(kRows, DType::fp32, 4, -0.5, 0.5);
  }
};

Memory place(const Case& c, DType type, const Inputs& in, tile_layernorm_args* args) {
  const auto p = forward_problem(c, type);
  const bool layer = c.norm == layernorm::Norm::layer;
  const auto expected = layernorm::reference(p, in.x, in.gamma, in.beta);
  Memory memory;
  args->x = memory.input("x", type, p.rows, p.ldx, in.x);
  args->gamma = memory.input("gamma", type, 1, p.cols, in.gamma);
  args->beta = memory.input("beta", type, 1, p.cols, in.beta);
  args->y = memory.output("y", type, p.rows, p.cols, p.ldy, expected.y);
  if (!c.all) return memory;
  if (layer) args->mean = memory.output("mean", DType::fp32, 1, p.rows, p.rows, expected.mean);
  args->rstd = memory.output("rstd", DType::fp32, 1, p.rows, p.rows, expected.rstd);
  return memory;
}

Memory place(const Case& c, DType type, const Inputs& in, tile_layernorm_backward_args* args) {
  const auto p = backward_problem(c, type);
  const bool layer = c.norm == layernorm::Norm::layer;
  const auto expected = layernorm::reference(p, in.x, in.gamma, in.mean, in.rstd, in.dy);
  Memory memory;
  args->x = memory.input("x", type, p.rows, p.ldx, in.x);
  args->gamma = memory.input("gamma", type, 1, p.cols, in.gamma);
  args->mean = memory.input("mean", DType::fp32, 1, p.rows, in.mean);
  args->rstd = memory.input("rstd", DType::fp32, 1, p.rows, in.rstd);
  args->dy = memory.input("dy", type, p.rows, p.lddy, in.dy);
  args->dx = memory.output("dx", type, p.rows, p.cols, p.lddx, expected.dx);
  std::int64_t bytes = -1;
  check_ok(tile_layernorm_backward_workspace_bytes(args, &bytes));
  CHECK(bytes == layernorm::workspace_bytes(p));
  args->workspace = memory.scratch(bytes);
  if (!c.all) return memory;
  args->dgamma = memory.output("dgamma", type, 1, p.cols, p.cols, expected.dgamma);
  if (layer) args->dbeta = memory.output("dbeta", type, 1, p.cols, p.cols, expected.dbeta);
  return memory;
}

tile_status call(const tile_layernorm_args& args) { return tile_layernorm(&args); }
tile_status call(const tile_layernorm_backward_args& args) {
  return tile_layernorm_backward(&args);
}
tile_status refer(const tile_layernorm_args& args) { return tile_layernorm_reference(&args); }
tile_status refer(const tile_layernorm_backward_args& args) {
  return tile_layernorm_backward_reference(&args);
}

// Every step by its name, and the best without one.
template <class Ladder, class Args>
void check_steps(const Ladder& ladder, const Case& c,
                 typename Ladder::Problem (*problem)(const Case&, DType),
                 Args (*arguments)(const Case&, tile_type)) {
  for (std::size_t t = 0; t < std::size(kTypes); ++t) {
    const DType type = tile::kDTypes[t];
    const typename Ladder::Problem p = problem(c, type);
    const std::vector<std::string> best = steps_here(ladder, p, {});
    Args args = arguments(c, kTypes[t]);
    if (best.empty()) {
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
      // The step that runs: the last that takes the problem, or the named one or the one that it
      // falls back to.
      tile::Choice choice{find_step(ladder, best.back()), {}};
      if (named) REQUIRE(choose_step(ladder, i, p, {}, &choice).ok());
      const Memory memory = place(c, type, in, &args);
      check_ok(call(args));
      CHECK(tile_last_step() == ladder.steps[choice.step].name);
      memory.check();
    }
  }
}

}  // namespace

TEST_CASE("every step normalises, forward and backward, and without a name it is the best") {
  for (const Case& c : kCases) {
    check_steps(layernorm::kForwardLadder, c, forward_problem, forward_arguments);
    check_steps(layernorm::kBackwardLadder, c, backward_problem, backward_arguments);
  }
}

TEST_CASE("a step of the other pass is refused") {
  tile_layernorm_args forward = forward_arguments(kCases[0], TILE_FP32);
  tile_layernorm_backward_args backward = backward_arguments(kCases[0], TILE_FP32);
  const Inputs in(kCases[0], DType::fp32);
  const Memory first = place(kCases[0], DType::fp32, in, &forward);
  const Memory second = place(kCases[0], DType::fp32, in, &backward);
  forward.step = "atomics";
  check_refused(call(forward), TILE_INVALID_ARGUMENT, "step");
  backward.step = "welford";
  check_refused(call(backward), TILE_INVALID_ARGUMENT, "step");
  first.check_untouched();
  second.check_untouched();
}

TEST_CASE("the references of LayerNorm compute in double on the host, in place too") {
  constexpr double kUntouched = -77;
  for (const Case& c : kCases) {
    CAPTURE(&c - kCases);
    const Inputs in(c, DType::fp64);
    const bool layer = c.norm == layernorm::Norm::layer;
    for (const bool in_place : {false, true}) {
      const layernorm::ForwardProblem p = forward_problem(c, DType::fp64);
      const auto data = [](const Values& values) {
        return values.empty() ? nullptr : const_cast<double*>(values.data());
      };
      Values x = spread(in.x, kCols, p.ldx, kUntouched);
      Values y(static_cast<std::size_t>(kRows * p.ldy), kUntouched);
      Values mean(kRows, kUntouched), rstd(kRows, kUntouched);
      tile_layernorm_args forward = forward_arguments(c, TILE_FP64);
      forward.x = x.data();
      forward.gamma = data(in.gamma);
      forward.beta = data(in.beta);
      forward.y = in_place ? x.data() : y.data();
      if (in_place) forward.ldy = forward.ldx;
      if (c.all) forward.rstd = rstd.data();
      if (c.all && layer) forward.mean = mean.data();
      const layernorm::ForwardReference found = layernorm::reference(p, in.x, in.gamma, in.beta);
      check_ok(refer(forward));
      CHECK((in_place ? x : y) ==
            spread(found.y.value, kCols, in_place ? p.ldx : p.ldy, kUntouched));
      CHECK(rstd == (c.all ? found.rstd.value : Values(kRows, kUntouched)));
      CHECK(mean == (c.all && layer ? found.mean.value : Values(kRows, kUntouched)));

      const layernorm::BackwardProblem q = backward_problem(c, DType::fp64);
      x = spread(in.x, kCols, q.ldx, kUntouched);
      Values dy = spread(in.dy, kCols, q.lddy, kUntouched);
      Values dx(static_cast<std::size_t>(kRows * q.lddx), kUntouched);
      Values dgamma(kCols, kUntouched), dbeta(kCols, kUntouched);
      tile_layernorm_backward_args backward = backward_arguments(c, TILE_FP64);
      backward.x = x.data();
      backward.gamma = data(in.gamma);
      backward.mean = data(in.mean);
      backward.rstd = data(in.rstd);
      backward.dy = dy.data();
      backward.dx = in_place ? dy.data() : dx.data();
      if (in_place) backward.lddx = backward.lddy;
      if (c.all) backward.dgamma = dgamma.data();
      if (c.all && layer) backward.dbeta = dbeta.data();
      const layernorm::BackwardReference gradients =
          layernorm::reference(q, in.x, in.gamma, in.mean, in.rstd, in.dy);
      check_ok(refer(backward));
      CHECK((in_place ? dy : dx) ==
            spread(gradients.dx.value, kCols, in_place ? q.lddy : q.lddx, kUntouched));
      CHECK(dgamma == (c.all ? gradients.dgamma.value : Values(kCols, kUntouched)));
      CHECK(dbeta == (c.all && layer ? gradients.dbeta.value : Values(kCols, kUntouched)));
    }
  }
}

namespace {

// Both directions' arguments on the device and on the host, all outputs wanted.
struct Calls {
  const Case& c = kCases[0];
  Inputs in{c, DType::fp32};
  tile_layernorm_args forward = forward_arguments(c, TILE_FP32);
  tile_layernorm_backward_args backward = backward_arguments(c, TILE_FP32);
  Memory forward_memory = place(c, DType::fp32, in, &forward);
  Memory backward_memory = place(c, DType::fp32, in, &backward);
  // Room for any array of doubles, 2,048 of them apart.
  Values host = Values(16 * 2048, 5);
  tile_layernorm_args forward_on_host = forward;
  tile_layernorm_backward_args backward_on_host = backward;

  Calls() {
    auto at = [this](std::size_t i) { return &host[i * 2048]; };
    auto& f = forward_on_host;
    f.type = TILE_FP64;
    f.x = at(0), f.gamma = at(1), f.beta = at(2), f.y = at(3), f.mean = at(4), f.rstd = at(5);
    auto& b = backward_on_host;
    b.type = TILE_FP64;
    b.x = at(6), b.gamma = at(7), b.mean = at(8), b.rstd = at(9), b.dy = at(10), b.dx = at(11);
    b.dgamma = at(12), b.dbeta = at(13), b.workspace = nullptr;
  }
};

}  // namespace

TEST_CASE("bad arguments of layernorm are refused by name and nothing is written") {
  Calls calls;
  auto refused = [&](const char* argument, const auto& device, const auto& host, auto change) {
    auto bad = device;
    change(bad);
    check_refused(call(bad), TILE_INVALID_ARGUMENT, argument);
    CHECK(std::string(tile_last_step()).empty());
    bad = host;
    change(bad);
    check_refused(refer(bad), TILE_INVALID_ARGUMENT, argument);
  };
  auto forward = [&](const char* argument, auto change) {
    refused(argument, calls.forward, calls.forward_on_host, change);
  };
  auto backward = [&](const char* argument, auto change) {
    refused(argument, calls.backward, calls.backward_on_host, change);
  };
  auto both = [&](const char* argument, auto change) {
    forward(argument, change);
    backward(argument, change);
  };
  both("rows", [](auto& args) { args.rows = -1; });
  both("cols", [](auto& args) { args.cols = -1; });
  both("type", [](auto& args) { args.type = 0; });
  both("type", [](auto& args) { args.type = 7; });
  for (const tile_norm unknown : {-1, 2}) {
    both("norm", [unknown](auto& args) { args.norm = unknown; });
  }
  both("ldx", [](auto& args) { args.ldx = kCols - 1; });
  both("x", [](auto& args) { args.ldx = INT64_MAX; });
  both("x", [](auto& args) { args.x = nullptr; });
  both("gamma", [](auto& args) { args.gamma = static_cast<const char*>(args.gamma) + 1; });
  forward("ldy", [](auto& args) { args.ldy = -1; });
  forward("y", [](auto& args) { args.y = nullptr; });
  forward("y", [](auto& args) { args.y = const_cast<void*>(args.beta); });
  forward("mean", [](auto& args) { args.mean = args.y; });
  forward("rstd", [](auto& args) { args.rstd = args.mean; });
  forward("beta", [](auto& args) { args.norm = TILE_RMS_NORM; });
  forward("mean", [](auto& args) { args.norm = TILE_RMS_NORM, args.beta = nullptr; });
  static constexpr float kBad[] = {-1, NAN, INFINITY};
  for (const float& eps : kBad) {
    forward("eps", [&eps](auto& args) { args.eps = &eps; });
  }
  backward("lddy", [](auto& args) { args.lddy = kCols - 1; });
  backward("lddx", [](auto& args) { args.lddx = kCols - 1; });
  backward("mean", [](auto& args) { args.mean = nullptr; });
  backward("rstd", [](auto& args) { args.rstd = nullptr; });
  backward("dy", [](auto& args) { args.dy = nullptr; });
  backward("dx", [](auto& args) { args.dx = nullptr; });
  backward("dx", [](auto& args) { args.dx = const_cast<void*>(args.gamma); });
  backward("dgamma", [](auto& args) { args.dgamma = args.dx; });
  backward("dbeta", [](auto& args) { args.dbeta = args.dgamma; });
  backward("mean", [](auto& args) { args.norm = TILE_RMS_NORM; });
  backward("dbeta", [](auto& args) { args.norm = TILE_RMS_NORM, args.mean = nullptr; });

  // The reference does not take the kernels' types.
  check_refused(refer(calls.forward), TILE_UNSUPPORTED, "type");
  check_refused(refer(calls.backward), TILE_UNSUPPORTED, "type");
  check_refused(call(calls.forward_on_host), TILE_UNSUPPORTED, "type");
  check_refused(call(calls.backward_on_host), TILE_UNSUPPORTED, "type");
  if (calls.backward.workspace) {
    tile_layernorm_backward_args bad = calls.backward;
    bad.workspace = nullptr;
    check_refused(call(bad), TILE_INVALID_ARGUMENT, "workspace");
    bad.workspace = bad.dx;
    check_refused(call(bad), TILE_INVALID_ARGUMENT, "workspace");
  }
  tile_layernorm_args unnamed = calls.forward;
  unnamed.step = "fastest";
  check_refused(call(unnamed), TILE_INVALID_ARGUMENT, "step");
  check_refused(tile_layernorm(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_layernorm_backward(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_layernorm_reference(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_layernorm_backward_reference(nullptr), TILE_INVALID_ARGUMENT, "args");
  unnamed.struct_size = offsetof(tile_layernorm_args, stream);
  check_refused(call(unnamed), TILE_INVALID_ARGUMENT, "struct_size");
  tile_layernorm_backward_args shorter = calls.backward;
  shorter.struct_size = offsetof(tile_layernorm_backward_args, stream);
  check_refused(call(shorter), TILE_INVALID_ARGUMENT, "struct_size");

  calls.forward_memory.check_untouched();
  calls.backward_memory.check_untouched();
  CHECK(calls.host == Values(16 * 2048, 5));
  check_ok(call(calls.forward));
  check_ok(call(calls.backward));
  calls.forward_memory.check();
  calls.backward_memory.check();
  check_ok(refer(calls.forward_on_host));
  check_ok(refer(calls.backward_on_host));
  CHECK(calls.host[3 * 2048] == 5);  // xhat is 0, and beta is 5
}

TEST_CASE("the workspace of layernorm: its size, and what is refused") {
  auto args = sized<tile_layernorm_backward_args>(TILE_BF16, 1000, 70);
  std::int64_t bytes = -1;
  check_ok(tile_layernorm_backward_workspace_bytes(&args, &bytes));
  CHECK(bytes == layernorm::workspace_bytes({DType::bf16, 1000, 70}));
  CHECK(bytes > 0);
  auto refused = [&args](tile_status status, const char* argument, auto change) {
    tile_layernorm_backward_args bad = args;
    change(bad);
    std::int64_t none = -1;
    check_refused(tile_layernorm_backward_workspace_bytes(&bad, &none), status, argument);
    CHECK(none == 0);
  };
  refused(TILE_INVALID_ARGUMENT, "rows", [](auto& a) { a.rows = -1; });
  refused(TILE_INVALID_ARGUMENT, "cols", [](auto& a) { a.cols = -1; });
  refused(TILE_INVALID_ARGUMENT, "x", [](auto& a) { a.rows = INT64_MAX; });
  refused(TILE_INVALID_ARGUMENT, "norm", [](auto& a) { a.norm = 2; });
  refused(TILE_INVALID_ARGUMENT, "type", [](auto& a) { a.type = 0; });
  refused(TILE_UNSUPPORTED, "type", [](auto& a) { a.type = TILE_FP64; });
  refused(TILE_INVALID_ARGUMENT, "struct_size", [](auto& a) { a.struct_size = 8; });
  check_refused(tile_layernorm_backward_workspace_bytes(&args, nullptr), TILE_INVALID_ARGUMENT,
                "bytes");
  check_refused(tile_layernorm_backward_workspace_bytes(nullptr, &bytes), TILE_INVALID_ARGUMENT,
                "args");
}

TEST_CASE("the workspace of layernorm forward: only for rows that are shared by the card") {
  auto args = sized<tile_layernorm_args>(TILE_FP16, 2, 40'000'001);
  std::int64_t bytes = -1;
  check_ok(tile_layernorm_workspace_bytes(&args, &bytes));
  CHECK(bytes == layernorm::split_bytes(layernorm::ForwardProblem{DType::fp16, 2, 40'000'001}));
  args.cols = 70;
  check_ok(tile_layernorm_workspace_bytes(&args, &bytes));
  CHECK(bytes == 0);
  args.rows = -1;
  check_refused(tile_layernorm_workspace_bytes(&args, &bytes), TILE_INVALID_ARGUMENT, "rows");
  check_refused(tile_layernorm_workspace_bytes(&args, nullptr), TILE_INVALID_ARGUMENT, "bytes");
  check_refused(tile_layernorm_workspace_bytes(nullptr, &bytes), TILE_INVALID_ARGUMENT, "args");
}

TEST_CASE("normalising nothing") {
  for (const auto& [rows, cols] : {std::pair{0, 5}, std::pair{5, 0}, std::pair{0, 0}}) {
    auto forward = sized<tile_layernorm_args>(TILE_FP32, rows, cols);
    check_ok(call(forward));
    forward.type = TILE_FP64;
    check_ok(refer(forward));
  }
  // Without rows the sums over them are 0.
  Values dgamma(5, 7), dbeta(5, 7);
  auto backward = sized<tile_layernorm_backward_args>(TILE_FP64, 0, 5);
  backward.dgamma = dgamma.data();
  backward.dbeta = dbeta.data();
  check_ok(refer(backward));
  CHECK(dgamma == Values(5, 0.0));
  CHECK(dbeta == Values(5, 0.0));
  backward.type = TILE_FP32;
  std::int64_t bytes = -1;
  check_ok(tile_layernorm_backward_workspace_bytes(&backward, &bytes));
  Memory memory;
  const tile::Expected zeros{{1, 5}, Values(5, 0.0), Values(5, 0.0)};
  backward.dgamma = memory.output("dgamma", DType::fp32, 1, 5, 5, zeros);
  backward.dbeta = memory.output("dbeta", DType::fp32, 1, 5, 5, zeros);
  backward.workspace = memory.scratch(bytes);
  check_ok(call(backward));
  memory.check();
  backward = sized<tile_layernorm_backward_args>(TILE_FP32, 5, 0);
  check_ok(call(backward));
  backward.type = TILE_FP64;
  check_ok(refer(backward));
}

TEST_CASE("layernorm runs in the stream that it is given") {
  Calls calls;
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  calls.forward.stream = calls.backward.stream = stream;
  check_ok(call(calls.forward));
  check_ok(call(calls.backward));
  check_ok(tile_synchronize(stream));
  calls.forward_memory.check();
  calls.backward_memory.check();
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  if (!tile::device().simulated) return;
  CHECK(call(calls.forward) == TILE_DEVICE_ERROR);
  CHECK(call(calls.backward) == TILE_DEVICE_ERROR);
  CHECK(std::string(tile_last_step()).empty());
}

}  // namespace layernorm_test
