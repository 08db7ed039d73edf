// ./tour exercise: builds and checks what the reader has written.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace tile {

/// Where the exercises are looked for, and where ninja builds them.
struct ExerciseFolders {
  std::filesystem::path project, build;
  std::filesystem::path check;     ///< the check build, made when it is needed; empty for none
  std::filesystem::path progress;  ///< what the reader has done; it outlives the builds
};

struct Exercise {
  std::string chapter;         ///< 01_vector_add
  std::string name;            ///< 1_axpy
  std::filesystem::path file;  ///< <project>/01_vector_add/exercises/1_axpy.cu

  int number() const;
  std::string id() const;     ///< 01.1
  std::string shown() const;  ///< 01.1 axpy
  std::string path() const;   ///< 01_vector_add/exercises/1_axpy.cu
};

enum class ExerciseState { solved, to_do, wrong, crashed, too_slow, not_compiled };
/// "solved", "to do", "does not compile" …
std::string_view words(ExerciseState state);

/// The exercises of a project, in order, and what the reader has done. That is kept in the file
/// exercises.txt, a line for each fact: "01.1 solved <mark of its text>", "01.1 hints 2".
class Exercises {
 public:
  /// `seconds`: after so many a compiler or a check is ended; 0 for never.
  explicit Exercises(ExerciseFolders folders, int seconds = 0);

  const std::vector<Exercise>& all() const { return all_; }
  /// 1.1 means 01.1. Throws std::invalid_argument, listing the exercises, if there is no such.
  const Exercise& find(std::string_view id) const;
  /// The first after this one that is not solved, or the first of all; nothing if all are.
  const Exercise* next_after(const Exercise* exercise) const;
  /// Whether its check has passed with the very text that the file has now.
  bool is_solved(const Exercise& exercise) const;
  /// A class's clone may lack it.
  bool has_solution(const Exercise& exercise) const;
  std::string count_solved() const;  ///< "5 of 25 solved"

  /// Builds and checks one. What is found goes to `out` as it is found: one failure, and the check
  /// build's report or else a hint. An exercise is judged by its result; to do is what does not
  /// pass and is as it was shipped.
  ExerciseState check(const Exercise& exercise, std::ostream& out);
  /// The next of its three hints, from <chapter>/exercises/hints.txt; after the last the last.
  std::string hint(const Exercise& exercise);
  /// The lines that its solution adds, if it is solved, or if this was asked before.
  std::string solution(const Exercise& exercise);
  /// Makes the file what was shipped, and forgets what is known of it.
  void reset(const Exercise& exercise);

  /// All by chapter, each with what is known without building it, and what is next.
  void list(std::ostream& out) const;
  /// A line for each of the chapters whose folder begins with `chapter`: to do, solved, or what is
  /// wrong. Returns whether none is wrong: to do is not.
  bool report(std::string_view chapter, std::ostream& out);
  /// Checks the answers of others: all files NAME/CHAPTER/exercises/EXERCISE.cu below `answers`,
  /// one after the other in the place of this project's. A line for each, and one for each NAME.
  /// The exercises are as shipped afterwards. Returns how many answers there were.
  int grade(const std::filesystem::path& answers, std::ostream& out);

 private:
  struct Run;
  Run run(const std::string& command) const;
  static bool ok(const Run& run);
  Run build(const Exercise& exercise, const std::filesystem::path& folder) const;
  Run check_in(const Exercise& exercise, const std::filesystem::path& folder) const;
  struct Findings;
  Findings look_closer(const Exercise& exercise, const Run& ordinary) const;
  /// The text that came with the project: git's, or that of a copy made when this was first run.
  std::string shipped(const Exercise& exercise) const;
  bool is_as_shipped(const Exercise& exercise) const;
  std::optional<std::string> fact(const Exercise& exercise, const std::string& what) const;
  void keep(const Exercise& exercise, const std::string& what, const std::string& value);
  void write_facts() const;

  ExerciseFolders folders_;
  int seconds_;
  std::vector<Exercise> all_;
  std::map<std::string, std::string> facts_;  // "01.1 solved" -> the rest of the line
};

/// Follows one exercise, or the first that is not solved: checks it now and whenever its file
/// changes, on a screen of its own, and takes keys: n next, h hint, l list, c check all, x reset,
/// q quit. Keys come from standard input, a terminal or not; without one it goes on until it is
/// ended. Returns the exit code.
int watch_exercises(Exercises& exercises, std::string_view id);

}  // namespace tile
