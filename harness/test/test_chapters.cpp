// What every chapter owes ./tour and the benchmark.
#include <doctest/doctest.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/chapter.hpp"
#include "harness/workload.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"
#include "tile/host/step.hpp"

namespace tile {
namespace {

std::vector<MakeWorkload> makers(const LadderInfo& ladder) {
  std::vector<MakeWorkload> all{ladder.make};
  all.insert(all.end(), ladder.make_for_benchmark.begin(), ladder.make_for_benchmark.end());
  return all;
}

const Chapter& chapter(std::string_view name) {
  for (const Chapter* chapter : chapters()) {
    if (chapter->name == name) return *chapter;
  }
  FAIL("there is no chapter " << name);
  return *chapters().front();
}

/// The ladder of this name, or the only one.
const LadderInfo& ladder(const char* chapter_name, std::string_view name = "") {
  for (const LadderInfo& ladder : chapter(chapter_name).ladders) {
    if (ladder.name == name) return ladder;
  }
  FAIL(chapter_name << " has no ladder " << name);
  return chapter(chapter_name).ladders.front();
}

std::vector<std::int64_t> size_of(const LadderInfo& ladder,
                                  const std::array<std::int64_t, Shows::kMostExtents>& shown) {
  return {shown.begin(), shown.begin() + static_cast<std::ptrdiff_t>(ladder.extents.size())};
}

/// Runs the step on what it shows, and checks that it was its own kernel, and right. With
/// `also_unwritten` it checks as well that nothing else would have passed: not what was there
/// before the launch, nor what is there for the next step.
void check_own_kernel(const LadderInfo& ladder, std::size_t step, Workload& workload,
                      bool also_unwritten) {
  Choice choice;
  const Status chosen = workload.choose(step, &choice);
  REQUIRE_MESSAGE(chosen.ok(), chosen.message);
  REQUIRE_MESSAGE(choice.step == step, choice.why);
  if (also_unwritten) CHECK_FALSE(workload.check().ok());
  launched_kernels();  // forget what went before
  take_reported_launches();
  const Status launched = workload.launch(step, nullptr);
  REQUIRE_MESSAGE(launched.ok(), launched.message);
  const Comparison comparison = workload.check();
  CHECK_MESSAGE(comparison.ok(), comparison.message);
  CHECK(comparison.count > 0);
  const std::vector<std::string> reported = take_reported_launches();
  const std::vector<std::string> names = device().simulated ? launched_kernels() : reported;
  CHECK(names == reported);  // what a launcher says of itself is true
  const StepInfo& info = ladder.steps[step];
  const std::string own = info.kernel.empty() ? std::string(ladder.kernels).append(info.name)
                                              : std::string(info.kernel);
  const bool ran = std::ranges::any_of(
      names, [&own](const std::string& name) { return name.rfind(own, 0) == 0; });
  CHECK_MESSAGE(ran, own, " did not run");
  if (also_unwritten) CHECK_FALSE(workload.check().ok());
}

/// Runs each step on the large problem that ./tour times. Those that share one run one after the
/// other: it takes seconds to make.
void check_large_problems(const Chapter& chapter) {
  for (const LadderInfo& ladder : chapter.ladders) {
    std::map<std::pair<std::vector<std::int64_t>, DType>, std::vector<std::size_t>> steps;
    for (std::size_t step = 0; step < ladder.steps.size(); ++step) {
      const StepInfo& info = ladder.steps[step];
      if (!check_requirements(info.types, info.needs, default_type(info)).ok()) continue;
      steps[{size_of(ladder, info.shows.large), default_type(info)}].push_back(step);
    }
    for (const auto& [problem, numbers] : steps) {
      const auto large = ladder.make(problem.first, problem.second);
      for (const std::size_t step : numbers) {
        CAPTURE(ladder.steps[step].name);
        check_own_kernel(ladder, step, *large, false);
      }
    }
  }
}

TEST_CASE("chapters: a step's type, unless one is asked for, is one that runs here") {
  // CTest asks the CPU device as 7.5, too, which multiplies no bf16.
  const bool has_bf16 = has_feature(device().capability, Feature::bf16_mma);
  StepInfo step{"", "", {DType::fp16, DType::bf16}, {}, "", {}};
  CHECK(default_type(step) == DType::bf16);
  step.needs = {Feature::bf16_mma};
  CHECK(default_type(step) == (has_bf16 ? DType::bf16 : DType::fp16));
  step.needs = {Feature::bf16_mma, Feature::cp_async};
  CHECK(default_type(step) == DType::bf16);
  step.types = {DType::fp32, DType::fp16, DType::bf16};
  CHECK(default_type(step) == DType::fp32);
}

TEST_CASE("chapters: every step runs its own kernel on what it shows, in each of its types") {
  for (const Chapter* chapter : chapters()) {
    for (const LadderInfo& ladder : chapter->ladders) {
      for (std::size_t step = 0; step < ladder.steps.size(); ++step) {
        const StepInfo& info = ladder.steps[step];
        CAPTURE(chapter->name);
        CAPTURE(ladder.name);
        CAPTURE(info.name);
        CHECK(!info.idea.empty());
        CHECK(!info.types.empty());
        if (!info.otherwise.empty()) {
          const auto earlier = std::ranges::find(ladder.steps, info.otherwise, &StepInfo::name);
          CHECK(earlier - ladder.steps.begin() < static_cast<std::ptrdiff_t>(step));
        }
        for (const DType type : kDTypes) {
          if (!info.types.contains(type)) continue;
          CAPTURE(name(type));
          if (!check_requirements(info.types, info.needs, type).ok()) continue;
          // On the CPU device one type says the same, bf16 if the step has it. When CTest asks it
          // as 7.5, too, that is for the steps in 16 bits; those in fp32 need nothing of a card.
          if (device().simulated && type != DType::bf16 &&
              (check_requirements(info.types, info.needs, DType::bf16).ok() ||
               (type == DType::fp32 && device().capability < 80))) {
            continue;
          }
          const auto small = ladder.make(size_of(ladder, info.shows.small), type);
          CHECK(small->name().find(name(type)) == 0);
          CHECK(small->bytes() > 0);
          check_own_kernel(ladder, step, *small, true);
        }
      }
    }
  }
}

// Takes minutes on the CPU device. CTest runs the chapters side by side.
TEST_CASE("large: every step runs its own kernel on the large problem that ./tour times" *
          doctest::skip(device_is_simulated())) {
  for (const Chapter* chapter : chapters()) {
    SUBCASE(std::string(chapter->name).c_str()) { check_large_problems(*chapter); }
  }
}

TEST_CASE("chapters: what a benchmark measures has names of its own, and the last step is right") {
  for (const Chapter* chapter : chapters()) {
    for (const LadderInfo& ladder : chapter->ladders) {
      std::set<std::string> keys;
      for (const DType type : ladder.benchmark_types) {
        for (const MakeWorkload make : makers(ladder)) {
          const std::vector<std::int64_t> size = size_of(ladder, ladder.steps.front().shows.small);
          const auto workload = make(size, type);
          if (!workload) {
            const bool is_first = make == ladder.make;
            CHECK_FALSE(is_first);
            continue;
          }
          CAPTURE(workload->name());
          CHECK(keys.insert(workload->name().append(workload->direction())).second);
          for (std::size_t step = ladder.steps.size(); step-- > 0;) {
            Choice choice;
            if (!workload->choose(step, &choice).ok()) continue;
            REQUIRE(workload->launch(choice.step, nullptr).ok());
            const Comparison comparison = workload->check();
            CHECK_MESSAGE(comparison.ok(), comparison.message);
            break;
          }
        }
      }
    }
  }
}

TEST_CASE("chapters: the products of matmul, forward and backward") {
  const LadderInfo& matmul = ladder("02_matmul");
  const struct {
    std::string name;
    std::string direction;
    double elements;
  } wanted[] = {{" m5 n6 k7", "forward", 5 * 6 + 6 * 7 + 5 * 7},
                {" m5 n7 k6 B^T", "backward", 5 * 6 + 6 * 7 + 5 * 7},
                {" m7 n6 k5 A^T", "backward", 5 * 6 + 6 * 7 + 5 * 7},
                {" m5 n6 k7 bias gelu", "forward", 5 * 6 + 6 * 7 + 5 * 7 + 6}};
  const auto all = makers(matmul);
  REQUIRE(all.size() == std::size(wanted));
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16, DType::tf32}) {
    int made = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto workload = all[i]({5, 6, 7}, type);
      if (!workload) continue;
      ++made;
      CHECK(workload->name() == std::string(name(type)) + wanted[i].name);
      CHECK(workload->direction() == wanted[i].direction);
      CHECK(workload->operations() == 2 * 5 * 6 * 7);
      CHECK(workload->multiplied_type() == type);
      CHECK(workload->bytes() == static_cast<double>(size_bytes(type)) * wanted[i].elements);
      CHECK(workload->checked_part().rfind("all ", 0) == 0);
    }
    CHECK(made == (type == DType::fp32 ? 3 : type == DType::bf16 ? 4 : 1));
  }
}

