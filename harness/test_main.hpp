// What the tests of steps share: which steps to test, how to run one, and how to skip.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/cuda_check.hpp"
#include "harness/step.hpp"

namespace tile {

/// The step named by --step; empty if none was.
std::string_view selected_step();

/// Says that a step cannot run on this device. The program exits with 77, CTest's code for a skip,
/// if nothing failed.
void skip(std::string_view why);

[[noreturn]] void no_such_step();

/// The steps to test: the selected one, or all. A name that is not in the table ends the program.
template <class Problem, class Buffers, std::size_t kCount>
std::vector<Step<Problem, Buffers>> selected_steps(const Step<Problem, Buffers> (&table)[kCount]) {
  std::vector<Step<Problem, Buffers>> steps;
  for (const auto& step : table) {
    if (selected_step().empty() || selected_step() == step.name) steps.push_back(step);
  }
  if (steps.empty()) no_such_step();
  return steps;
}

/// Calls `check(step, type)` for every step to test and each of its element types. What this device
/// lacks is skipped.
template <class Problem, class Buffers, std::size_t kCount, class Check>
void for_each_step(const Step<Problem, Buffers> (&table)[kCount], Check check) {
  for (const auto& step : selected_steps(table)) {
    for (const DType type : kDTypes) {
      if (!step.types.contains(type)) continue;
      const Status here = check_requirements(step.types, step.needs, type);
      if (here.ok()) {
        check(step, type);
      } else {
        skip(here.message);
      }
    }
  }
}

/// Runs a step on a problem that its row of the table must promise to take, and waits for it.
template <class Problem, class Buffers>
Status run_step(const Step<Problem, Buffers>& step, const Problem& problem,
                const Buffers& buffers) {
  if (Status s = step.supports(problem); !s.ok()) return s;
  const Status launched = step.launch(problem, buffers, nullptr);
  // Even after a failure, or the next call would be blamed for it.
  const Status done = synchronize_status(nullptr);
  return launched.ok() ? done : launched;
}

}  // namespace tile
