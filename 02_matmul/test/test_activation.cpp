// Chapter 02's tests: an activation as a call of its own, and its backward pass.
#include <utility>

#include "test_support.hpp"

namespace matmul {
namespace {

constexpr Activation kEach[] = {Activation::none, Activation::relu, Activation::gelu};
constexpr DType kElements[] = {DType::fp32, DType::fp16, DType::bf16};

struct Matrix {
  std::int64_t rows, cols;
};

// Elements between two rows, and before the first.
struct Place {
  std::int64_t padding = 0, offset = 0;
};

std::string text_of(DType type, Activation activation, Matrix size) {
  return std::string(tile::name(type)) + ", activation " +
         std::to_string(static_cast<int>(activation)) + ", " + std::to_string(size.rows) + " x " +
         std::to_string(size.cols);
}

void check_buffers(std::initializer_list<const DeviceBuffer*> buffers) {
  for (const DeviceBuffer* buffer : buffers) {
    const Status intact = buffer->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
}

void check_result(const char* name, const DeviceBuffer& buffer, const tile::Expected& expected) {
  const Comparison comparison = tile::compare(name, buffer.download(), expected);
  CHECK_MESSAGE(comparison.ok(), comparison.message);
}

template <class L>
Status run_only_step(const L& ladder, const typename L::Problem& p, const typename L::Buffers& b) {
  const Status launched = run_last(ladder, p, b, nullptr);
  const Status done = tile::synchronize_status(nullptr);
  return launched.ok() ? done : launched;
}

void check_forward(DType type, Activation activation, Matrix size, const Values& x, Place x_place,
                   Place y_place, bool in_place) {
  const std::string problem = text_of(type, activation, size);
  CAPTURE(problem);
  ActivateProblem p{.type = type, .rows = size.rows, .cols = size.cols, .activation = activation};
  p.ldx += x_place.padding, p.ldy = in_place ? p.ldx : p.cols + y_place.padding;
  const tile::Expected expected = reference(p, x);
  const Layout of_x = tile::matrix_layout(type, p.rows, p.cols, p.ldx, x_place.offset),
               of_y = tile::matrix_layout(type, p.rows, p.cols, p.ldy, y_place.offset);
  for (const Poison poison : tile::poisons_for({&expected})) {
    DeviceBuffer given =
        in_place ? DeviceBuffer::in_out("x", of_x, x) : DeviceBuffer::input("x", of_x, x);
    DeviceBuffer y = DeviceBuffer::output("y", of_y, poison);
    DeviceBuffer& result = in_place ? given : y;
    const Status done = run_only_step(kActivateLadder, p, {given.raw(), result.raw()});
    REQUIRE_MESSAGE(done.ok(), done.message);
    check_result("y", result, expected);
    check_buffers({&given, &y});
  }
}

// A backward pass: its inputs, where its matrices lie, and what is wanted.
struct Backward {
  DType type;
  Activation activation;
  Matrix size;
  Values x, dy;
  Place x_place = {}, dy_place = {}, dx_place = {};
  bool wants_dx = true, wants_dbias = true, in_place = false;
};

// Runs it, checks it, and returns the bytes of dbias.
std::vector<std::byte> check_backward(const Backward& c) {
  const std::string problem = text_of(c.type, c.activation, c.size) + (c.wants_dx ? ", dx" : "") +
                              (c.wants_dbias ? ", dbias" : "") + (c.in_place ? ", in place" : "");
  CAPTURE(problem);
  ActivateBackwardProblem p{
      .type = c.type, .rows = c.size.rows, .cols = c.size.cols, .activation = c.activation};
  p.ldx += c.x_place.padding, p.lddy += c.dy_place.padding;
  p.lddx = c.in_place ? p.lddy : p.cols + c.dx_place.padding;
  const ActivateBackwardReference expected = reference(p, c.x, c.dy);
  const auto layout = [&](std::int64_t ld, Place place) {
    return tile::matrix_layout(c.type, p.rows, p.cols, ld, place.offset);
  };
  const Layout of_dy = layout(p.lddy, c.dy_place);
  std::vector<std::byte> bytes;
  for (const Poison poison : tile::poisons_for({&expected.dx, &expected.dbias})) {
    DeviceBuffer x = DeviceBuffer::input("x", layout(p.ldx, c.x_place), c.x);
    DeviceBuffer dy = c.in_place ? DeviceBuffer::in_out("dy", of_dy, c.dy)
                                 : DeviceBuffer::input("dy", of_dy, c.dy);
    DeviceBuffer dx = DeviceBuffer::output("dx", layout(p.lddx, c.dx_place), poison);
    DeviceBuffer dbias =
        DeviceBuffer::output("dbias", tile::vector_layout(c.type, p.cols, 1), poison);
    DeviceBuffer workspace = DeviceBuffer::output(
        "workspace", tile::vector_layout(DType::fp32, workspace_bytes(p) / 4), poison);
    DeviceBuffer& result = c.in_place ? dy : dx;
    ActivateBackwardBuffers b{c.activation == Activation::none ? nullptr : x.raw(), dy.raw(),
                              c.wants_dx ? result.raw() : nullptr,
                              c.wants_dbias ? dbias.raw() : nullptr};
    if (c.wants_dbias) b.workspace = workspace.raw(), b.workspace_bytes = workspace_bytes(p);
    const Status done = run_only_step(kActivateBackwardLadder, p, b);
    REQUIRE_MESSAGE(done.ok(), done.message);
    if (c.wants_dx) check_result("dx", result, expected.dx);
    if (c.wants_dbias) check_result("dbias", dbias, expected.dbias);
    check_buffers({&x, &dy, &dx, &dbias, &workspace});
    for (const auto& [buffer, wanted] :
         {std::pair{&dx, c.wants_dx && !c.in_place}, {&dbias, c.wants_dbias}}) {
      if (!wanted) CHECK(buffer->check_unchanged().ok());
    }
    bytes = dbias.download_bytes();
  }
  return bytes;
}

Backward random_backward(DType type, Activation activation, Matrix size) {
  const std::int64_t count = size.rows * size.cols;
  return {type, activation, size, tile::normal(count, type, 1), tile::normal(count, type, 2)};
}

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("an activation of its own: sizes, strides and places") {
    constexpr Matrix kSizes[] = {{1, 1}, {7, 33}, {5, 264}, {130, 40}, {3, 1001}};
    constexpr Place kPlaces[] = {{}, {8, 0}, {3, 0}, {0, 1}, {8, 8}};
    std::size_t turn = 0;
    for (const DType type : kElements) {
      for (const Activation activation : kEach) {
        for (const Matrix size : kSizes) {
          const Place x_place = kPlaces[turn % 5], y_place = kPlaces[turn * 2 % 5];
          check_forward(type, activation, size, tile::normal(size.rows * size.cols, type, turn),
                        x_place, y_place, turn % 3 == 2);
          ++turn;
        }
        check_forward(type, activation, {31, 9}, tile::adversarial(279, type), {}, {}, false);
      }
    }
  }

  TEST_CASE("an activation's backward pass: sizes, strides and places") {
    // Fewer rows than a group has, one row more, several groups; a part of a block's columns, whole
    // blocks, and one column more.
    constexpr Matrix kSizes[] = {{1, 1},   {7, 40},   {33, 256}, {64, 257},
                                 {300, 8}, {131, 96}, {40, 520}, {1000, 3}};
    constexpr Place kPlaces[] = {{}, {8, 0}, {3, 0}, {0, 1}, {8, 8}, {0, 4}};
    std::size_t turn = 0;
    for (const DType type : kElements) {
      for (const Activation activation : kEach) {
        for (const Matrix size : kSizes) {
          Backward c = random_backward(type, activation, size);
          c.x_place = kPlaces[turn % 6], c.dy_place = kPlaces[turn / 2 % 6];
          c.dx_place = kPlaces[turn * 5 % 6];
          c.wants_dx = turn % 5 != 4, c.wants_dbias = turn % 7 != 6, c.in_place = turn % 4 == 3;
          check_backward(c);
          ++turn;
        }
        Backward c = random_backward(type, activation, {70, 72});
        for (Place* each : {&c.x_place, &c.dy_place, &c.dx_place}) {
          // All rows begin at multiples of 16 bytes but those of one matrix.
          for (const Place odd : {Place{4, 0}, Place{0, 4}, Place{1, 0}}) {
            *each = odd;
            check_backward(c);
          }
          *each = {};
        }
        c.wants_dx = c.wants_dbias = false;
        check_backward(c);
        // Rows begin at multiples of 16 bytes, and none ends at one.
        c = random_backward(type, activation, {20, 37});
        c.x_place = c.dy_place = c.dx_place = {3, 0};
        check_backward(c);
      }
      // More groups than the second kernel's threads load at once.
      check_backward(random_backward(type, Activation::none, {8'300, 2}));
    }
  }

  TEST_CASE("dbias has the same bits in every run, wherever the matrices lie") {
    for (const DType type : kElements) {
      Backward c = random_backward(type, Activation::gelu, {500, 88});
      const std::vector<std::byte> bits = check_backward(c);
      CHECK(check_backward(c) == bits);
      c.dy_place = {1, 3};
      CHECK(check_backward(c) == bits);
      c.wants_dx = false;
      CHECK(check_backward(c) == bits);
    }
  }

  TEST_CASE("dbias is a sum of dx before it is rounded") {
    // gelu' of two neighbours, which round to the same number. dy is 1 and -1.
    for (const auto& [type, one, other] :
         {std::tuple{DType::bf16, 1.0, 1.0078125}, {DType::fp16, 1.0, 1.0009765625}}) {
      constexpr std::int64_t kRows = 640, kCols = 8;
      Backward c{type, Activation::gelu, {kRows, kCols}, {}, {}};
      for (std::int64_t i = 0; i < kRows * kCols; ++i) {
        const bool is_even = i / kCols % 2 == 0;
        c.x.push_back(is_even ? one : other), c.dy.push_back(is_even ? 1 : -1);
      }
      const ActivateBackwardProblem p{
          .type = type, .rows = kRows, .cols = kCols, .activation = Activation::gelu};
      const ActivateBackwardReference expected = reference(p, c.x, c.dy);
      const Values dx = tile::rounded(expected.dx.value, type);
      REQUIRE(dx[0] == -dx[kCols]);  // a sum of these is 0
      REQUIRE(std::abs(expected.dbias.value[0]) > 4 * expected.dbias.bound[0]);
      check_backward(c);
    }
  }

  TEST_CASE("slopes over the activations' range, and at its ends") {
    for (const DType type : kElements) {
      for (const Activation activation : kEach) {
        for (const double range : {1.0, 6.0, 60.0}) {
          Backward c = random_backward(type, activation, {257, 8});
          c.x = tile::uniform(257 * 8, type, 3, -range, range);
          check_backward(c);
        }
        // Each x with each dy; the columns of x with a NaN are others than those of dy.
        const Values xs{0., -0., 1, -1, 20, -20, 1e4, -1e4, kInfinity, -kInfinity, kNaN};
        const Values dys{0., -0., 1, -2, kInfinity, -kInfinity, kNaN};
        Backward c{type, activation, {std::ssize(xs), std::ssize(dys)}, {}, {}};
        for (const double x : xs) {
          for (const double dy : dys) c.x.push_back(x), c.dy.push_back(dy);
        }
        c.x = tile::rounded(c.x, type);
        check_backward(c);
        // Without NaN and infinity in dy, whose columns are NaN.
        for (double& dy : c.dy) dy = std::isfinite(dy) ? dy : 3;
        check_backward(c);
      }
      const Backward c{
          type, Activation::gelu, {5, 1}, {-kInfinity, kInfinity, 0, -20, 20}, {3, 3, 3, 3, 3}};
      const ActivateBackwardProblem p{
          .type = type, .rows = 5, .cols = 1, .activation = Activation::gelu};
      CHECK(reference(p, c.x, c.dy).dx.value == Values{0, 3, 1.5, 0, 3});
    }
  }

  TEST_CASE("the reference's slopes are the activations' derivatives") {
    for (const Activation activation : kEach) {
      for (double x = -6.03; x < 6.1; x += 0.125) {
        constexpr double kStep = 0x1p-17;
        const auto value = [&](double at) {
          const ActivateProblem p{
              .type = DType::fp64, .rows = 1, .cols = 1, .activation = activation};
          return reference(p, Values{at}).value[0];
        };
        const ActivateBackwardProblem p{
            .type = DType::fp64, .rows = 1, .cols = 1, .activation = activation};
        const double slope = reference(p, Values{x}, Values{1.0}).dx.value[0];
        const double measured = (value(x + kStep) - value(x - kStep)) / (2 * kStep);
        CHECK(std::abs(slope - measured) < 1e-9);
      }
    }
  }

  TEST_CASE("relu's slope is the same of y as of x") {
    const Values x{0., -0., 3, -3, kInfinity, -kInfinity}, dy{1, 2, 3, 4, 5, 6};
    const ActivateBackwardProblem p{
        .type = DType::fp32, .rows = 6, .cols = 1, .activation = Activation::relu};
    const ActivateProblem forward{
        .type = DType::fp32, .rows = 6, .cols = 1, .activation = Activation::relu};
    CHECK(reference(p, x, dy).dx.value == Values{0, 0, 3, 0, 5, 0});
    CHECK(reference(p, reference(forward, x).value, dy).dx.value == Values{0, 0, 3, 0, 5, 0});
  }

  TEST_CASE("bounds of the backward pass are what their derivation says") {
    constexpr double kUnit = 0x1p-24;
    for (const double x : {-3.0, -0.75, 0.0, 0.5, 3.0}) {
      const ActivateBackwardProblem p{
          .type = DType::fp32, .rows = 1, .cols = 1, .activation = Activation::gelu};
      const auto found = reference(p, Values{x}, Values{1.0});
      CHECK(found.dx.bound[0] < 40 * kUnit);
      CHECK(found.dx.bound[0] > 3 * kUnit * std::abs(found.dx.value[0]));
    }
    const ActivateBackwardProblem p{.type = DType::fp32, .rows = 400, .cols = 1};
    const auto found = reference(p, {}, Values(400, -1.0));
    CHECK(found.dbias.value == Values{-400});
    CHECK(found.dbias.bound[0] == doctest::Approx(4 * 20 * kUnit * 400));
    CHECK(found.dx.bound == Values(400, 0.0));
  }

  TEST_CASE("nothing to activate, and sums of no rows") {
    for (const DType type : kElements) {
      for (const Matrix size : {Matrix{0, 5}, Matrix{5, 0}, Matrix{0, 0}}) {
        const ActivateProblem p{.type = type, .rows = size.rows, .cols = size.cols};
        CHECK(run_only_step(kActivateLadder, p, {nullptr, nullptr}).ok());
        const ActivateBackwardProblem back{
            .type = type, .rows = size.rows, .cols = size.cols, .activation = Activation::relu};
        CHECK(workspace_bytes(back) == 0);
        CHECK(run_only_step(kActivateBackwardLadder, back, {nullptr, nullptr, nullptr, nullptr})
                  .ok());
      }
      check_backward(random_backward(type, Activation::gelu, {0, 37}));
    }
  }

  TEST_CASE("bad arguments of an activation are refused by name and nothing is written") {
    constexpr std::int64_t kCount = 35;
    for (const DType type : kElements) {
      const std::string name(tile::name(type));
      CAPTURE(name);
      const auto element = static_cast<std::int64_t>(tile::size_bytes(type));
      const Layout layout = tile::vector_layout(type, kCount);
      DeviceBuffer x = DeviceBuffer::input("x", layout, Values(kCount, 1.0));
      DeviceBuffer dy = DeviceBuffer::input("dy", layout, Values(kCount, 1.0));
      DeviceBuffer dx = DeviceBuffer::output("dx", layout, Poison::unwritten_nan);
      DeviceBuffer dbias =
          DeviceBuffer::output("dbias", tile::vector_layout(type, 7), Poison::unwritten_nan);
      DeviceBuffer workspace = DeviceBuffer::output(
          "workspace", tile::vector_layout(DType::fp32, 8), Poison::unwritten_nan);
      const auto after = [](const DeviceBuffer& buffer, std::int64_t bytes) {
        return static_cast<void*>(static_cast<char*>(buffer.raw()) + bytes);
      };
      const auto refuses = [&](const Status& status, const std::string& argument,
                               tile::Code code = tile::Code::invalid_argument) {
        CAPTURE(argument);
        CHECK(status.code == code);
        CHECK_MESSAGE(status.message.rfind(argument + ": ", 0) == 0, status.message);
        for (const DeviceBuffer* each : {&x, &dy, &dx, &dbias, &workspace}) {
          CHECK(each->check_unchanged().ok());
        }
      };

      const ActivateProblem good{
          .type = type, .rows = 5, .cols = 7, .activation = Activation::gelu};
      const auto forward = [&](auto change) {
        ActivateProblem p = good;
        ActivateBuffers b{x.raw(), dx.raw()};
        change(p, b);
        return run_only_step(kActivateLadder, p, b);
      };
      refuses(forward([](auto& p, auto&) { p.rows = -1; }), "rows");
      refuses(forward([](auto& p, auto&) { p.cols = -1; }), "cols");
      refuses(forward([](auto& p, auto&) { p.ldx = 6; }), "ldx");
      refuses(forward([](auto& p, auto&) { p.ldy = 6; }), "ldy");
      refuses(forward([](auto& p, auto&) { p.ldy = INT64_MAX; }), "y");
      refuses(forward([](auto&, auto& b) { b.x = nullptr; }), "x");
      refuses(forward([](auto&, auto& b) { b.y = nullptr; }), "y");
      refuses(forward([&](auto&, auto& b) { b.y = after(dx, 1); }), "y");
      refuses(forward([&](auto&, auto& b) { b.x = after(dx, element); }), "y");
      refuses(forward([&](auto& p, auto& b) { b.x = dx.raw(), p.ldx = 8; }), "y");
      refuses(forward([](auto& p, auto&) { p.type = DType::tf32; }), "type",
              tile::Code::unsupported);
      refuses(forward([](auto& p, auto&) { p.activation = static_cast<Activation>(7); }),
              "activation");

      const ActivateBackwardProblem good_backward{
          .type = type, .rows = 5, .cols = 7, .activation = Activation::gelu};
      const auto backward = [&](auto change) {
        ActivateBackwardProblem p = good_backward;
        ActivateBackwardBuffers b{x.raw(),     dy.raw(),        dx.raw(),
                                  dbias.raw(), workspace.raw(), workspace_bytes(p)};
        change(p, b);
        return run_only_step(kActivateBackwardLadder, p, b);
      };
      refuses(backward([](auto& p, auto&) { p.rows = -1; }), "rows");
      refuses(backward([](auto& p, auto&) { p.cols = -1; }), "cols");
      refuses(backward([](auto& p, auto&) { p.ldx = 6; }), "ldx");
      refuses(backward([](auto& p, auto&) { p.lddy = 6; }), "lddy");
      refuses(backward([](auto& p, auto&) { p.lddx = 6; }), "lddx");
      refuses(backward([](auto& p, auto&) { p.lddy = INT64_MAX; }), "dy");
      refuses(backward([](auto&, auto& b) { b.x = nullptr; }), "x");
      refuses(backward([](auto&, auto& b) { b.dy = nullptr; }), "dy");
      refuses(backward([&](auto&, auto& b) { b.dx = after(dx, 1); }), "dx");
      refuses(backward([&](auto&, auto& b) { b.dbias = after(dbias, 1); }), "dbias");
      refuses(backward([](auto&, auto& b) { b.dx = const_cast<void*>(b.x); }), "dx");
      refuses(backward([&](auto&, auto& b) { b.dx = after(dy, element); }), "dx");
      refuses(backward([&](auto& p, auto& b) { b.dx = dy.raw(), p.lddx = 8; }), "dx");
      for (const DeviceBuffer* each : {&x, &dy, &dx}) {
        refuses(backward([&](auto&, auto& b) { b.dbias = after(*each, 34 * element); }), "dbias");
        refuses(backward([&](auto&, auto& b) { b.workspace = each->raw(); }), "workspace");
      }
      refuses(backward([&](auto&, auto& b) { b.workspace = b.dbias; }), "workspace");
      refuses(backward([](auto&, auto& b) { b.workspace = nullptr; }), "workspace");
      refuses(backward([&](auto&, auto& b) { b.workspace = after(workspace, 4); }), "workspace");
      refuses(backward([](auto&, auto& b) { b.workspace_bytes = -1; }), "workspace_bytes");
      refuses(backward([](auto&, auto& b) { --b.workspace_bytes; }), "workspace_bytes",
              tile::Code::unsupported);
      refuses(backward([](auto& p, auto&) { p.activation = static_cast<Activation>(7); }),
              "activation");
      CHECK(backward([](auto&, auto& b) {
              b.dbias = b.workspace = nullptr, b.workspace_bytes = 0;
            }).ok());
      // Without an activation x is not there.
      CHECK(backward([](auto& p, auto& b) { p.activation = Activation::none, b.x = b.dx; }).ok());
    }
  }

  TEST_CASE("the backward pass' workspace has a size for every matrix") {
    const auto bytes = [](std::int64_t rows, std::int64_t cols) {
      return workspace_bytes({.type = DType::bf16, .rows = rows, .cols = cols});
    };
    CHECK(bytes(32, 100) == 400);  // one group
    CHECK(bytes(33, 100) == 800);
    CHECK(bytes(65536, 4096) == 132 * 4096 * 4);
    CHECK(bytes(65536, 768) == 704 * 768 * 4);
    CHECK(bytes(4, std::int64_t{1} << 40) == std::int64_t{1} << 42);
    CHECK(bytes(1, std::int64_t{1} << 62) == INT64_MAX);
  }
}

}  // namespace matmul