TEST_CASE("chapters: of a large product of matmul some rows are checked, by each direction") {
  // 2,100 rows of C, just above 2^30 products, or as many columns.
  const LadderInfo& matmul = ladder("02_matmul");
  const auto workload = makers(matmul)[1]({2100, 800, 700}, DType::fp32);
  CHECK(workload->name() == "fp32 m2100 n700 k800 B^T");
  CHECK(workload->checked_part().rfind("all ", 0) != 0);
  CHECK_FALSE(workload->check().ok());
  std::size_t best = matmul.steps.size() - 1;
  while (!matmul.steps[best].types.contains(DType::fp32)) --best;
  REQUIRE(workload->launch(best, nullptr).ok());
  const Comparison comparison = workload->check();
  CHECK_MESSAGE(comparison.ok(), comparison.message);
  CHECK(comparison.count % 700 == 0);
  CHECK(comparison.count < 200 * 700);
}

TEST_CASE("chapters: sizes of matmul that no memory holds are refused by name") {
  const LadderInfo& matmul = ladder("02_matmul");
  CHECK_THROWS_WITH(matmul.make({3, 3'000'000'000'000'000'000, 4}, DType::fp32),
                    "n: 3000000000000000000 makes a matrix too large");
}

const char* const kDirections[] = {"forward", "backward"};

