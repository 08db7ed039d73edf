// Tests of every chapter, independent of what it computes: made of its Workloads, and part of the
// suite "step" of its test program.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "harness/chapter.hpp"
#include "harness/test_main.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"

namespace tile {
namespace {

using Size = std::vector<std::int64_t>;

/// A step to test, in one of its types.
struct Case {
  const LadderInfo& ladder;
  std::size_t step;
  DType type;

  /// Whether the step's own kernel runs this: if not, it is another step's case.
  bool takes(const Workload* workload) const {
    Choice choice;
    return workload && workload->choose(step, &choice).ok() && choice.step == step;
  }
  std::vector<WholeTiles> whole_tiles() const {
    std::vector<WholeTiles> all = ladder.whole_tiles;
    std::erase_if(all, [&](const WholeTiles& whole) {
      return !whole.step.empty() && whole.step != ladder.steps[step].name;
    });
    return all;
  }
  void run(Workload& workload) const {
    const std::string problem = workload.name();
    CAPTURE(problem);
    const Status launched = workload.launch(step, nullptr);
    const Comparison comparison = workload.check();  // which waits, also for a launch that failed
    REQUIRE_MESSAGE(launched.ok(), launched.message);
    CHECK_MESSAGE(comparison.ok(), comparison.message);
  }
};

/// Calls `check` for each Case. The CPU device leaves out fp16 if bf16 runs, which tests the same.
template <class Check>
void for_each_case(Check check) {
  for (const Chapter* chapter : chapters()) {
    for (const LadderInfo& ladder : chapter->ladders) {
      for (std::size_t step = 0; step < ladder.steps.size(); ++step) {
        const StepInfo& info = ladder.steps[step];
        const std::string file = file_of_step(ladder.name, step, info.name);
        if (!selected_step().empty() && selected_step() != file) continue;
        CAPTURE(file);
        for (const DType type : kDTypes) {
          if (!info.types.contains(type)) continue;
          if (const Status here = check_requirements(info.types, info.needs, type); !here.ok()) {
            skip(here.message);
            continue;
          }
          const bool said_by_bf16 =
              type == DType::fp16 && check_requirements(info.types, info.needs, DType::bf16).ok();
          if (!device().simulated || !said_by_bf16) check(Case{ladder, step, type});
        }
      }
    }
  }
}

std::vector<MakeWorkload> makers(const LadderInfo& ladder) {
  std::vector<MakeWorkload> all{ladder.make};
  all.insert(all.end(), ladder.make_for_benchmark.begin(), ladder.make_for_benchmark.end());
  return all;
}

/// Whole tiles; and of each extent that has tiles, and of each two of them, half a tile less; of
/// each one element.
std::set<Size> around(const WholeTiles& whole) {
  std::set<Size> all{whole.size};
  for (std::size_t i = 0; i < whole.size.size(); ++i) {
    if (whole.tile[i] == 0) continue;
    Size size = whole.size;
    size[i] = std::max<std::int64_t>(1, size[i] - 1);
    all.insert(size);
    for (std::size_t j = i; j < whole.size.size(); ++j) {
      size = whole.size;
      for (const std::size_t extent : {i, j}) {
        size[extent] = whole.size[extent] - whole.tile[extent] / 2;
      }
      all.insert(size);
    }
  }
  return all;
}

std::size_t free_memory() {
  std::size_t free_bytes = 0, total_bytes = 0;
  REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
  return free_bytes;
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("whole tiles, and almost whole ones") {
    for_each_case([](const Case& one) {
      bool own_kernel_ran = false;
      // The CPU device divides them between fp32 and bf16, and between a step and the next.
      std::size_t turn = one.step + (one.type == DType::bf16);
      for (const WholeTiles& whole : one.whole_tiles()) {
        for (const Size& size : around(whole)) {
          const auto workload = one.ladder.make(size, one.type);
          if (!one.takes(workload.get())) continue;
          if (device().simulated && own_kernel_ran && ++turn % 2 == 0) continue;
          one.run(*workload);
          own_kernel_ran = true;
        }
      }
      CHECK(own_kernel_ran);
    });
  }

  // A step that checks for less than the 16 bytes of a vector would take this. The CPU device
  // divides the tensors between the sizes.
  TEST_CASE("each tensor in turn begins at half a vector") {
    for_each_case([](const Case& one) {
      const EnumSet<DType> types = one.ladder.steps[one.step].types;
      const bool said_by_bf16 = one.type == DType::fp32 && types.contains(DType::bf16);
      if (device().simulated && said_by_bf16) return;
      for (const MakeWorkload make : makers(one.ladder)) {
        std::vector<std::unique_ptr<Workload>> workloads;
        for (const WholeTiles& whole : one.whole_tiles()) {
          auto workload = make(whole.size, one.type);
          if (one.takes(workload.get())) workloads.push_back(std::move(workload));
        }
        for (std::size_t i = 0; i < workloads.size(); ++i) {
          const std::vector<std::string> tensors = workloads[i]->tensors();
          REQUIRE(!tensors.empty());
          for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
            if (device().simulated && (tensor + one.step) % workloads.size() != i) continue;
            const std::string& moved = tensors[tensor];
            CAPTURE(moved);
            workloads[i]->move_tensor(tensor, 8);
            if (one.takes(workloads[i].get())) one.run(*workloads[i]);
            workloads[i]->move_tensor(tensor, 0);
          }
        }
      }
    });
  }

  // A GPU has other users, who take memory meanwhile.
  TEST_CASE("what launches take for themselves they give back, also those that fail" *
            doctest::skip(!device_is_simulated())) {
    for_each_case([](const Case& one) {
      for (const WholeTiles& whole : one.whole_tiles()) {
        const auto workload = one.ladder.make(whole.size, one.type);
        if (!one.takes(workload.get())) continue;
        one.run(*workload);  // some things are made once
        const std::size_t before = free_memory();
        one.run(*workload);
        CHECK(before - free_memory() == 0);  // it counts every byte
        int no_stream = 0;
        REQUIRE(!workload->launch(one.step, &no_stream).ok());
        CHECK(before - free_memory() == 0);
        return;
      }
    });
  }
}

}  // namespace tile
