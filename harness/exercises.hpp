// ./tour exercise: builds and checks what the reader has written.
#pragma once

#include <filesystem>
#include <ostream>
#include <string_view>

namespace tile {

/// Where the exercises are looked for, and where ninja builds them.
struct ExerciseFolders {
  std::filesystem::path project, build;
  std::filesystem::path check;  ///< the check build, made when it is needed; empty for none
};

/// Builds and checks one exercise, "01.1", and says what came of it. Returns the program's exit
/// code: 0 solved, 1 not yet. Throws std::invalid_argument, listing the exercises, if there is no
/// such.
int check_exercise(const ExerciseFolders& folders, std::string_view id, std::ostream& out);

/// All exercises by chapter, each with what is known of it without building it: solved if its check
/// passed with this very text. At the end how many are, and the command for the next.
void list_exercises(const ExerciseFolders& folders, std::ostream& out);

/// A line for each exercise of the chapters whose folder begins with `chapter`: to do, solved, or
/// what is wrong. Returns 1 if something is; to do is no failure.
int report_exercises(const ExerciseFolders& folders, std::string_view chapter, std::ostream& out);

}  // namespace tile