TEST_CASE("chapters: softmax, forward and backward") {
  for (const char* direction : kDirections) {
    const LadderInfo& softmax = ladder("03_softmax", direction);
    CHECK(softmax.make_for_benchmark.empty());
    for (const DType type : {DType::fp32, DType::bf16, DType::fp16}) {
      const auto workload = softmax.make({5, 7}, type);
      CHECK(workload->name() == std::string(name(type)) + " rows5 cols7");
      CHECK(workload->direction() == direction);
      CHECK(workload->bytes() ==
            (direction == kDirections[1] ? 3.0 : 2.0) * 35 * static_cast<double>(size_bytes(type)));
      CHECK(workload->operations() == 0);
      CHECK(workload->checked_part() == "all 5 rows");
    }
  }
}

TEST_CASE("chapters: of a large softmax some rows are checked, by each direction") {
  for (const char* direction : kDirections) {
    const LadderInfo& softmax = ladder("03_softmax", direction);
    const auto workload = softmax.make({2100, 501}, DType::bf16);  // just above 2^20 elements
    CHECK(workload->checked_part().rfind("all ", 0) != 0);
    CHECK(workload->checked_part().find(" rows") != std::string::npos);
    CHECK_FALSE(workload->check().ok());
    Choice choice;
    REQUIRE(workload->choose(softmax.steps.size() - 1, &choice).ok());
    REQUIRE(workload->launch(choice.step, nullptr).ok());
    const Comparison comparison = workload->check();
    CHECK_MESSAGE(comparison.ok(), comparison.message);
    CHECK(comparison.count % 501 == 0);
    CHECK(comparison.count > 64 * 501);
    CHECK(comparison.count < 200 * 501);
    CHECK_FALSE(workload->check().ok());
  }
}

TEST_CASE("chapters: LayerNorm and RMSNorm, forward and backward") {
  for (const char* direction : kDirections) {
    const LadderInfo& layernorm = ladder("04_layernorm", direction);
    const auto all = makers(layernorm);
    REQUIRE(all.size() == 2);
    for (const DType type : {DType::fp32, DType::fp16, DType::bf16}) {
      for (const bool rms : {false, true}) {
        const auto workload = all[rms]({6, 7}, type);
        CHECK(workload->name() == std::string(name(type)) + " rows6 cols7" + (rms ? " rms" : ""));
        CHECK(workload->direction() == direction);
        CHECK(workload->operations() == 0);
        const int matrices = direction == kDirections[1] ? 3 : 2;
        const int vectors = matrices - rms;  // gamma, beta or the gradients; rms has no beta
        CHECK(workload->bytes() ==
              static_cast<double>(size_bytes(type)) * (6 * matrices + vectors) * 7);
        CHECK(workload->checked_part().rfind("all 6 rows", 0) == 0);
      }
    }
  }
}

TEST_CASE(
    "chapters: of a large matrix of layernorm some rows are checked, and of sums some columns") {
  for (const char* direction : kDirections) {
    const auto workload =
        ladder("04_layernorm", direction).make({5000, 900}, DType::fp32);  // above 2^22 elements
    CHECK(workload->checked_part().rfind("all ", 0) != 0);
    CHECK((workload->checked_part().find(" columns") == std::string::npos) ==
          (direction == kDirections[0]));
    CHECK_FALSE(workload->check().ok());
    REQUIRE(workload->launch(0, nullptr).ok());
    const Comparison comparison = workload->check();
    CHECK_MESSAGE(comparison.ok(), comparison.message);
    // Some 90 rows and columns each.
    CHECK(comparison.count > 60 * 900);
    CHECK(comparison.count < 200 * 902);
  }
}

