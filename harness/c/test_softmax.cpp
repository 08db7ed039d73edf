// Softmax by the C interface, called as a C program calls it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "03_softmax/reference.hpp"
#include "harness/c/test_support.hpp"
#include "harness/convert.hpp"

namespace softmax_test {
namespace {

constexpr std::int64_t kRows = 6, kCols = 37;

struct Case {
  bool log;
  std::int64_t queries;  // 0: not causal; -1: causal, and the number is left to its default
  float scale;
  std::int64_t padding;  // 0: leading dimensions are left 0
};
constexpr Case kCases[] = {{false, 0, 1, 0},    {true, 0, 1, 0},     {false, 3, 1, 0},
                           {false, -1, 1, 4},   {true, 2, 0.25f, 2}, {false, 0, 2.5f, 3},
                           {true, -1, 0.1f, 0}, {true, 0, 0.3f, 5}};

template <class Args>
Args arguments(tile_type type, const Case& c = kCases[0]) {
  Args args{};
  args.struct_size = sizeof args;
  args.type = type;
  args.rows = kRows;
  args.cols = kCols;
  args.log = c.log;
  args.causal = c.queries != 0;
  // Defaults are left to the library.
  if (c.queries > 0) args.queries = c.queries;
  if (c.scale != 1) args.scale = c.scale;
  return args;
}

tile_softmax_args forward_arguments(tile_type type, const Case& c = kCases[0]) {
  auto args = arguments<tile_softmax_args>(type, c);
  if (c.padding > 0) {
    args.ldx = kCols + c.padding;
    args.ldy = kCols + c.padding + 1;
  }
  return args;
}

tile_softmax_backward_args backward_arguments(tile_type type, const Case& c = kCases[0]) {
  auto args = arguments<tile_softmax_backward_args>(type, c);
  if (c.padding > 0) {
    args.ldy = kCols + c.padding;
    args.lddy = kCols + c.padding + 1;
    args.lddx = kCols + c.padding + 2;
  }
  return args;
}

template <class Problem>
Problem problem_of(DType type, const Case& c) {
  Problem p{.type = type, .rows = kRows, .cols = kCols, .log = c.log};
  p.causal = c.queries != 0;
  p.queries = c.queries > 0 ? c.queries : kRows;
  p.scale = c.scale;
  return p;
}

tile::Layout layout_of(DType type, std::int64_t ld) {
  return tile::matrix_layout(type, kRows, kCols, ld == 0 ? kCols : ld);
}

bool is_visible(const Case& c, std::int64_t row, std::int64_t col) {
  const std::int64_t queries = c.queries > 0 ? c.queries : kRows;
  return c.queries == 0 || col <= row % queries + kCols - queries;
}

// Calls the operation with each step, and without a name, and checks what it wrote.
template <class Ladder, class Args, class Operation>
void check_every_step(const Ladder& ladder, const typename Ladder::Problem& p, Args args,
                      Operation operation, const typename Ladder::Buffers& buffers,
                      DeviceBuffer* output, const tile::Expected& expected) {
  const std::vector<std::string> best = steps_here(ladder, p, buffers);
  if (best.empty()) {
    CHECK(operation(&args) == TILE_UNSUPPORTED);
    return;
  }
  for (std::size_t i = 0; i <= ladder.steps.size(); ++i) {
    const bool named = i < ladder.steps.size();
    const std::string name(named ? ladder.steps[i].name : "");
    CAPTURE(name);
    if (named && !tile::check_requirements(ladder.steps[i].types, {}, p.type).ok()) continue;
    args.step = named ? name.c_str() : nullptr;
    // The step that runs: the last that takes the problem, or the named one or the one that it
    // falls back to.
    tile::Choice choice{find_step(ladder, best.back()), {}};
    if (named) REQUIRE(choose_step(ladder, i, p, buffers, &choice).ok());
    const auto& step = ladder.steps[choice.step];
    output->restore();
    const std::string activity = activity_of([&] { check_ok(operation(&args)); });
    CHECK(tile_last_step() == step.name);
    check_equal(*output, expected);
    check_intact(*output);
    CHECK(activity == activity_of([&] { CHECK(step.launch(p, buffers, nullptr).ok()); }));
  }
}

}  // namespace

TEST_CASE("every step computes softmax and its gradient, and without a name it is the best") {
  for (std::size_t t = 0; t < std::size(kTypes); ++t) {
    const DType type = tile::kDTypes[t];
    const std::string type_name(tile::name(type));
    CAPTURE(type_name);
    for (const Case& c : kCases) {
      CAPTURE(&c - kCases);
      const Values x = tile::normal(kRows * kCols, type, 1);
      const Values dy = tile::normal(kRows * kCols, type, 2);
      auto p = problem_of<softmax::ForwardProblem>(type, c);
      tile_softmax_args args = forward_arguments(kTypes[t], c);
      if (c.padding > 0) {
        p.ldx = args.ldx;
        p.ldy = args.ldy;
      }
      DeviceBuffer in = DeviceBuffer::input("x", layout_of(type, args.ldx), x);
      DeviceBuffer out =
          DeviceBuffer::output("y", layout_of(type, args.ldy), Poison::unwritten_nan);
      args.x = in.raw();
      args.y = out.raw();
      const tile::Expected y = softmax::reference(p, x);
      check_every_step(softmax::kForwardLadder, p, args, tile_softmax, {in.raw(), out.raw()}, &out,
                       y);
      check_intact(in);

      auto q = problem_of<softmax::BackwardProblem>(type, c);
      tile_softmax_backward_args back = backward_arguments(kTypes[t], c);
      if (c.padding > 0) {
        q.ldy = back.ldy;
        q.lddy = back.lddy;
        q.lddx = back.lddx;
      }
      const Values rounded = tile::rounded(y.value, type);
      DeviceBuffer in_y = DeviceBuffer::input("y", layout_of(type, back.ldy), rounded);
      DeviceBuffer in_dy = DeviceBuffer::input("dy", layout_of(type, back.lddy), dy);
      DeviceBuffer dx =
          DeviceBuffer::output("dx", layout_of(type, back.lddx), Poison::unwritten_nan);
      back.y = in_y.raw();
      back.dy = in_dy.raw();
      back.dx = dx.raw();
      check_every_step(softmax::kBackwardLadder, q, back, tile_softmax_backward,
                       {in_y.raw(), in_dy.raw(), dx.raw()}, &dx,
                       softmax::reference(q, rounded, dy));
      check_intact(in_y);
      check_intact(in_dy);
    }
  }
}

TEST_CASE("the workspace of softmax: its size, and what runs with it and without") {
  // Rows of odd lengths, longer than a block holds. Those of y begin otherwise than those of x, so
  // no cluster takes them.
  constexpr std::int64_t kLong = 66'001, kLdy = kLong + 1;
  const Values x = tile::normal(2 * kLong, DType::bf16, 1);
  DeviceBuffer in = DeviceBuffer::input("x", tile::matrix_layout(DType::bf16, 2, kLong, kLong), x);
  DeviceBuffer out = DeviceBuffer::output("y", tile::matrix_layout(DType::bf16, 2, kLong, kLdy),
                                          Poison::unwritten_nan);
  tile_softmax_args args{};
  args.struct_size = sizeof args;
  args.type = TILE_BF16, args.rows = 2, args.cols = kLong, args.ldy = kLdy;
  const softmax::ForwardProblem p{.type = DType::bf16, .rows = 2, .cols = kLong, .ldy = kLdy};
  std::int64_t bytes = -1;
  check_ok(tile_softmax_workspace_bytes(&args, &bytes));
  CHECK(bytes == softmax::split_bytes(p));
  args.step = "online";
  check_ok(tile_softmax_workspace_bytes(&args, &bytes));
  CHECK(bytes == 0);
  args.step = nullptr, args.cols = 64;
  check_ok(tile_softmax_workspace_bytes(&args, &bytes));
  CHECK(bytes == 0);
  args.cols = kLong, args.x = in.raw(), args.y = out.raw();
  check_ok(tile_softmax(&args));
  CHECK(tile_last_step() == std::string("online"));
  check_ok(tile_softmax_workspace_bytes(&args, &args.workspace_bytes));
  check_refused(tile_softmax(&args), TILE_INVALID_ARGUMENT, "workspace");
  Memory memory;
  args.workspace = memory.scratch(args.workspace_bytes);
  out.restore();
  check_ok(tile_softmax(&args));
  CHECK(tile_last_step() == std::string("split"));
  check_equal(out, softmax::reference(p, x));
  check_intact(out);

  tile_softmax_backward_args back{};
  back.struct_size = sizeof back;
  back.type = TILE_FP32, back.rows = 3, back.cols = 460'001;  // more than a cluster holds
  check_ok(tile_softmax_backward_workspace_bytes(&back, &bytes));
  CHECK(bytes == softmax::split_bytes(softmax::BackwardProblem{DType::fp32, 3, 460'001}));
  back.lddx = 5;
  check_refused(tile_softmax_backward_workspace_bytes(&back, &bytes), TILE_INVALID_ARGUMENT,
                "lddx");
  CHECK(bytes == 0);
  check_refused(tile_softmax_workspace_bytes(&args, nullptr), TILE_INVALID_ARGUMENT, "bytes");
  check_refused(tile_softmax_workspace_bytes(nullptr, &bytes), TILE_INVALID_ARGUMENT, "args");
}

TEST_CASE("the references of softmax are the definition, whatever the leading dimensions") {
  constexpr double kUntouched = -77;
  for (const Case& c : kCases) {
    CAPTURE(&c - kCases);
    tile_softmax_args args = forward_arguments(TILE_FP64, c);
    tile_softmax_backward_args back = backward_arguments(TILE_FP64, c);
    auto ld_of = [](std::int64_t ld) { return ld == 0 ? kCols : ld; };
    const std::int64_t ldx = ld_of(args.ldx), ldy = ld_of(args.ldy), ld_in = ld_of(back.ldy),
                       lddy = ld_of(back.lddy), lddx = ld_of(back.lddx);
    auto at = [](Values& values, std::int64_t row, std::int64_t col, std::int64_t ld) -> double& {
      return values[static_cast<std::size_t>(row * ld + col)];
    };
    Values x = tile::normal(kRows * ldx, DType::fp64, 1);
    Values y(static_cast<std::size_t>(kRows * ldy), kUntouched);
    Values in(static_cast<std::size_t>(kRows * ld_in), kUntouched);
    Values dy = tile::normal(kRows * lddy, DType::fp64, 2);
    Values dx(static_cast<std::size_t>(kRows * lddx), kUntouched);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t col = 0; col < kCols; ++col) {
        if (is_visible(c, row, col)) continue;
        at(x, row, col, ldx) = at(dy, row, col, lddy) = NAN;  // not read
      }
    }
    args.x = x.data();
    args.y = y.data();
    check_ok(tile_softmax_reference(&args));
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t col = 0; col < kCols; ++col) {
        at(in, row, col, ld_in) = at(y, row, col, ldy);
      }
    }
    back.y = in.data();
    back.dy = dy.data();
    back.dx = dx.data();
    check_ok(tile_softmax_backward_reference(&back));

    double worst = 0;
    const double scale = c.scale;
    for (std::int64_t row = 0; row < kRows; ++row) {
      double sum = 0, terms = 0;
      for (std::int64_t col = 0; col < kCols; ++col) {
        if (is_visible(c, row, col)) sum += std::exp(scale * at(x, row, col, ldx));
      }
      auto share = [&](std::int64_t col) { return std::exp(scale * at(x, row, col, ldx)) / sum; };
      for (std::int64_t col = 0; col < kCols; ++col) {
        if (!is_visible(c, row, col)) continue;
        terms += (c.log ? 1 : share(col)) * at(dy, row, col, lddy);
      }
      for (std::int64_t col = 0; col < std::max(ldy, lddx); ++col) {
        double wanted_y = kUntouched, wanted_dx = kUntouched;
        if (col < kCols) {
          wanted_y = c.log ? -INFINITY : 0;
          wanted_dx = 0;
          if (is_visible(c, row, col)) {
            const double dy_here = at(dy, row, col, lddy);
            wanted_y = c.log ? std::log(share(col)) : share(col);
            wanted_dx =
                scale * (c.log ? dy_here - share(col) * terms : share(col) * (dy_here - terms));
          }
        }
        auto compare = [&worst](double got, double wanted) {
          if (got != wanted && !(std::abs(got - wanted) <= 1e-13)) worst = INFINITY;
        };
        if (col < ldy) compare(at(y, row, col, ldy), wanted_y);
        if (col < lddx) compare(at(dx, row, col, lddx), wanted_dx);
      }
    }
    CHECK(worst == 0);
  }
}

