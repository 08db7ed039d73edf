// The C interface, called as a C program calls it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>

#include "01_vector_add/reference.hpp"
#include "02_matmul/reference.hpp"
#include "03_softmax/softmax.hpp"
#include "04_layernorm/layernorm.hpp"
#include "harness/c/test_support.hpp"
#include "harness/chapter.hpp"

namespace {

tile_vector_add_args addition(tile_type type, std::int64_t n, const void* a, const void* b,
                              void* c) {
  tile_vector_add_args args{};
  args.struct_size = sizeof args;
  args.type = type;
  args.n = n;
  args.a = a;
  args.b = b;
  args.c = c;
  return args;
}

tile_matmul_args product(tile_type type, std::int64_t m, std::int64_t n, std::int64_t k) {
  tile_matmul_args args{};
  args.struct_size = sizeof args;
  args.type = type;
  args.m = m;
  args.n = n;
  args.k = k;
  return args;
}

}  // namespace

// ---- Status, errors, types ----

TEST_CASE("codes and types have the names that the project gives them") {
  const tile::Code codes[] = {tile::Code::ok, tile::Code::invalid_argument, tile::Code::unsupported,
                              tile::Code::out_of_memory, tile::Code::device_error};
  const tile_status statuses[] = {TILE_OK, TILE_INVALID_ARGUMENT, TILE_UNSUPPORTED,
                                  TILE_OUT_OF_MEMORY, TILE_DEVICE_ERROR};
  for (int i = 0; i < 5; ++i) {
    CHECK(tile_status_name(statuses[i]) == std::string(to_string(codes[i])));
    CHECK(tile::c::finish({codes[i], "x"}) == statuses[i]);
  }
  CHECK(tile_status_name(5) == std::string("unknown status"));
  CHECK(tile_status_name(-1) == std::string("unknown status"));
  for (std::size_t i = 0; i < std::size(kTypes); ++i) {
    CHECK(tile_type_name(kTypes[i]) == std::string(name(tile::kDTypes[i])));
    CHECK(tile_type_bytes(kTypes[i]) == static_cast<int64_t>(size_bytes(tile::kDTypes[i])));
  }
  CHECK(std::size(kTypes) == std::size(tile::kDTypes));
  for (const tile_type none : {0, 7, -1}) {
    CHECK(tile_type_name(none) == nullptr);
    CHECK(tile_type_bytes(none) == 0);
  }
}

TEST_CASE("no exception leaves the library, and each has its status") {
  auto thrown = [](auto exception) {
    return tile::c::guarded([&]() -> Status { throw exception; });
  };
  CHECK(thrown(std::bad_alloc()) == TILE_OUT_OF_MEMORY);
  CHECK(begins_with(tile_last_error(), "host memory: "));
  CHECK(thrown(std::runtime_error("why")) == TILE_DEVICE_ERROR);
  CHECK(tile_last_error() == std::string("why"));
  CHECK(thrown(7) == TILE_DEVICE_ERROR);
  CHECK(!std::string(tile_last_error()).empty());
}

TEST_CASE("the message belongs to the thread and goes with a success") {
  check_refused(tile_alloc(nullptr, 8), TILE_INVALID_ARGUMENT, "memory");
  std::string at_first = "?", after_failure;
  std::thread([&] {
    at_first = tile_last_error();
    static_cast<void>(tile_vector_add(nullptr));
    after_failure = tile_last_error();
  }).join();
  CHECK(at_first.empty());
  CHECK(begins_with(after_failure, "args: "));
  CHECK(begins_with(tile_last_error(), "memory: "));
  static_cast<void>(tile_status_name(TILE_UNSUPPORTED));
  CHECK(begins_with(tile_last_error(), "memory: "));
  check_ok(tile_free(nullptr));
}

// ---- The device and its memory ----

