// Shared by the tests of steps: which steps to test, how to run one, and how to skip.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"
#include "tile/host/step.hpp"

namespace tile {

/// The file of the step that --step names, without ".cu": "forward3_shuffles"; empty if none is.
std::string_view selected_step();

/// Says that a step cannot run on this device. The program exits with 77, CTest's code for a skip,
/// if nothing failed.
void skip(std::string_view why);

/// How often run_step() has run the own kernel of the step that it was given.
std::size_t& own_runs();

/// A step under test, and its number.
template <class Ladder>
struct TestedStep : Ladder::Step {
  const Ladder* ladder;
  std::size_t number;  // from 0
};

/// The steps of the ladder to test: the selected one, if it is one of them, or all.
template <class Ladder>
std::vector<TestedStep<Ladder>> selected_steps(const Ladder& ladder) {
  std::vector<TestedStep<Ladder>> steps;
  for (std::size_t i = 0; i < ladder.steps.size(); ++i) {
    const std::string file = file_of_step(ladder.name, i, ladder.steps[i].name);
    if (selected_step().empty() || selected_step() == file) {
      steps.push_back({ladder.steps[i], &ladder, i});
    }
  }
  return steps;
}

/// Whether the own kernel of the step runs the problem here: if not, another step's tests are about
/// it. Of the pointers in `buffers` only the alignment matters.
template <class Ladder>
bool is_taken(const TestedStep<Ladder>& step, const typename Ladder::Problem& problem,
              const typename Ladder::Buffers& buffers) {
  return check_step(step, problem, buffers).ok();
}
template <class Call>
bool is_taken(const TestedStep<Ladder<Call>>& step, const std::type_identity_t<Call>& call) {
  return check_step(step, call).ok();
}

/// Waits for a step that was launched by run(), and counts its own kernel's run.
inline Status finish_step(const Status& launched, std::size_t wanted, const Choice& choice) {
  if (launched.ok() && choice.step == wanted) ++own_runs();
  // Even after a failure, or the next call would be blamed for it.
  const Status done = synchronize_status(nullptr);
  return launched.ok() ? done : launched;
}

/// Validates, finds the step that takes the problem, launches it, and waits for it.
template <class Ladder>
Status run_step(const TestedStep<Ladder>& step, const typename Ladder::Problem& problem,
                const typename Ladder::Buffers& buffers) {
  Choice choice;
  const Status launched = run(*step.ladder, step.number, problem, buffers, nullptr, &choice);
  return finish_step(launched, step.number, choice);
}
template <class Call>
Status run_step(const TestedStep<Ladder<Call>>& step, const std::type_identity_t<Call>& call) {
  Choice choice;
  const Status launched = run(*step.ladder, step.number, call, nullptr, &choice);
  return finish_step(launched, step.number, choice);
}

/// Whether a test must run the own kernel of each step at least once for each type: otherwise it
/// would pass without having tested anything.
enum class OwnKernel { must_run, need_not_run };

/// Whether the types of a step, for which a kernel is the same text, take turns on the CPU device;
/// or whether a test is about every one of them, as at least one of a ladder's is.
enum class Types { in_turn, all };

/// Whether it is another type's turn in the running test, for the step of this number: fp16 and
/// bf16 change from step to step, fp32 and these two also from test to test.
bool waits_for_its_turn(EnumSet<DType> types, std::size_t number, DType type);

/// Calls `check(step, type)` for every step to test and each of its element types. Skips what this
/// device lacks.
template <class Ladder, class Check>
void for_each_step(const Ladder& ladder, Check check, OwnKernel own = OwnKernel::must_run,
                   Types types = Types::in_turn) {
  for (const auto& step : selected_steps(ladder)) {
    const bool in_turn = types == Types::in_turn && device().simulated;
    for (const DType type : kDTypes) {
      if (!step.types.contains(type)) continue;
      if (in_turn && waits_for_its_turn(step.types, step.number, type)) continue;
      if (const Status here = check_requirements(step.types, step.needs, type); !here.ok()) {
        skip(here.message);
        continue;
      }
      const std::size_t before = own_runs();
      check(step, type);
      if (own == OwnKernel::need_not_run) continue;
      const std::string who =
          std::string(step.name).append(", ").append(name(type)).append(": its kernel never ran");
      CHECK_MESSAGE(own_runs() > before, who);
    }
  }
}

}  // namespace tile