TEST_CASE("bad arguments of softmax are refused by name and nothing is written") {
  const Values values(kRows * kCols, 0.5);
  Values out(kRows * kCols, 5);
  const tile::Layout layout = layout_of(DType::fp32, 0);
  DeviceBuffer x = DeviceBuffer::input("x", layout, values);
  DeviceBuffer dy = DeviceBuffer::input("dy", layout, values);
  DeviceBuffer y = DeviceBuffer::output("y", layout, Poison::unwritten_nan);
  auto on_device = forward_arguments(TILE_FP32), on_host = forward_arguments(TILE_FP64);
  on_device.x = x.raw();
  on_device.y = y.raw();
  on_host.x = values.data();
  on_host.y = out.data();
  auto back_on_device = backward_arguments(TILE_FP32), back_on_host = backward_arguments(TILE_FP64);
  back_on_device.y = x.raw();
  back_on_device.dy = dy.raw();
  back_on_device.dx = y.raw();
  back_on_host.y = back_on_host.dy = values.data();
  back_on_host.dx = out.data();

  // Kernels and references refuse the same arguments.
  auto forward_refused = [&](const char* argument, auto change) {
    auto bad = on_device;
    change(bad);
    check_refused(tile_softmax(&bad), TILE_INVALID_ARGUMENT, argument);
    bad = on_host;
    change(bad);
    check_refused(tile_softmax_reference(&bad), TILE_INVALID_ARGUMENT, argument);
  };
  auto backward_refused = [&](const char* argument, auto change) {
    auto bad = back_on_device;
    change(bad);
    check_refused(tile_softmax_backward(&bad), TILE_INVALID_ARGUMENT, argument);
    bad = back_on_host;
    change(bad);
    check_refused(tile_softmax_backward_reference(&bad), TILE_INVALID_ARGUMENT, argument);
  };
  auto refused = [&](const char* argument, auto change) {
    forward_refused(argument, change);
    backward_refused(argument, change);
  };
  refused("type", [](auto& args) { args.type = 0; });
  refused("type", [](auto& args) { args.type = 7; });
  refused("rows", [](auto& args) { args.rows = -1; });
  refused("cols", [](auto& args) { args.cols = -1; });
  refused("log", [](auto& args) { args.log = 2; });
  refused("causal", [](auto& args) { args.causal = -1; });
  for (const std::int64_t queries : {-1, 4, 7}) {
    refused("queries", [queries](auto& args) {
      args.causal = 1;
      args.queries = queries;
    });
  }
  for (const float scale : {-1.f, INFINITY, NAN}) {
    refused("scale", [scale](auto& args) { args.scale = scale; });
  }
  forward_refused("x", [](auto& args) { args.x = nullptr; });
  forward_refused("y", [](auto& args) { args.y = nullptr; });
  forward_refused("ldx", [](auto& args) { args.ldx = kCols - 1; });
  forward_refused("ldy", [](auto& args) { args.ldy = -1; });
  forward_refused("y", [](auto& args) { args.y = static_cast<char*>(args.y) + 1; });
  forward_refused("y", [](auto& args) { args.x = static_cast<char*>(args.y) + 8; });
  forward_refused("x", [](auto& args) { args.ldx = INT64_MAX; });
  backward_refused("y", [](auto& args) { args.y = nullptr; });
  backward_refused("dy", [](auto& args) { args.dy = nullptr; });
  backward_refused("dx", [](auto& args) { args.dx = nullptr; });
  backward_refused("ldy", [](auto& args) { args.ldy = kCols - 1; });
  backward_refused("lddy", [](auto& args) { args.lddy = kCols - 1; });
  backward_refused("lddx", [](auto& args) { args.lddx = kCols - 1; });
  backward_refused("dx", [](auto& args) { args.dy = static_cast<char*>(args.dx) + 8; });

  check_refused(tile_softmax_reference(&on_device), TILE_UNSUPPORTED, "type");
  check_refused(tile_softmax(&on_host), TILE_UNSUPPORTED, "type");
  check_refused(tile_softmax_backward_reference(&back_on_device), TILE_UNSUPPORTED, "type");
  check_refused(tile_softmax_backward(&back_on_host), TILE_UNSUPPORTED, "type");
  on_device.step = back_on_device.step = "fastest";
  auto names_all = [](const auto& ladder) {
    const std::string message = tile_last_error();
    for (const auto& step : ladder.steps) CHECK(message.find(step.name) != std::string::npos);
  };
  check_refused(tile_softmax(&on_device), TILE_INVALID_ARGUMENT, "step");
  names_all(softmax::kForwardLadder);
  check_refused(tile_softmax_backward(&back_on_device), TILE_INVALID_ARGUMENT, "step");
  names_all(softmax::kBackwardLadder);
  back_on_device.step = "queue";  // of the other ladder
  check_refused(tile_softmax_backward(&back_on_device), TILE_INVALID_ARGUMENT, "step");

  const Status untouched = y.check_unchanged();
  CHECK_MESSAGE(untouched.ok(), untouched.message);
  CHECK(out == Values(kRows * kCols, 5));
  on_device.step = back_on_device.step = nullptr;
  check_ok(tile_softmax(&on_device));
  check_ok(tile_softmax_backward(&back_on_device));
  check_ok(tile_softmax_reference(&on_host));
  CHECK(out == Values(kRows * kCols, 1.0 / kCols));
  back_on_host.y = back_on_host.dy = out.data();  // both of what it writes to
  check_ok(tile_softmax_backward_reference(&back_on_host));
  for (const double each : out) CHECK(std::abs(each) < 1e-16);
}

