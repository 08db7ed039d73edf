// What tests ask of their main: which step they are to test, and how to skip.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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

}  // namespace tile
