#include "harness/exercises.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
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
  // A check build that must be made first, and cannot be: there is no cmake/build.sh.
  void add_impossible_check_build() { check_ = root_ / "check"; }

  void add(const std::string& name, const std::string& script) const {
    const fs::path file = root_ / "01_first" / "exercises" / (name + ".cu");
    const bool is_new = !fs::exists(file);
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    if (!is_new) return;
    const std::string target = "01_first_exercise_" + name;
    for (const char* folder : {"build", "check"}) {
      if (!fs::exists(root_ / folder / "build.ninja")) continue;
      std::ofstream(root_ / folder / "build.ninja", std::ios::app)
          << "build 01_first/" << target << ": answer " << file.string() << "\nbuild " << target
          << ": phony 01_first/" << target << "\n";
    }
  }
  void add_hints(const std::string& text) const {
    std::ofstream(root_ / "01_first" / "exercises" / "hints.txt") << text;
  }
  void add_solution(const std::string& name, const std::string& script) const {
    fs::create_directories(root_ / "01_first" / "solutions");
    std::ofstream(root_ / "01_first" / "solutions" / (name + ".cu")) << "#!/bin/sh\n" << script;
  }
  // A script in the place of cmake/build.sh, which says how it was called.
  void add_build_script() const {
    const fs::path script = root_ / "cmake" / "build.sh";
    fs::create_directories(script.parent_path());
    std::ofstream(script) << "#!/bin/sh\necho \"$1|$2|$3|$4\" >>'" << root_.string() << "/built'\n";
    fs::permissions(script, fs::perms::owner_all);
  }
  std::string built() const {
    std::ifstream file(root_ / "built");
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  std::string folder(const char* name) const { return (root_ / name).string(); }
  // When it is opened the exercises are as shipped, unless it was opened before.
  Exercises open() const {
    return Exercises({root_, root_ / "build", check_, root_ / ".progress"});
  }
  // The exercises of this repository, with nothing known of them.
  Exercises open_real() const {
    return Exercises({TILE_PROJECT_FOLDER, root_ / "build", {}, root_ / ".progress"});
  }
  // The state, and what was said.
  std::string check(const std::string& id) const {
    std::ostringstream out;
    Exercises exercises = open();
    const ExerciseState state = exercises.check(exercises.find(id), out);
    return std::string(words(state)) + "\n" + out.str();
  }
  std::string list() const {
    std::ostringstream out;
    open().list(out);
    return out.str();
  }
  std::string report(const std::string& chapter) const {
    std::ostringstream out;
    const bool all_right = open().report(chapter, out);
    return std::to_string(all_right) + " " + out.str();
  }
  // Of what the reader has done, and of what was shipped.
  void move_progress(const std::string& from, const std::string& to) const {
    fs::create_directories(root_ / to);
    for (const char* name : {"exercises.txt", "shipped"}) {
      if (fs::exists(root_ / from / name)) fs::rename(root_ / from / name, root_ / to / name);
    }
  }
  std::string text(const std::string& name) const {
    std::ifstream file(root_ / "01_first" / "exercises" / (name + ".cu"));
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  void make_build(const std::string& folder) const {
    fs::create_directories(root_ / folder / "01_first");
    std::ofstream(root_ / folder / "build.ninja")
        << "rule answer\n  command = ! grep broken $in && cp $in $out && chmod +x $out\n";
  }
  fs::path root_, check_;
};

TEST_CASE("exercises: the result judges, and what it said is told") {
  const Project project;
  project.add("1_solved", "# TODO\nexit 0");
  project.add("2_to_do", "echo 'nothing is written'; exit 1");
  project.add("4_silent", "exit 1");
  project.add("5_crashed", "kill -SEGV $$");
  CHECK(project.check("01.1") == "solved\n");
  CHECK(project.check("1.2") == "to do\nnothing is written\n");
  project.add("2_to_do", "echo 'off by one'; exit 1 # TODO");
  CHECK(project.check("01.2") == "wrong\noff by one\n");
  CHECK(contains(project.check("01.4"), "The check failed and did not say why.\n"));
  project.add("5_crashed", "echo; kill -SEGV $$");
  CHECK(project.check("01.5") ==
        "wrong: its check crashed\n\n"
        "The check was ended by a signal: Segmentation fault\n");
}

// What a compiler says of a project's file 1_a.cu.
std::string uncompiled(const std::string& said) {
  const Project project;
  project.add("1_a", "cat <<'END'\nbroken " + said + "\nEND");
  return project.check("01.1");
}

TEST_CASE("exercises: of a compiler's errors the first of the reader's file is shown") {
  const std::string here = "/p/01_first/exercises/1_a.cu";
  const std::string other = "/p/tile/a.cuh:3:1: broken error: x\n";
  CHECK(uncompiled("x\n" + other + here + ":7:2: error: broken\n   7 | y broken\n" + here +
                   ":9:2: error: broken") ==
        "does not compile\n01_first/exercises/1_a.cu:7: broken\n   7 | y broken\n"
        "The compiler has 1 error more; mend this one first.\n");
  CHECK(uncompiled(here + "(7): error: a ; is broken") ==
        "does not compile\n01_first/exercises/1_a.cu:7: a ; is broken\n");
  CHECK(uncompiled("/p/a.cuh:3:1: error: x broken\n" + here + ":8:1:   required from broken") ==
        "does not compile\n01_first/exercises/1_a.cu:8 leads to an error in a.cuh:3: x broken\n");
  CHECK(contains(uncompiled("and nothing else"), "broken and nothing else"));
}

TEST_CASE("exercises: the list knows what was solved, until its text changes") {
  const Project project;
  CHECK(project.list() == "0 of 0 solved.\n");
  project.add("1_first", "exit 1");
  project.add("2_second", "exit 1");
  CHECK(project.list() ==
        "01_first\n  01.1 first                to do\n"
        "  01.2 second               to do\n0 of 2 solved. Next: ./tour exercise 01.1\n");
  project.add("1_first", "exit 0");
  CHECK(contains(project.list(), "01.1 first                changed, not checked\n"));
  project.check("01.1");
  CHECK(contains(project.list(), "01.1 first                solved\n"));
  CHECK(contains(project.list(), "1 of 2 solved. Next: ./tour exercise 01.2\n"));
  project.add("1_first", "exit 2");
  CHECK(contains(project.list(), "0 of 2 solved. Next: ./tour exercise 01.1\n"));
}

TEST_CASE("exercises: the next is the first after it that is not solved, around the end") {
  const Project project;
  for (const char* name : {"1_a", "2_b", "3_c"}) project.add(name, "exit 0");
  project.check("01.2");
  Exercises exercises = project.open();
  CHECK(exercises.next_after(&exercises.find("01.1")) == &exercises.find("01.3"));
  CHECK(exercises.next_after(&exercises.find("01.3")) == &exercises.find("01.1"));
  for (const char* id : {"01.1", "01.3"}) {
    std::ostringstream out;
    exercises.check(exercises.find(id), out);
  }
  CHECK(exercises.next_after(nullptr) == nullptr);
  CHECK(exercises.count_solved() == "3 of 3 solved");
}

TEST_CASE("exercises: what was done outlives the builds, and was once kept in one") {
  const Project project;
  project.add("1_a", "exit 0");
  project.add("2_b", "exit 1");
  project.check("01.1");
  project.move_progress(".progress", "build");
  CHECK(contains(project.list(), "1 of 2 solved"));
  project.add("2_b", "exit 2");
  CHECK(contains(project.list(), "01.2 b                    changed, not checked"));
  project.check("01.1");
  project.move_progress("build", "elsewhere");
  CHECK(contains(project.list(), "1 of 2 solved"));
  CHECK(contains(project.list(), "01.2 b                    changed, not checked"));
}

TEST_CASE("exercises: three hints one after the other, and the solution at the second asking") {
  const Project project;
  project.add("1_a", "one\ntwo\nthree");
  project.add("2_b", "exit 0");
  project.add_solution("1_a", "one\n2\n2.5\nthree\n");
  project.add_solution("2_b", "exit 0\n");
  project.add_hints("01.1\n- look\n- look\n  again\n- almost\n\n01.2\n- other\n");
  const auto hint = [&](const char* id) {
    Exercises exercises = project.open();
    return exercises.hint(exercises.find(id));
  };
  CHECK(hint("01.1") == "Hint 1 of 3:\n  look\n");
  CHECK(hint("01.1") == "Hint 2 of 3:\n  look\n  again\n");
  for (int i = 0; i < 2; ++i) CHECK(hint("01.1") == "Hint 3 of 3:\n  almost\n");
  CHECK(hint("01.2") == "Hint 1 of 1:\n  other\n");
  const auto solution = [&](const char* id) {
    Exercises exercises = project.open();
    return exercises.solution(exercises.find(id));
  };
  CHECK(solution("01.1") == "01.1 a is not solved yet. Ask once more to see the solution.\n");
  CHECK(solution("01.1") == "01_first/solutions/1_a.cu has, in place of what is to do:\n2\n2.5\n");
  project.check("01.2");
  CHECK(contains(solution("01.2"), "in place of"));
  project.add("3_c", "exit 0");
  CHECK(solution("01.3") == "There is no 01_first/solutions/3_c.cu here.\n");
}

// A program's report in the ordinary build, or in the check build only.
constexpr const char* kReport = "printf '[CPU device] kernel k failed: a race\\n  at k.cu:7\\n'; ";
const std::string kInCheckBuild = "case $0 in *check/*) ";

// What is said of an exercise that was changed to this, with a check build.
std::string checked(const std::string& script) {
  Project project;
  project.add_check_build();
  project.add("1_a", "exit 1");
  project.open();
  project.add("1_a", script);
  return project.check("01.1");
}

TEST_CASE("exercises: the check build's report takes the place of a hint, and not of a mistake") {
  CHECK(checked("exit 0") == "solved\n");
  const std::string report = "kernel k failed: a race\n  at k.cu:7\n";
  CHECK(checked(kInCheckBuild + kReport + "echo three times; exit 1;; esac; exit 0") ==
        "wrong\nThe results are right, but the check build finds:\n" + report);
  const std::string off = "echo off by one; echo 'Hint: count'; exit 1";
  CHECK(checked(kInCheckBuild + kReport + ";; esac; " + off) ==
        "wrong\noff by one\nThe check build finds:\n" + report);
  CHECK(checked(off) == "wrong\noff by one\nHint: count\n");
  CHECK(checked(kReport + off) == "wrong\n[CPU device] " + report + "off by one\nHint: count\n");
  CHECK(checked(kInCheckBuild + "exit 0;; esac; " + off) == "wrong\noff by one\nHint: count\n");
  const std::string mistake = "echo off; echo 'Mistake: no loop'; exit 1";
  CHECK(checked(kInCheckBuild + kReport + ";; esac; " + mistake) ==
        "wrong\noff\nMistake: no loop\n");
  CHECK(checked(kInCheckBuild + "echo 'too slow'; exit 1;; esac; exit 0") ==
        "wrong\nThe results are right, but the check build finds:\ntoo slow\n");
}

TEST_CASE("exercises: a check build that cannot be made is no verdict, and is told") {
  Project project;
  project.add_impossible_check_build();
  project.add("1_right", "exit 0");
  const std::string said = project.check("01.1");
  CHECK_MESSAGE(contains(said, "solved\n"), said);
  CHECK_MESSAGE(contains(said, "The check build could not be made.\n"), said);
}

TEST_CASE("exercises: what one needs is built by the script that shows how far it is") {
  Project project;
  project.add_check_build();
  project.add_build_script();
  project.add("1_right", "exit 0");
  CHECK(project.check("01.1") == "solved\n");
  CHECK(project.built() == project.folder("build") + "|what 01.1 needs|01_first_check_1_right|\n" +
                               project.folder("check") +
                               "|what 01.1 needs|01_first_check_1_right|-DTILE_DEVICE=cpu\n");
}

TEST_CASE("exercises: a class's answers have a line each, and none of them stops the others") {
  const Project project, others;
  for (const char* name : {"1_a", "2_b"}) project.add(name, "exit 1");
  const auto hand_in = [&](const std::string& place, const std::string& script) {
    const fs::path file = fs::path(others.folder("class")) / place;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
  };
  hand_in("ann/01_first/exercises/1_a.cu", "exit 0");
  hand_in("ann/01_first/exercises/2_b.cu", "exit 1");
  hand_in("bob/01_first/exercises/1_a.cu", "sleep 60");
  hand_in("bob/01_first/exercises/2_b.cu", "trap '' TERM; while :; do :; done");
  hand_in("carla/01_first/exercises/1_a.cu", "# broken");
  hand_in("carla/01_first/exercises/2_b.cu", "kill -SEGV $$");
  hand_in("dan/repository/01_first/exercises/1_a.cu", "echo 'off by one'; echo more; exit 1");
  hand_in("dan/repository/01_first/exercises/3_c.cu", "exit 0");
  hand_in("dan/.progress/01_first/exercises/2_b.cu", "exit 0");
  hand_in("dan/build/01_first/exercises/2_b.cu", "exit 0");
  std::ostringstream out;
  Exercises exercises({project.folder(""), project.folder("build"), "", project.folder("kept")}, 1);
  CHECK(exercises.grade(others.folder("class"), out) == 7);
  const auto said = [&](const std::string& line) { return contains(out.str(), line + "\n"); };
  CHECK_MESSAGE(said("ann             01.1 a                    solved"), out.str());
  CHECK(said("ann             01.2 b                    to do"));
  CHECK(said("bob             01.1 a                    takes too long: ended after 1 second"));
  CHECK(said("bob             01.2 b                    takes too long: ended after 1 second"));
  CHECK(contains(out.str(), "carla           01.1 a                    does not compile"));
  CHECK(contains(out.str(), "carla           01.2 b                    wrong: its check crashed"));
  CHECK(said("dan/repository  01.1 a                    wrong: off by one"));
  CHECK(contains(out.str(), "3_c.cu is no answer: there is no such exercise\n"));
  CHECK(
      said("ann: 1 of 2 solved\nbob: 0 of 2 solved\ncarla: 0 of 2 solved\n"
           "dan/repository: 0 of 1 solved"));
  CHECK(project.check("01.1") == "to do\nThe check failed and did not say why.\n");
  std::ostringstream none;
  CHECK(exercises.grade(project.folder("build"), none) == 0);
}

TEST_CASE("exercises: the report goes by number, and to do is no failure") {
  const Project project;
  for (const char* name : {"2_b", "10_c", "1_a"}) project.add(name, "exit 1");
  project.open();
  for (const char* name : {"10_c", "1_a"}) project.add(name, "exit 0");
  CHECK(project.report("") ==
        "1 Exercise 01.1 a: solved\nExercise 01.10 c: solved\nExercises to do: 01.2\n");
  CHECK(project.report("02") == "1 ");
  project.add("1_a", "kill -SEGV $$");
  const std::string report = project.report("01_first");
  CHECK(report.rfind("0 ", 0) == 0);
  CHECK_MESSAGE(contains(report, "Exercise 01.1 a: wrong: its check crashed\n"), report);
}

// ---- On a screen ----

// A terminal of 80 x 24 characters, or pipes, in which an exercise is watched.
class Watching {
 public:
  Watching(const Project& project, bool terminal, const char* no_color = "") {
    const winsize size{24, 80, 0, 0};
    int keys[2] = {-1, -1}, screen[2] = {-1, -1};
    if (!terminal) REQUIRE((pipe(keys) == 0 && pipe(screen) == 0));
    child_ = terminal ? forkpty(&screen_, nullptr, nullptr, &size) : fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      setenv("TERM", "xterm", 1);
      setenv("NO_COLOR", no_color, 1);
      if (!terminal) {
        dup2(keys[0], STDIN_FILENO);
        dup2(screen[1], STDOUT_FILENO);
      }
      Exercises exercises = project.open();
      const int code = watch_exercises(exercises, "");
      std::cout << std::flush;
      _exit(code);
    }
    if (!terminal) {
      screen_ = screen[0], keys_ = keys[1];
      close(keys[0]), close(screen[1]);
    } else {
      keys_ = screen_;
    }
  }
  ~Watching() {
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
    close(screen_);
    if (keys_ != screen_) close(keys_);
  }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;

  void press(char key) const { REQUIRE(write(keys_, &key, 1) == 1); }
  // What comes up to this text and the line of keys after it, or within ten seconds.
  std::string until(const std::string& text) {
    constexpr int kMilliseconds = 10'000;
    std::string seen;
    for (;;) {
      const std::size_t at = seen.find(text);
      if (at != seen.npos && seen.find("q quit", at) != seen.npos) return seen;
      pollfd input{screen_, POLLIN, 0};
      char buffer[4096];
      const bool ready = poll(&input, 1, kMilliseconds) > 0;
      const ssize_t count = ready ? read(screen_, buffer, sizeof buffer) : 0;
      INFO(seen);
      REQUIRE_MESSAGE(count > 0, text);
      seen.append(buffer, static_cast<std::size_t>(count));
    }
  }
  bool is_quiet(int milliseconds) const {
    pollfd input{screen_, POLLIN, 0};
    return poll(&input, 1, milliseconds) == 0;
  }
  bool echoes() const {
    termios state{};
    REQUIRE(tcgetattr(screen_, &state) == 0);
    return (state.c_lflag & ECHO) != 0;
  }
  int exit_code() {
    int status = 0;
    REQUIRE(waitpid(child_, &status, 0) == child_);
    child_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t child_ = 0;
  int screen_ = -1, keys_ = -1;
};

TEST_CASE("watch: each save and each key has its answer, and it never goes on by itself") {
  const Project project;
  project.add("1_a", "echo nothing; exit 1");
  project.add("2_b", "echo other; exit 1");
  project.add_hints("01.1\n- look\n- see\n- do\n");
  project.add_solution("1_a", "exit 0");
  Watching watching(project, true);
  std::string seen = watching.until("to do");
  for (const char* text :
       {"\033[2J", "01.1 a   0 of 2 solved", "01_first/exercises/1_a.cu", "nothing\r\n"}) {
    CHECK_MESSAGE(contains(seen, text), seen);
  }
  CHECK_FALSE(watching.echoes());
  watching.press('h');
  CHECK(contains(watching.until("Hint"), "Hint 1 of 3:\r\n  look"));
  project.add("1_a", "exit 0");
  seen = watching.until("Compare");
  CHECK_MESSAGE(contains(seen, "\033[32msolved\033[0m. Compare with 01_first/solutions/1_a.cu"),
                seen);
  CHECK_MESSAGE(contains(seen.substr(seen.rfind("\033[2J")), "01.1 a   1 of 2 solved\r\n"), seen);
  CHECK_MESSAGE(contains(seen, "n for the next: 01.2 b\r\n"), seen);
  CHECK(watching.is_quiet(700));
  watching.press('l');
  CHECK(contains(watching.until("Next:"), "01.2 b                    to do"));
  watching.press('n');
  CHECK(contains(watching.until("to do"), "other"));
  project.add("2_b", "echo off; exit 1");
  CHECK(contains(watching.until("wrong"), "off"));
  watching.press('c');
  CHECK(contains(watching.until("01.2 b: wrong"), "Exercise 01.1 a: solved"));
  project.add("2_b",
              "echo '  " + std::string(78, 'x') + " yy " + std::string(75, 'z') + " end'; exit 1");
  // Not until "wrong": the screen before may be drawn once more.
  CHECK(contains(watching.until("  end"), "  " + std::string(78, 'x') + "\r\n  yy " +
                                              std::string(75, 'z') + "\r\n  end\r\n"));
  watching.press('x');
  watching.press('n');
  watching.until("Not reset.");
  CHECK(contains(project.text("2_b"), "xx"));
  watching.press('x');
  watching.press('y');
  watching.until("to do");
  CHECK(contains(project.text("2_b"), "other"));
  watching.press('q');
  CHECK(watching.exit_code() == 0);
  CHECK(watching.echoes());
}

TEST_CASE("watch: without colours, and with pipes, no word is missing") {
  const Project project;
  project.add("1_a", "exit 0");
  {
    Watching plain(project, true, "1");
    CHECK_FALSE(contains(plain.until("solved."), "\033[3"));
  }
  project.add("1_a", "echo " + std::string(50, 'x') + " " + std::string(50, 'y') + "; exit 1");
  Watching piped(project, false);
  const std::string seen = piped.until("wrong.");
  CHECK_MESSAGE(contains(seen, std::string(50, 'x') + " y"), seen);
  CHECK_FALSE(contains(seen, "\033"));
  piped.press('q');
  CHECK(piped.exit_code() == 0);
}

// Whether a page of the folder has this heading.
bool has_heading(const fs::path& folder, const std::string& heading) {
  for (const auto& page : fs::directory_iterator(folder)) {
    if (page.path().extension() != ".md") continue;
    std::ifstream file(page.path());
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("##", 0) == 0 && contains(line, heading)) return true;
    }
  }
  return false;
}

TEST_CASE("exercises: each of the project's has three hints, and the first names a place") {
  const Project nothing_solved;
  Exercises exercises = nothing_solved.open_real();
  REQUIRE(exercises.all().size() > 20);
  for (const Exercise& exercise : exercises.all()) {
    const std::string first = exercises.hint(exercise);
    CAPTURE(first);
    CHECK(contains(first, "Hint 1 of 3:\n  \""));
    const std::size_t begin = first.find('"') + 1;
    const std::string heading = first.substr(begin, first.find('"', begin) - begin);
    CHECK(has_heading(fs::path(TILE_PROJECT_FOLDER) / exercise.chapter, heading));
  }
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