TEST_CASE("structs of softmax that are null, zero, of another size, or without rows") {
  check_refused(tile_softmax(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_softmax_reference(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_softmax_backward(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_softmax_backward_reference(nullptr), TILE_INVALID_ARGUMENT, "args");
  tile_softmax_args args{};
  check_refused(tile_softmax(&args), TILE_INVALID_ARGUMENT, "struct_size");
  args.struct_size = offsetof(tile_softmax_args, stream);
  check_refused(tile_softmax(&args), TILE_INVALID_ARGUMENT, "struct_size");
  args.struct_size = sizeof args;
  check_refused(tile_softmax(&args), TILE_INVALID_ARGUMENT, "type");
  tile_softmax_backward_args back{};
  back.struct_size = offsetof(tile_softmax_backward_args, stream);
  check_refused(tile_softmax_backward(&back), TILE_INVALID_ARGUMENT, "struct_size");
  back.struct_size = sizeof back;
  check_refused(tile_softmax_backward(&back), TILE_INVALID_ARGUMENT, "type");
  for (const auto& size : {std::array{0, 3}, std::array{3, 0}, std::array{0, 0}}) {
    args.type = back.type = TILE_FP32;
    args.rows = back.rows = size[0];
    args.cols = back.cols = size[1];
    args.causal = back.causal = 1;
    check_ok(tile_softmax(&args));
    check_ok(tile_softmax_backward(&back));
    args.type = back.type = TILE_FP64;
    check_ok(tile_softmax_reference(&args));
    check_ok(tile_softmax_backward_reference(&back));
  }
}

TEST_CASE("softmax runs in the stream that it is given") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  const tile::Layout layout = tile::matrix_layout(DType::fp32, 1, 2, 2);
  DeviceBuffer x = DeviceBuffer::input("x", layout, Values{3, 3});
  DeviceBuffer y = DeviceBuffer::output("y", layout, Poison::unwritten_nan);
  DeviceBuffer dx = DeviceBuffer::output("dx", layout, Poison::unwritten_nan);
  auto args = forward_arguments(TILE_FP32);
  auto back = backward_arguments(TILE_FP32);
  args.rows = back.rows = 1;
  args.cols = back.cols = 2;
  args.x = x.raw();
  args.y = y.raw();
  back.y = y.raw();
  back.dy = x.raw();
  back.dx = dx.raw();
  args.stream = back.stream = stream;
  check_ok(tile_softmax(&args));
  check_ok(tile_softmax_backward(&back));  // after it
  check_ok(tile_synchronize(stream));
  CHECK(y.download() == Values{0.5, 0.5});
  CHECK(dx.download() == Values{0, 0});
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  // The CPU device recognises a stream that does not exist; for a GPU's runtime it is a wild
  // pointer.
  if (!tile::device().simulated) return;
  CHECK(tile_softmax(&args) == TILE_DEVICE_ERROR);
  CHECK(std::string(tile_last_error()).find("the stream does not exist") != std::string::npos);
  CHECK(tile_softmax_backward(&back) == TILE_DEVICE_ERROR);
}

}  // namespace softmax_test