TEST_CASE("memory is allocated, copied there and back, and freed") {
  const double values[] = {1, 2, 3};
  double back[] = {0, 0, 0};
  void* memory = nullptr;
  check_ok(tile_alloc(&memory, sizeof values));
  REQUIRE(memory != nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
  check_ok(tile_copy_to_device(memory, values, sizeof values));
  check_ok(tile_copy_from_device(back, memory, sizeof back));
  for (int i = 0; i < 3; ++i) CHECK(back[i] == values[i]);
  check_ok(tile_synchronize(nullptr));

  check_refused(tile_copy_to_device(memory, values, -1), TILE_INVALID_ARGUMENT, "bytes");
  check_refused(tile_copy_to_device(nullptr, values, 8), TILE_INVALID_ARGUMENT, "device");
  check_refused(tile_copy_to_device(memory, nullptr, 8), TILE_INVALID_ARGUMENT, "host");
  check_refused(tile_copy_from_device(back, nullptr, 8), TILE_INVALID_ARGUMENT, "device");
  check_refused(tile_copy_from_device(nullptr, memory, 8), TILE_INVALID_ARGUMENT, "host");
  check_ok(tile_copy_to_device(nullptr, nullptr, 0));
  check_ok(tile_free(memory));

  void* none = &memory;
  check_ok(tile_alloc(&none, 0));
  CHECK(none == nullptr);
  none = &memory;
  check_refused(tile_alloc(&none, -1), TILE_INVALID_ARGUMENT, "bytes");
  CHECK(none == nullptr);
  check_refused(tile_alloc(&none, std::int64_t{1} << 60), TILE_OUT_OF_MEMORY,
                "cudaMalloc(memory, size)");
  CHECK(none == nullptr);
  CHECK(tile_free(back) == TILE_DEVICE_ERROR);  // not the device's
  CHECK(!std::string(tile_last_error()).empty());
}

TEST_CASE("the device is the harness's") {
  const char* name = nullptr;
  check_ok(tile_device_name(&name));
  CHECK(name == tile::device().name);
  CHECK(tile_device_is_simulated() == (tile::device().simulated ? 1 : 0));
  check_refused(tile_device_name(nullptr), TILE_INVALID_ARGUMENT, "name");
}

// ---- Chapters and steps ----

TEST_CASE("chapters and steps are those of the ladders, each name once") {
  REQUIRE(tile_chapter_count() == static_cast<std::int32_t>(tile::chapters().size()));
  for (std::int32_t i = 0; i < tile_chapter_count(); ++i) {
    const tile::Chapter& chapter = *tile::chapters()[static_cast<std::size_t>(i)];
    CHECK(tile_chapter_name(i) == std::string(chapter.name));
    CHECK(tile_chapter_title(i) == std::string(chapter.title));
    std::vector<std::string> names;
    for (const tile::LadderInfo& ladder : chapter.ladders) {
      for (const tile::StepInfo& step : ladder.steps) {
        if (std::ranges::find(names, step.name) != names.end()) continue;
        const auto at = static_cast<std::int32_t>(names.size());
        names.emplace_back(step.name);
        REQUIRE(at < tile_step_count(i));
        CHECK(tile_step_name(i, at) == names.back());
        CHECK(tile_step_idea(i, at) == std::string(step.idea));
        for (std::size_t t = 0; t < std::size(kTypes); ++t) {
          CAPTURE(step.name);
          const Status here = tile::check_requirements(step.types, step.needs, tile::kDTypes[t]);
          CHECK(tile_step_takes(i, at, kTypes[t]) == (here.ok() ? TILE_OK : TILE_UNSUPPORTED));
          CHECK(tile_last_error() == here.message);
        }
      }
    }
    CHECK(tile_step_count(i) == static_cast<std::int32_t>(names.size()));
    CHECK(tile_step_name(i, -1) == nullptr);
    CHECK(tile_step_name(i, tile_step_count(i)) == nullptr);
    CHECK(tile_step_idea(i, tile_step_count(i)) == nullptr);
    check_refused(tile_step_takes(i, tile_step_count(i), TILE_FP32), TILE_INVALID_ARGUMENT, "step");
    check_refused(tile_step_takes(i, 0, 0), TILE_INVALID_ARGUMENT, "type");
  }
  for (const std::int32_t none : {-1, tile_chapter_count()}) {
    CHECK(tile_chapter_name(none) == nullptr);
    CHECK(tile_chapter_title(none) == nullptr);
    CHECK(tile_step_count(none) == -1);
    CHECK(tile_step_name(none, 0) == nullptr);
    CHECK(tile_step_idea(none, 0) == nullptr);
    check_refused(tile_step_takes(none, 0, TILE_FP32), TILE_INVALID_ARGUMENT, "chapter");
  }
}

namespace {

struct FakeProblem {
  DType type;
  int size;
};
struct FakeBuffers {};
using FakeLadder = tile::Ladder<FakeProblem, FakeBuffers>;

Status small_only(const FakeProblem& problem, const FakeBuffers&, const tile::Device&) {
  return problem.size < 10 ? Status{} : tile::unsupported("size", "10 is too large");
}
Status fake_launch(const FakeProblem&, const FakeBuffers&, void*) { return {}; }
Status failing_launch(const FakeProblem&, const FakeBuffers&, void*) {
  return tile::device_error("kernel", "failed");
}
Status fake_validate(const FakeProblem& problem, const FakeBuffers&) {
  return problem.size < 0 ? tile::invalid_argument("size", "is negative") : Status{};
}
bool fake_is_empty(const FakeProblem& problem) { return problem.size == 0; }

FakeLadder ladder_of(std::span<const FakeLadder::Step> steps) {
  return {"", "", steps, fake_validate, fake_is_empty};
}

const FakeLadder::Step kFakeSteps[] = {
    {"every", "", {DType::fp32, DType::fp16}, {}, nullptr, "", {}, fake_launch},
    {"small", "", {DType::fp32, DType::fp16}, {}, small_only, "every", {}, fake_launch},
    {"single", "", {DType::fp32}, {}, small_only, "small", {}, failing_launch},
    {"alone", "", {DType::bf16}, {}, small_only, "", {}, fake_launch},
};

// The step that tile_last_step() names, or the message.
std::string ran(std::span<const FakeLadder::Step> steps, const char* name,
                const FakeProblem& problem) {
  const tile_status status = tile::c::operation([&] {
    return tile::c::launch_step(ladder_of(steps), name, nullptr, problem, FakeBuffers{});
  });
  CHECK(std::string(tile_last_step()).empty() == (status != TILE_OK));
  return status == TILE_OK ? tile_last_step() : tile_last_error();
}

}  // namespace

TEST_CASE("a step runs what it takes, otherwise the one that its table names") {
  CHECK(ran(kFakeSteps, "small", {DType::fp32, 1}) == "small");
  CHECK(ran(kFakeSteps, "small", {DType::fp32, 10}) == "every");
  CHECK(ran(kFakeSteps, "single", {DType::fp32, 10}) == "every");  // over two steps
  CHECK(ran(kFakeSteps, "single", {DType::fp32, 1}) == "kernel: failed");
  CHECK(ran(kFakeSteps, "single", {DType::fp16, 1}) == "small");  // its element type as well
  CHECK(ran(kFakeSteps, "alone", {DType::bf16, 10}) == "size: 10 is too large");
  CHECK(ran(kFakeSteps, "small", {DType::fp32, -1}) == "size: is negative");
  CHECK(ran(kFakeSteps, "single", {DType::fp32, 0}) == "single");  // nothing to launch, or to fail
  CHECK(begins_with(ran(kFakeSteps, "every", {DType::bf16, 1}), "type: bf16 is not one of"));
  CHECK(ran(kFakeSteps, "smal", {DType::fp32, 1}) ==
        "step: 'smal' is not one of every, small, single, alone");
  CHECK(ran(kFakeSteps, "", {DType::fp32, 1}) ==
        "step: '' is not one of every, small, single, alone");
}

TEST_CASE("without a name it is the last step whose own kernel takes the problem") {
  CHECK(ran(kFakeSteps, nullptr, {DType::fp32, 1}) == "kernel: failed");  // single
  CHECK(ran(kFakeSteps, nullptr, {DType::fp16, 1}) == "small");
  CHECK(ran(kFakeSteps, nullptr, {DType::fp16, 10}) == "every");
  CHECK(ran(kFakeSteps, nullptr, {DType::bf16, 1}) == "alone");
  CHECK(begins_with(ran(kFakeSteps, nullptr, {DType::tf32, 1}), "type: tf32 is not one of"));
  std::string elsewhere = "?";
  std::thread([&] { elsewhere = tile_last_step(); }).join();
  CHECK(elsewhere.empty());
}

TEST_CASE("a step whose feature the device lacks gives way to the one before") {
  // A card of 9.0 has every feature, and cards below 9.0 have no wgmma. So that this case also
  // meets missing features, CTest runs it on the CPU device as 7.5 and 8.0, too.
  const int capability = tile::device().capability;
  CHECK(tile::has_feature(capability, tile::Feature::fp16_mma) == (capability >= 75));
  CHECK(tile::has_feature(capability, tile::Feature::bf16_mma) == (capability >= 80));
  for (const tile::Feature feature : tile::kFeatures) {
    for (const DType type : {DType::fp32, DType::fp16, DType::bf16}) {
      const bool for_fp16 = type == DType::fp16 && feature == tile::Feature::bf16_mma;
      const tile::Feature needed = for_fp16 ? tile::Feature::fp16_mma : feature;
      const bool for_fp32 = type == DType::fp32 && feature == tile::Feature::bf16_mma;
      const bool here = for_fp32 || tile::has_feature(capability, needed);
      const FakeLadder::Step steps[] = {
          {"plain", "", {type}, {}, nullptr, "", {}, fake_launch},
          {"special", "", {type}, {feature}, nullptr, "plain", {}, fake_launch},
          {"lonely", "", {type}, {feature}, nullptr, "", {}, fake_launch}};
      const FakeProblem problem{type, 1};
      CHECK(ran(steps, "special", problem) == (here ? "special" : "plain"));
      CHECK(ran(steps, nullptr, problem) == (here ? "lonely" : "plain"));
      CHECK((ran(steps, "lonely", problem) == "lonely") == here);
      if (!here) CHECK(begins_with(ran(steps, "lonely", problem), std::string(name(needed))));
    }
  }
}

// ---- Structs ----

TEST_CASE("structs that are null, zero, or of another size") {
  check_refused(tile_vector_add(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_matmul(nullptr), TILE_INVALID_ARGUMENT, "args");
  check_refused(tile_matmul_reference(nullptr), TILE_INVALID_ARGUMENT, "args");

  tile_vector_add_args sum{};
  check_refused(tile_vector_add(&sum), TILE_INVALID_ARGUMENT, "struct_size");
  sum.struct_size = offsetof(tile_vector_add_args, stream);
  check_refused(tile_vector_add(&sum), TILE_INVALID_ARGUMENT, "struct_size");
  sum.struct_size = sizeof sum;
  check_refused(tile_vector_add(&sum), TILE_INVALID_ARGUMENT, "type");
  sum.type = TILE_FP32;
  check_ok(tile_vector_add(&sum));  // no elements

  tile_matmul_args mul{};
  check_refused(tile_matmul(&mul), TILE_INVALID_ARGUMENT, "struct_size");
  mul.struct_size = offsetof(tile_matmul_args, stream);
  check_refused(tile_matmul(&mul), TILE_INVALID_ARGUMENT, "struct_size");
  mul.struct_size = sizeof mul + 8;
  check_refused(tile_matmul(&mul), TILE_INVALID_ARGUMENT, "struct_size");
  mul.struct_size = sizeof mul;
  check_refused(tile_matmul(&mul), TILE_INVALID_ARGUMENT, "type");
  check_refused(tile_matmul_reference(&mul), TILE_INVALID_ARGUMENT, "type");
  mul.type = TILE_FP32;
  check_ok(tile_matmul(&mul));
  mul.type = TILE_FP64;
  check_ok(tile_matmul_reference(&mul));
}

// ---- Vector add ----

TEST_CASE("every step adds vectors, and without a name it is the best") {
  constexpr std::int64_t kCount = 10'007;
  for (std::size_t t = 0; t < std::size(kTypes); ++t) {
    const DType type = tile::kDTypes[t];
    const std::vector<std::string> names =
        steps_here(vector_add::kLadder, {type, kCount}, vector_add::Buffers{});
    if (names.empty()) continue;
    const Values a = tile::normal(kCount, type, 1), b = tile::normal(kCount, type, 2);
    for (std::size_t s = 0; s <= names.size(); ++s) {
      const bool best = s == names.size();
      const std::string& name = best ? names.back() : names[s];
      CAPTURE(name);
      const tile::Layout layout = tile::vector_layout(type, kCount, 1);
      DeviceBuffer x = DeviceBuffer::input("a", layout, a);
      DeviceBuffer y = DeviceBuffer::input("b", layout, b);
      DeviceBuffer z = DeviceBuffer::output("c", layout, Poison::unwritten_nan);
      tile_vector_add_args args = addition(kTypes[t], kCount, x.raw(), y.raw(), z.raw());
      args.step = best ? nullptr : name.c_str();
      const std::string activity = activity_of([&] { check_ok(tile_vector_add(&args)); });
      CHECK(tile_last_step() == name);
      check_equal(z, vector_add::reference(type, a, b));
      for (const DeviceBuffer* buffer : {&x, &y, &z}) check_intact(*buffer);

      for (const auto& step : vector_add::kSteps) {
        if (step.name != name) continue;
        CHECK(activity == activity_of([&] {
                CHECK(step.launch({type, kCount}, {x.raw(), y.raw(), z.raw()}, nullptr).ok());
              }));
      }
    }
  }
}

TEST_CASE("bad arguments of vector_add are refused by name and nothing is written") {
  constexpr std::int64_t kCount = 100;
  const Values values = tile::normal(kCount, DType::fp32, 1);
  const tile::Layout layout = tile::vector_layout(DType::fp32, kCount);
  DeviceBuffer a = DeviceBuffer::input("a", layout, values);
  DeviceBuffer b = DeviceBuffer::input("b", layout, values);
  DeviceBuffer c = DeviceBuffer::output("c", layout, Poison::unwritten_nan);
  const tile_vector_add_args good = addition(TILE_FP32, kCount, a.raw(), b.raw(), c.raw());
  auto refused = [&good](tile_status status, const char* argument, auto change) {
    tile_vector_add_args bad = good;
    change(bad);
    check_refused(tile_vector_add(&bad), status, argument);
    CHECK(std::string(tile_last_step()).empty());
  };
  refused(TILE_INVALID_ARGUMENT, "step", [](auto& args) { args.step = "fastest"; });
  const std::string message = tile_last_error();
  for (const auto& step : vector_add::kSteps) {
    CHECK(message.find(step.name) != std::string::npos);
  }
  refused(TILE_INVALID_ARGUMENT, "step", [](auto& args) { args.step = "naive"; });  // of chapter 02
  for (const tile_type none : {0, 7, -1}) {
    refused(TILE_INVALID_ARGUMENT, "type", [none](auto& args) { args.type = none; });
  }
  refused(TILE_UNSUPPORTED, "type", [](auto& args) { args.type = TILE_FP64; });
  refused(TILE_INVALID_ARGUMENT, "n", [](auto& args) { args.n = -1; });
  refused(TILE_INVALID_ARGUMENT, "a", [](auto& args) { args.a = nullptr; });
  refused(TILE_INVALID_ARGUMENT, "b", [](auto& args) { args.b = nullptr; });
  refused(TILE_INVALID_ARGUMENT, "c", [](auto& args) { args.c = nullptr; });
  const Status untouched = c.check_unchanged();
  CHECK_MESSAGE(untouched.ok(), untouched.message);
  check_ok(tile_vector_add(&good));
}

// ---- Matmul ----

namespace {

struct Shape {
  bool transpose_a, transpose_b;
  std::int64_t padding;  // of each matrix; 0: leading dimensions are left 0
  float alpha, beta;
  bool bias = false;
  tile_activation activation = TILE_NO_ACTIVATION;
};

constexpr std::int64_t kM = 37, kN = 53, kK = 41;
constexpr Shape kShapes[] = {{false, false, 0, 1, 0},
                             {true, false, 0, 1, 0},
                             {false, true, 3, 1, 0},
                             {true, true, 5, -1.5f, 0.75f},
                             {false, false, 7, 2, -1},
                             {true, false, 1, 0, 0.5f},
                             {false, true, 0, 0.25f, 1},
                             {true, true, 0, 0, 0},
                             {false, false, 3, 1, 0, true},
                             {true, false, 0, -1, 1, true, TILE_RELU},
                             {false, true, 2, 0.1f, 0, true, TILE_GELU},
                             {false, false, 0, 1, 0, false, TILE_RELU}};

std::int64_t stored_rows_a(const Shape& s) { return s.transpose_a ? kK : kM; }
std::int64_t stored_cols_a(const Shape& s) { return s.transpose_a ? kM : kK; }
std::int64_t stored_rows_b(const Shape& s) { return s.transpose_b ? kN : kK; }
std::int64_t stored_cols_b(const Shape& s) { return s.transpose_b ? kK : kN; }

// The arguments for this shape, without pointers. Leading dimensions differ in their padding.
tile_matmul_args arguments(const Shape& s, tile_type type) {
  tile_matmul_args args = product(type, kM, kN, kK);
  args.transpose_a = s.transpose_a;
  args.transpose_b = s.transpose_b;
  if (s.padding > 0) {
    args.lda = stored_cols_a(s) + s.padding;
    args.ldb = stored_cols_b(s) + s.padding + 1;
    args.ldc = kN + s.padding + 2;
  }
  // Defaults are left to the library.
  if (s.alpha != 1) args.alpha = &s.alpha;
  if (s.beta != 0) args.beta = &s.beta;
  args.activation = s.activation;
  return args;
}

tile::Layout layout_of(DType type, std::int64_t rows, std::int64_t cols, std::int64_t ld) {
  return tile::matrix_layout(type, rows, cols, ld == 0 ? cols : ld);
}

}  // namespace

TEST_CASE("every step multiplies matrices, and without a name it is the best") {
  for (std::size_t t = 0; t < std::size(kTypes); ++t) {
    const DType type = tile::kDTypes[t];
    const std::string type_name(tile::name(type));
    CAPTURE(type_name);
    for (const Shape& s : kShapes) {
      matmul::Problem problem{type, kM, kN, kK, s.transpose_a, s.transpose_b};
      problem.alpha = s.alpha;
      problem.beta = s.beta;
      problem.activation = static_cast<matmul::Activation>(s.activation);
      const std::vector<std::string> names =
          steps_here(matmul::kLadder, problem, matmul::Buffers{});
      if (names.empty()) {
        tile_matmul_args args = arguments(s, kTypes[t]);
        // If only the card lacks the type, the missing pointers are reported first.
        const bool exists = matmul::kTypes.contains(type);
        CHECK(tile_matmul(&args) == (exists ? TILE_INVALID_ARGUMENT : TILE_UNSUPPORTED));
        continue;
      }
      const Values a = tile::normal(kM * kK, type, 1), b = tile::normal(kK * kN, type, 2);
      const Values c = tile::normal(kM * kN, type, 3), bias = tile::normal(kN, type, 4);
      const tile::Expected expected =
          matmul::reference(problem, a, b, c, true, s.bias ? std::span(bias) : std::span<double>());
      for (std::size_t i = 0; i <= names.size(); ++i) {
        const bool best = i == names.size();
        const std::string& name = best ? names.back() : names[i];
        CAPTURE(name);
        CAPTURE(&s - kShapes);
        tile_matmul_args args = arguments(s, kTypes[t]);
        args.step = best ? nullptr : name.c_str();
        DeviceBuffer x = DeviceBuffer::input(
            "a", layout_of(type, stored_rows_a(s), stored_cols_a(s), args.lda), a);
        DeviceBuffer y = DeviceBuffer::input(
            "b", layout_of(type, stored_rows_b(s), stored_cols_b(s), args.ldb), b);
        DeviceBuffer z = DeviceBuffer::in_out("c", layout_of(type, kM, kN, args.ldc), c);
        DeviceBuffer w = DeviceBuffer::input("bias", tile::vector_layout(type, kN), bias);
        args.a = x.raw();
        args.b = y.raw();
        args.c = z.raw();
        args.bias = s.bias ? w.raw() : nullptr;
        const std::string activity = activity_of([&] { check_ok(tile_matmul(&args)); });
        CHECK(tile_last_step() == name);
        check_equal(z, expected);
        for (const DeviceBuffer* buffer : {&x, &y, &z, &w}) check_intact(*buffer);

        for (const auto& step : matmul::kSteps) {
          if (step.name != name || s.padding > 0) continue;
          CHECK(activity == activity_of([&] {
                  CHECK(step.launch(problem, {x.raw(), y.raw(), z.raw(), args.bias}, nullptr).ok());
                }));
        }
      }
    }
  }
}

TEST_CASE("e4m3: two scales in device memory, and C in bf16") {
  constexpr std::int64_t kDepth = 48;
  const matmul::Problem problem{DType::e4m3, kM, kN, kDepth, false, true};
  tile_matmul_args args = product(TILE_E4M3, kM, kN, kDepth);
  args.transpose_b = 1;
  args.ldc = (kN + 7) / 8 * 8;
  matmul::Problem aligned = problem;
  aligned.ldc = args.ldc;
  if (steps_here(matmul::kLadder, aligned, matmul::Buffers{}).empty()) return;  // needs wgmma
  const Values a = tile::normal(kM * kDepth, DType::e4m3, 1),
               b = tile::normal(kN * kDepth, DType::e4m3, 2);
  const auto number = [](double x) {
    return DeviceBuffer::input("scale", tile::vector_layout(DType::fp32, 1), Values{x});
  };
  DeviceBuffer x = DeviceBuffer::input("a", layout_of(DType::e4m3, kM, kDepth, 0), a);
  DeviceBuffer y = DeviceBuffer::input("b", layout_of(DType::e4m3, kN, kDepth, 0), b);
  DeviceBuffer z =
      DeviceBuffer::output("c", layout_of(DType::bf16, kM, kN, args.ldc), Poison::unwritten_nan);
  DeviceBuffer three = number(3), half = number(0.5);
  args.a = x.raw(), args.b = y.raw(), args.c = z.raw();
  args.a_scale = static_cast<const float*>(three.raw());
  args.b_scale = static_cast<const float*>(half.raw());
  check_ok(tile_matmul(&args));
  CHECK(tile_last_step() == std::string("e4m3"));
  check_equal(z, matmul::reference(problem, a, b, {}, true, {}, true, 1.5));
  for (const DeviceBuffer* buffer : {&x, &y, &z, &three, &half}) check_intact(*buffer);
  args.type = TILE_BF16;
  check_refused(tile_matmul(&args), TILE_INVALID_ARGUMENT, "a_scale");
  args.a_scale = nullptr;
  check_refused(tile_matmul(&args), TILE_INVALID_ARGUMENT, "b_scale");
}

TEST_CASE("the reference is the naive product, whatever the leading dimensions") {
  constexpr double kUntouched = -77;
  for (const Shape& s : kShapes) {
    CAPTURE(&s - kShapes);
    tile_matmul_args args = arguments(s, TILE_FP64);
    const std::int64_t lda = s.padding > 0 ? args.lda : stored_cols_a(s);
    const std::int64_t ldb = s.padding > 0 ? args.ldb : stored_cols_b(s);
    const std::int64_t ldc = s.padding > 0 ? args.ldc : kN;
    Values a = tile::normal(stored_rows_a(s) * lda, DType::fp64, 1);
    Values b = tile::normal(stored_rows_b(s) * ldb, DType::fp64, 2);
    Values c = tile::normal(kM * ldc, DType::fp64, 3);
    const Values bias = tile::normal(kN, DType::fp64, 4);
    auto at = [](Values& values, std::int64_t row, std::int64_t col, std::int64_t ld) -> double& {
      return values[static_cast<std::size_t>(row * ld + col)];
    };
    for (std::int64_t i = 0; i < kM; ++i) {
      for (std::int64_t j = kN; j < ldc; ++j) at(c, i, j, ldc) = kUntouched;
      // With beta 0 the old content must not matter.
      for (std::int64_t j = 0; j < kN && s.beta == 0; ++j) at(c, i, j, ldc) = NAN;
    }
    const Values before = c;
    args.a = s.alpha == 0 ? nullptr : a.data();
    args.b = s.alpha == 0 ? nullptr : b.data();
    args.c = c.data();
    args.bias = s.bias ? bias.data() : nullptr;
    check_ok(tile_matmul_reference(&args));

    double worst = 0;
    for (std::int64_t i = 0; i < kM; ++i) {
      for (std::int64_t j = 0; j < ldc; ++j) {
        if (j >= kN) {
          CHECK(at(c, i, j, ldc) == kUntouched);
          continue;
        }
        double sum = 0, magnitude = 0;
        for (std::int64_t l = 0; l < kK; ++l) {
          const double term = (s.transpose_a ? at(a, l, i, lda) : at(a, i, l, lda)) *
                              (s.transpose_b ? at(b, j, l, ldb) : at(b, l, j, ldb));
          sum += term;
          magnitude += std::abs(term);
        }
        const double old = s.beta == 0 ? 0 : before[static_cast<std::size_t>(i * ldc + j)];
        const double added = s.bias ? bias[static_cast<std::size_t>(j)] : 0;
        double expected = s.alpha * sum + s.beta * old + added;
        // Both sums are off by at most gamma_k |A||B|; alpha, beta, the bias and their sum round
        // both.
        double bound =
            0x1p-53 * (2.1 * kK * std::abs(s.alpha) * magnitude +
                       6 * (std::abs(s.alpha * sum) + std::abs(s.beta * old) + std::abs(added)));
        if (s.activation == TILE_RELU) expected = std::max(0.0, expected);
        if (s.activation == TILE_GELU) {
          // gelu's slope is at most 1.13; the rest are roundings of numbers up to x.
          bound = 2 * bound + 0x1p-50 * std::abs(expected);
          const double pi = std::acos(-1);
          expected *=
              0.5 *
              (1 + std::tanh(std::sqrt(2 / pi) * (expected + 0.044715 * std::pow(expected, 3))));
        }
        const double error = std::abs(at(c, i, j, ldc) - expected);
        if (!(error <= bound)) worst = INFINITY;
      }
    }
    CHECK(worst == 0);
  }
}

TEST_CASE("the reference computes in double and multiplies by what the kernels multiply by") {
  const double a = 1 + 0x1p-40, b = 1 + 0x1p-45;
  double c = 0;
  const float alpha = 0.1f;
  tile_matmul_args args = product(TILE_FP64, 1, 1, 1);
  args.a = &a;
  args.b = &b;
  args.c = &c;
  check_ok(tile_matmul_reference(&args));
  CHECK(c == a * b);
  args.alpha = &alpha;
  check_ok(tile_matmul_reference(&args));
  CHECK(c == static_cast<double>(alpha) * (a * b));
}

TEST_CASE("bad arguments of matmul are refused by name and nothing is written") {
  const Values a(kM * kK, 1), b(kK * kN, 1);
  Values c(kM * kN, 5);
  DeviceBuffer x = DeviceBuffer::input("a", tile::matrix_layout(DType::fp32, kM, kK, kK), a);
  DeviceBuffer y = DeviceBuffer::input("b", tile::matrix_layout(DType::fp32, kK, kN, kN), b);
  DeviceBuffer z = DeviceBuffer::output("c", tile::matrix_layout(DType::fp32, kM, kN, kN),
                                        Poison::unwritten_nan);
  tile_matmul_args on_device = product(TILE_FP32, kM, kN, kK);
  on_device.a = x.raw();
  on_device.b = y.raw();
  on_device.c = z.raw();
  tile_matmul_args on_host = product(TILE_FP64, kM, kN, kK);
  on_host.a = a.data();
  on_host.b = b.data();
  on_host.c = c.data();
  // Kernels and reference refuse the same arguments.
  auto refused = [&](const char* argument, auto change) {
    tile_matmul_args bad = on_device;
    change(bad);
    check_refused(tile_matmul(&bad), TILE_INVALID_ARGUMENT, argument);
    bad = on_host;
    change(bad);
    check_refused(tile_matmul_reference(&bad), TILE_INVALID_ARGUMENT, argument);
  };
  refused("m", [](auto& args) { args.m = -1; });
  refused("n", [](auto& args) { args.n = -1; });
  refused("k", [](auto& args) { args.k = -1; });
  refused("a", [](auto& args) { args.a = nullptr; });
  refused("b", [](auto& args) { args.b = nullptr; });
  refused("c", [](auto& args) { args.c = nullptr; });
  refused("c", [](auto& args) { args.c = const_cast<void*>(args.a); });
  refused("lda", [](auto& args) { args.lda = kK - 1; });
  refused("ldb", [](auto& args) { args.ldb = kN - 1; });
  refused("ldc", [](auto& args) { args.ldc = kN - 1; });
  refused("ldc", [](auto& args) { args.ldc = -1; });
  refused("a", [](auto& args) { args.lda = INT64_MAX; });
  refused("c", [](auto& args) { args.bias = args.c; });
  refused("bias", [](auto& args) { args.bias = static_cast<const char*>(args.a) + 1; });
  for (const tile_activation unknown : {std::int64_t{-1}, std::int64_t{3}, std::int64_t{1} << 32}) {
    refused("activation", [unknown](auto& args) { args.activation = unknown; });
  }
  refused("transpose_a", [](auto& args) { args.transpose_a = 2; });
  refused("transpose_b", [](auto& args) { args.transpose_b = -1; });
  refused("type", [](auto& args) { args.type = 0; });
  refused("type", [](auto& args) { args.type = 7; });

  check_refused(tile_matmul_reference(&on_device), TILE_UNSUPPORTED, "type");
  check_refused(tile_matmul(&on_host), TILE_UNSUPPORTED, "type");
  on_device.step = "fastest";
  check_refused(tile_matmul(&on_device), TILE_INVALID_ARGUMENT, "step");
  const std::string message = tile_last_error();
  for (const auto& step : matmul::kSteps) CHECK(message.find(step.name) != std::string::npos);

  const Status untouched = z.check_unchanged();
  CHECK_MESSAGE(untouched.ok(), untouched.message);
  CHECK(c == Values(kM * kN, 5));
  on_device.step = nullptr;
  check_ok(tile_matmul(&on_device));
  check_ok(tile_matmul_reference(&on_host));
  CHECK(c == Values(kM * kN, kK));
}

TEST_CASE("a product's workspace is told, and without it an earlier step runs") {
  // Few rows, and sums so long that blocks share them on every card.
  constexpr std::int64_t kRows = 16, kLong = 4000;
  const Values a(kRows * kLong, 1), b(kLong * kN, 1);
  DeviceBuffer x = DeviceBuffer::input("a", tile::vector_layout(DType::fp32, kRows * kLong), a);
  DeviceBuffer y = DeviceBuffer::input("b", tile::vector_layout(DType::fp32, kLong * kN), b);
  DeviceBuffer z = DeviceBuffer::output("c", tile::vector_layout(DType::fp32, kRows * kN),
                                        Poison::unwritten_nan);
  tile_matmul_args args = product(TILE_FP32, kRows, kN, kLong);
  std::int64_t bytes = -1;
  check_ok(tile_matmul_workspace_bytes(&args, &bytes));  // before there are tensors
  REQUIRE(bytes > 0);
  DeviceBuffer workspace = DeviceBuffer::output(
      "workspace", tile::vector_layout(DType::fp32, bytes / 4), Poison::unwritten_nan);
  args.a = x.raw(), args.b = y.raw(), args.c = z.raw(), args.workspace = workspace.raw();
  const auto runs = [&](const char* step, std::int64_t given) {
    args.workspace_bytes = given;
    check_ok(tile_matmul(&args));
    CHECK(tile_last_step() == std::string(step));
    CHECK(z.download() == Values(kRows * kN, kLong));
    check_intact(workspace);
  };
  runs("double_buffered", 0);
  runs("double_buffered", bytes - 1);
  runs("shares", bytes);
  args.step = "shares";
  runs("double_buffered", bytes - 1);
  std::int64_t same = -1;
  check_ok(tile_matmul_workspace_bytes(&args, &same));
  CHECK(same == bytes);
  args.step = "vectors";
  check_ok(tile_matmul_workspace_bytes(&args, &same));
  CHECK(same == 0);
  args.k = 0;
  args.step = nullptr;
  check_ok(tile_matmul_workspace_bytes(&args, &same));
  CHECK(same == 0);
  check_refused(tile_matmul_workspace_bytes(&args, nullptr), TILE_INVALID_ARGUMENT, "bytes");
  check_refused(tile_matmul_workspace_bytes(nullptr, &same), TILE_INVALID_ARGUMENT, "args");
  args.m = -1;
  check_refused(tile_matmul_workspace_bytes(&args, &same), TILE_INVALID_ARGUMENT, "m");
}

TEST_CASE("products without rows, columns or terms") {
  double c = 5;
  for (const auto& size : {std::array{0, 2, 3}, std::array{2, 0, 3}, std::array{0, 0, 0}}) {
    tile_matmul_args args = product(TILE_FP32, size[0], size[1], size[2]);
    check_ok(tile_matmul(&args));
    args.type = TILE_FP64;
    check_ok(tile_matmul_reference(&args));
  }
  tile_matmul_args no_terms = product(TILE_FP64, 1, 1, 0);
  no_terms.c = &c;
  check_ok(tile_matmul_reference(&no_terms));
  CHECK(c == 0);
  DeviceBuffer z =
      DeviceBuffer::output("c", tile::vector_layout(DType::fp32, 1), Poison::unwritten_nan);
  no_terms.type = TILE_FP32;
  no_terms.c = z.raw();
  check_ok(tile_matmul(&no_terms));
  CHECK(z.download() == Values{0});
}

TEST_CASE("operations run in the stream that they are given") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  const Values one = {1};
  const tile::Layout layout = tile::vector_layout(DType::fp32, 1);
  DeviceBuffer a = DeviceBuffer::input("a", layout, one);
  DeviceBuffer b = DeviceBuffer::input("b", layout, one);
  DeviceBuffer c = DeviceBuffer::output("c", layout, Poison::unwritten_nan);
  tile_vector_add_args sum = addition(TILE_FP32, 1, a.raw(), b.raw(), c.raw());
  tile_matmul_args mul = product(TILE_FP32, 1, 1, 1);
  mul.a = a.raw();
  mul.b = b.raw();
  mul.c = c.raw();
  sum.stream = mul.stream = stream;
  check_ok(tile_vector_add(&sum));
  check_ok(tile_synchronize(stream));
  CHECK(c.download() == Values{2});
  check_ok(tile_matmul(&mul));
  check_ok(tile_synchronize(stream));
  CHECK(c.download() == Values{1});
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  // The CPU device recognises a stream that does not exist; for a GPU's runtime it is a wild
  // pointer.
  if (!tile::device().simulated) return;
  CHECK(tile_vector_add(&sum) == TILE_DEVICE_ERROR);
  CHECK(std::string(tile_last_error()).find("the stream does not exist") != std::string::npos);
  CHECK(tile_matmul(&mul) == TILE_DEVICE_ERROR);
  CHECK(tile_synchronize(stream) == TILE_DEVICE_ERROR);
}
