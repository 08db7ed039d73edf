// ./tour exercise: builds and checks what the reader has written.
#pragma once

#include <string>
#include <string_view>

namespace tile {

/// Builds and checks one exercise, "01.1", and says what came of it. Returns the program's exit
/// code: 0 solved, 1 not yet. Throws std::invalid_argument, listing the exercises, if there is no
/// such.
int check_exercise(std::string_view id);

/// A line for each exercise of the chapters whose folder begins with `chapter`: to do, solved or
/// wrong. Returns 1 if one is wrong; to do is no failure.
int report_exercises(std::string_view chapter);

}  // namespace tile
