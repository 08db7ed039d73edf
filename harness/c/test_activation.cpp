// The C interface's activation and its backward pass.
#include <cmath>
#include <cstddef>

#include "02_matmul/reference.hpp"
#include "harness/c/test_support.hpp"

namespace activation_test {
namespace {

constexpr std::int64_t kRows = 67, kCols = 24, kCount = kRows * kCols;
constexpr std::int64_t kPadding = 5;  // of no matrix, of all
constexpr tile_activation kActivations[] = {TILE_NO_ACTIVATION, TILE_RELU, TILE_GELU};

template <class Args>
Args sized(tile_type type, tile_activation activation, std::int64_t padding) {
  Args a{};
  a.struct_size = sizeof a;
  a.type = type, a.rows = kRows, a.cols = kCols, a.activation = activation;
  if (padding > 0) a.ldx = kCols + padding;
  if constexpr (requires { a.lddy; }) {
    if (padding > 0) a.lddy = kCols + padding + 1, a.lddx = kCols + padding + 2;
  } else if (padding > 0) {
    a.ldy = kCols + padding + 1;
  }
  return a;
}
std::int64_t or_packed(std::int64_t ld) { return ld == 0 ? kCols : ld; }

matmul::ActivateBackwardProblem backward_problem(DType type, tile_activation activation) {
  return {.type = type,
          .rows = kRows,
          .cols = kCols,
          .activation = static_cast<matmul::Activation>(activation)};
}

}  // namespace

TEST_CASE("activations and their backward pass") {
  for (const std::size_t t : {0, 1, 2}) {
    const DType type = tile::kDTypes[t];
    const Values x = tile::normal(kCount, type, 1), dy = tile::normal(kCount, type, 2);
    for (const tile_activation activation : kActivations) {
      for (const std::int64_t padding : {std::int64_t{0}, kPadding}) {
        CAPTURE(activation);
        CAPTURE(padding);
        Memory memory;
        auto a = sized<tile_activate_args>(kTypes[t], activation, padding);
        const auto backward = backward_problem(type, activation);
        const matmul::ActivateProblem forward{
            .type = type, .rows = kRows, .cols = kCols, .activation = backward.activation};
        a.x = memory.input("x", type, kRows, or_packed(a.ldx), x);
        a.y =
            memory.output("y", type, kRows, kCols, or_packed(a.ldy), matmul::reference(forward, x));
        check_ok(tile_activate(&a));
        CHECK(tile_last_step() == std::string("activate"));
        a.step = "activate";
        check_ok(tile_activate(&a));

        auto b = sized<tile_activate_backward_args>(kTypes[t], activation, padding);
        check_ok(tile_activate_backward_workspace_bytes(&b, &b.workspace_bytes));
        CHECK(b.workspace_bytes == 3 * kCols * 4);
        const auto expected = matmul::reference(backward, x, dy);
        b.x = activation == TILE_NO_ACTIVATION ? nullptr : a.x;
        b.dy = memory.input("dy", type, kRows, or_packed(b.lddy), dy);
        b.dx = memory.output("dx", type, kRows, kCols, or_packed(b.lddx), expected.dx);
        b.dbias = memory.output("dbias", type, 1, kCols, kCols, expected.dbias);
        b.workspace = memory.scratch(b.workspace_bytes);
        check_ok(tile_activate_backward(&b));
        CHECK(tile_last_step() == std::string("activate_backward"));
        memory.check();
      }
    }
  }
}

TEST_CASE("the references of activations are those of the chapter, whatever the strides") {
  constexpr double kUntouched = -77;
  const Values x = tile::normal(kCount, DType::fp64, 1), dy = tile::normal(kCount, DType::fp64, 2);
  for (const tile_activation activation : kActivations) {
    CAPTURE(activation);
    const auto backward = backward_problem(DType::fp64, activation);
    const matmul::ActivateProblem forward{
        .type = DType::fp64, .rows = kRows, .cols = kCols, .activation = backward.activation};
    auto a = sized<tile_activate_args>(TILE_FP64, activation, kPadding);
    const Values x_rows = spread(x, kCols, a.ldx, NAN);
    Values y(static_cast<std::size_t>(kRows * a.ldy), kUntouched);
    a.x = x_rows.data(), a.y = y.data();
    check_ok(tile_activate_reference(&a));
    CHECK(std::string(tile_last_step()).empty());
    CHECK(y == spread(matmul::reference(forward, x).value, kCols, a.ldy, kUntouched));

    auto b = sized<tile_activate_backward_args>(TILE_FP64, activation, kPadding);
    const Values dy_rows = spread(dy, kCols, b.lddy, NAN);
    Values dx(static_cast<std::size_t>(kRows * b.lddx), kUntouched), dbias(kCols);
    const auto expected = matmul::reference(backward, x, dy);
    b.x = x_rows.data(), b.dy = dy_rows.data();
    check_ok(tile_activate_backward_reference(&b));  // nothing is wanted
    b.dx = dx.data(), b.dbias = dbias.data();
    check_ok(tile_activate_backward_reference(&b));
    CHECK(dx == spread(expected.dx.value, kCols, b.lddx, kUntouched));
    CHECK(dbias == expected.dbias.value);
  }
}

TEST_CASE("bad arguments of activations are refused by name") {
  tile_activate_args none{};
  check_refused(tile_activate(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_activate(&none), TILE_INVALID_ARGUMENT, "struct_size");
  auto a = sized<tile_activate_args>(TILE_FP32, TILE_GELU, 0);
  check_refused(tile_activate(&a), TILE_INVALID_ARGUMENT, "x");
  const auto refused = [](const char* argument, auto change) {
    auto forward = sized<tile_activate_args>(TILE_FP32, TILE_GELU, 0);
    change(forward);
    check_refused(tile_activate(&forward), TILE_INVALID_ARGUMENT, argument);
    auto backward = sized<tile_activate_backward_args>(TILE_FP32, TILE_GELU, 0);
    change(backward);
    check_refused(tile_activate_backward(&backward), TILE_INVALID_ARGUMENT, argument);
    std::int64_t bytes = -1;
    check_refused(tile_activate_backward_workspace_bytes(&backward, &bytes), TILE_INVALID_ARGUMENT,
                  argument);
    CHECK(bytes == 0);
  };
  refused("rows", [](auto& args) { args.rows = -1; });
  refused("cols", [](auto& args) { args.cols = INT64_MIN; });
  refused("ldx", [](auto& args) { args.ldx = kCols - 1; });
  refused("x", [](auto& args) { args.ldx = INT64_MAX; });
  refused("type", [](auto& args) { args.type = 0; });
  for (const tile_activation unknown : {std::int64_t{-1}, std::int64_t{3}, std::int64_t{1} << 32}) {
    refused("activation", [unknown](auto& args) { args.activation = unknown; });
  }
  a.type = TILE_TF32;
  check_refused(tile_activate(&a), TILE_UNSUPPORTED, "type");
  check_refused(tile_activate_reference(&a), TILE_UNSUPPORTED, "type");
  auto b = sized<tile_activate_backward_args>(TILE_FP32, TILE_GELU, 0);
  check_refused(tile_activate_backward_workspace_bytes(&b, nullptr), TILE_INVALID_ARGUMENT,
                "bytes");
  // The forward pass' step, and one of the chapter's ladder, belong to other operations.
  for (const char* step : {"activate", "naive"}) {
    b.step = step, b.rows = 0, b.cols = 0;
    check_refused(tile_activate_backward(&b), TILE_INVALID_ARGUMENT, "step");
  }
}

}  // namespace activation_test
