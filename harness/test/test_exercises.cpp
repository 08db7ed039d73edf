#include "harness/exercises.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "harness/test/contains.hpp"

namespace tile {
namespace {

namespace fs = std::filesystem;

// A project whose exercises are shell scripts, and compile unless they contain the word broken.
class Project {
 public:
  Project() {
    std::string pattern = (fs::temp_directory_path() / "tile_exercises_XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
    fs::create_directories(root_ / "01_first" / "exercises");
    make_build("build");
  }
  ~Project() { fs::remove_all(root_); }
  Project(const Project&) = delete;
  Project& operator=(const Project&) = delete;

  // Gives it a check build, in which $0 contains the word check.
  void add_check_build() {
    check_ = root_ / "check";
    make_build("check");
  }
  // A check build that must be made first, and cannot be: there is no CMakeLists.txt.
  void add_impossible_check_build() { check_ = root_ / "check"; }

  void add(const std::string& name, const std::string& script) const {
    const fs::path file = root_ / "01_first" / "exercises" / (name + ".cu");
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    const std::string target = "01_first_exercise_" + name;
    for (const char* folder : {"build", "check"}) {
      if (!fs::exists(root_ / folder / "build.ninja")) continue;
      std::ofstream(root_ / folder / "build.ninja", std::ios::app)
          << "build 01_first/" << target << ": answer " << file.string() << "\nbuild " << target
          << ": phony 01_first/" << target << "\n";
    }
  }
  // The exit code and what was said.
  std::string check(const std::string& id) const {
    std::ostringstream out;
    const int code = check_exercise(folders(), id, out);
    return std::to_string(code) + " " + out.str();
  }
  std::string list() const {
    std::ostringstream out;
    list_exercises(folders(), out);
    return out.str();
  }
  std::string report(const std::string& chapter) const {
    std::ostringstream out;
    const int code = report_exercises(folders(), chapter, out);
    return std::to_string(code) + " " + out.str();
  }

 private:
  void make_build(const std::string& folder) const {
    fs::create_directories(root_ / folder / "01_first");
    std::ofstream(root_ / folder / "build.ninja")
        << "rule answer\n  command = ! grep broken $in && cp $in $out && chmod +x $out\n";
  }
  ExerciseFolders folders() const { return {root_, root_ / "build", check_}; }
  fs::path root_, check_;
};

TEST_CASE("exercises: each verdict says what is above it, and no more") {
  const Project project;
  project.add("1_solved", "# no longer // TODO\nexit 0");
  project.add("2_to_do", "# // TODO\necho 'nothing is written'; exit 1");
  project.add("3_wrong", "echo 'off by one'; exit 1");
  project.add("4_silent", "exit 1");
  project.add("5_crashed", "kill -SEGV $$");
  project.add("6_uncompiled", "broken");
  CHECK(project.check("01.1") ==
        "0 01.1 solved: solved. Compare with 01_first/solutions/1_solved.cu\n"
        "1 of 6 solved. Next: ./tour exercise 01.2\n");
  CHECK(
      project.check("1.2") ==
      "1 nothing is written\n\n01.2 to_do: to do. See TODO in 01_first/exercises/2_to_do.cu, then "
      "run this again.\n");
  CHECK(project.check("01.3") ==
        "1 off by one\n\n01.3 wrong: wrong. The check's words are above; the file is "
        "01_first/exercises/3_wrong.cu\n");
  CHECK(contains(project.check("01.4"), "The check failed and did not say why.\n"));
  const std::string crashed = project.check("01.5");
  CHECK_MESSAGE(contains(crashed, "The check was ended by a signal: Segmentation fault\n"),
                crashed);
  CHECK_MESSAGE(contains(crashed, "wrong: its check crashed; the file is"), crashed);
  CHECK_FALSE(contains(crashed, "above"));
  const std::string uncompiled = project.check("01.6");
  CHECK_MESSAGE(contains(uncompiled, "does not compile. The compiler's words are above"),
                uncompiled);
  CHECK_FALSE(contains(uncompiled, "The check"));
}

TEST_CASE("exercises: the list knows what was solved, until its text changes") {
  const Project project;
  CHECK(project.list() == "0 of 0 solved.\n");
  project.add("1_first", "exit 0");
  project.add("2_second", "# // TODO\nexit 1");
  CHECK(project.list() ==
        "01_first\n  01.1 first                changed, not checked\n"
        "  01.2 second               to do\n0 of 2 solved. Next: ./tour exercise 01.1\n");
  project.check("01.1");
  CHECK(contains(project.list(), "01.1 first                solved\n"));
  CHECK(contains(project.list(), "1 of 2 solved. Next: ./tour exercise 01.2\n"));
  project.add("1_first", "exit 1");
  CHECK(contains(project.list(), "0 of 2 solved. Next: ./tour exercise 01.1\n"));
}

// A program's report in the ordinary build, or in the check build only.
constexpr const char* kReport = "printf '[CPU device] kernel k failed: a race\\n  at k.cu:7\\n'; ";
const std::string kInCheckBuild = "case $0 in *check/*) ";

TEST_CASE("exercises: the check build adds what it finds") {
  Project project;
  project.add_check_build();
  project.add("1_right", "exit 0");
  CHECK(contains(project.check("01.1"), "0 01.1 right: solved"));
  project.add("2_race", kInCheckBuild + kReport + "echo three times; exit 1;; esac; exit 0");
  CHECK(project.check("01.2") ==
        "1 The results are right, but the check build finds:\nkernel k failed: a race\n"
        "  at k.cu:7\n\n01.2 race: wrong. The check's words are above; the file is "
        "01_first/exercises/2_race.cu\n");
  CHECK(contains(project.report(""), "1 Exercise 01.1 right: solved\nExercise 01.2 race: wrong\n"));
  project.add("3_wrong", kInCheckBuild + kReport + ";; *) echo off by one;; esac; exit 1");
  const std::string wrong = project.check("01.3");
  CHECK_MESSAGE(contains(wrong,
                         "1 off by one\n\nThe check build finds:\nkernel k failed: a race\n"
                         "  at k.cu:7\n\n01.3 wrong: wrong."),
                wrong);
  project.add("5_in_a_message",
              kInCheckBuild +
                  "echo; echo 'kernel k failed: a race'; echo '  at k.cu:7'; echo;"
                  " exit 1;; esac; exit 0");
  CHECK(contains(project.check("01.5"), "finds:\nkernel k failed: a race\n  at k.cu:7\n\n01.5"));
  project.add("4_fails_there", kInCheckBuild + "echo 'too slow'; exit 1;; esac; exit 0");
  const std::string fails_there = project.check("01.4");
  CHECK_MESSAGE(contains(fails_there,
                         "but the check build finds:\ntoo slow\n\n01.4 fails_there: "
                         "wrong."),
                fails_there);
}

TEST_CASE(
    "exercises: the check build is silent if it has nothing to add, and not asked too early") {
  Project project;
  project.add_check_build();
  project.add("1_passes_there", kInCheckBuild + "exit 0;; esac; echo off by one; exit 1");
  project.add("2_same_values", "echo off by one; exit 1");
  project.add("3_same_report", std::string(kReport) + "exit 1");
  project.add("4_to_do", "# // TODO\n" + kInCheckBuild + kReport + ";; esac; exit 1");
  for (const char* id : {"01.1", "01.2", "01.3", "01.4"}) {
    const std::string said = project.check(id);
    CHECK_MESSAGE(said[0] == '1', said);
    CHECK_MESSAGE(!contains(said, "check build"), said);
  }
}

TEST_CASE("exercises: a check build that cannot be made is no verdict, and is told") {
  Project project;
  project.add_impossible_check_build();
  project.add("1_right", "exit 0");
  const std::string said = project.check("01.1");
  CHECK_MESSAGE(contains(said, "CMakeLists.txt"), said);
  CHECK_MESSAGE(contains(said, "The check build could not be made.\n\n01.1 right: solved"), said);
}

TEST_CASE("exercises: the report goes by number, and to do is no failure") {
  const Project project;
  project.add("2_b", "# // TODO\nexit 1");
  project.add("10_c", "exit 0");
  project.add("1_a", "exit 0");
  CHECK(project.report("") ==
        "0 Exercise 01.1 a: solved\nExercise 01.10 c: solved\nExercises to do: 01.2\n");
  CHECK(project.report("02") == "0 ");
  project.add("3_d", "kill -SEGV $$");
  const std::string report = project.report("01_first");
  CHECK(report.rfind("1 ", 0) == 0);
  CHECK_MESSAGE(contains(report, "Exercise 01.3 d: wrong: its check crashed\n"), report);
}

TEST_CASE("exercises: one that does not exist is answered with those that do") {
  const Project project;
  project.add("2_b", "exit 0");
  project.add("10_c", "exit 0");
  CHECK_THROWS_WITH_AS(project.check("01.3"), "There is no exercise '01.3'. There are: 01.2, 01.10",
                       std::invalid_argument);
}

}  // namespace
}  // namespace tile