TEST_CASE("chapters: every output of layernorm is checked") {
  // A problem of one row: its mean and rstd, or dgamma and dbeta, are as large as a row of y.
  const struct {
    const char* direction;
    bool rms;
    std::int64_t count;
    std::vector<std::string> outputs;
  } wanted[] = {{"forward", false, 50 + 2, {"y", "mean", "rstd"}},
                {"backward", false, 3 * 50, {"dx", "dgamma", "dbeta"}},
                {"forward", true, 50 + 1, {"y", "rstd"}},
                {"backward", true, 2 * 50, {"dx", "dgamma"}}};
  for (const auto& w : wanted) {
    const auto workload = makers(ladder("04_layernorm", w.direction))[w.rms]({1, 50}, DType::bf16);
    const Comparison comparison = workload->check();
    CHECK(comparison.count == w.count);
    CHECK(comparison.mismatches == w.count);
    for (const std::string& output : w.outputs) {
      CHECK(comparison.message.find(output + ": ") != std::string::npos);
    }
  }
}

TEST_CASE("chapters: sizes that no memory holds are refused by name") {
  for (const char* name : {"03_softmax", "04_layernorm"}) {
    for (const char* direction : kDirections) {
      const MakeWorkload make = ladder(name, direction).make;
      CHECK_THROWS_WITH(make({3, 3'000'000'000'000'000'000}, DType::fp32),
                        "cols: 3000000000000000000 makes a matrix too large");
      CHECK_THROWS_WITH(make({3'000'000'000'000'000'000, 3}, DType::fp32),
                        "rows: 3000000000000000000 makes a matrix too large");
    }
  }
}

TEST_CASE("chapters: what is written beside a tensor is not right") {
  for (const std::int64_t at : {-1, 5}) {  // before the first element, and after the last
    Tensors tensors;
    auto* y = static_cast<float*>(
        tensors.output("y", DType::fp32, 1, 5, {0}, {{5}, {1, 2, 3, 4, 5}, {0, 0, 0, 0, 0}}));
    const float right[] = {1, 2, 3, 4, 5};
    REQUIRE(cudaMemcpy(y, right, sizeof right, cudaMemcpyDefault) == cudaSuccess);
    CHECK(tensors.check().ok());
    CHECK_FALSE(tensors.check().ok());  // they are gone
    REQUIRE(cudaMemcpy(y, right, sizeof right, cudaMemcpyDefault) == cudaSuccess);
    REQUIRE(cudaMemcpy(y + at, right, sizeof right[0], cudaMemcpyDefault) == cudaSuccess);
    const Comparison comparison = tensors.check();
    CHECK_FALSE(comparison.ok());
    CHECK(comparison.mismatches == 0);
    const char* where = at < 0 ? "y: 4 bytes (1 element) written before its start"
                               : "y: 4 bytes (1 element) written past its end";
    CHECK_MESSAGE(comparison.message.find(where) == 0, comparison.message);
    REQUIRE(cudaMemcpy(y, right, sizeof right, cudaMemcpyDefault) == cudaSuccess);
    CHECK(tensors.check().ok());  // and the next finds the guard bands whole
  }
}

TEST_CASE("chapters: a tensor is moved with what it holds, and the step finds it there") {
  const auto workload = ladder("01_vector_add").make({1000}, DType::fp16);
  CHECK(workload->tensors() == std::vector<std::string>{"a", "b", "c"});
  for (std::size_t tensor = 0; tensor < 3; ++tensor) {
    workload->move_tensor(tensor, 8);
    CHECK_FALSE(workload->check().ok());
    REQUIRE(workload->launch(3, nullptr).ok());
    const Comparison comparison = workload->check();
    CHECK_MESSAGE(comparison.ok(), comparison.message);
  }
  for (const std::int64_t bytes : {8, 6, 0}) {
    Tensors tensors;
    tensors.workspace(100);
    tensors.input("x", DType::fp16, 1, 3, std::vector<double>{1, 2, 3});
    const void* moved = tensors.move(0, bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(moved) % 256 == static_cast<std::uintptr_t>(bytes));
    CHECK(tensors.rows_of_last(std::vector<std::int64_t>{0}) == std::vector<double>{1, 2, 3});
    CHECK(tensors.check().ok());
  }
}

}  // namespace
}  // namespace tile
