#include "harness/exercises.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

namespace tile {
namespace {

namespace fs = std::filesystem;

// Where the project and its build are; CMake says so.
const fs::path kProject = TILE_PROJECT_FOLDER;
const fs::path kBuild = TILE_BUILD_FOLDER;

struct Exercise {
  std::string id;       // 01.1
  std::string chapter;  // 01_vector_add
  std::string name;     // 1_axpy
  fs::path file;
};

std::vector<Exercise> find_exercises() {
  std::vector<Exercise> found;
  for (const auto& chapter : fs::directory_iterator(kProject)) {
    const fs::path folder = chapter.path() / "exercises";
    if (!fs::is_directory(folder)) continue;
    for (const auto& file : fs::directory_iterator(folder)) {
      if (file.path().extension() != ".cu") continue;
      const std::string number = chapter.path().filename().string();
      const std::string name = file.path().stem().string();
      found.push_back(
          {number.substr(0, 2) + "." + name.substr(0, name.find('_')), number, name, file.path()});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Exercise& a, const Exercise& b) { return a.id < b.id; });
  return found;
}

struct Run {
  int code;
  std::string output;
};

/// Runs a shell command. Codes of 128 and more are those of signals.
Run run(const std::string& command) {
  Run result{};
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot run " + command);
  std::array<char, 4096> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe)) result.output += buffer.data();
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

std::string quoted(const fs::path& path) { return "'" + path.string() + "'"; }

enum class State { to_do, solved, wrong };

struct Verdict {
  State state;
  std::string message;  // why it is not solved
};

/// Solved is what passes. To do is what does not and still has the line that asks for work.
Verdict judge(const Exercise& exercise) {
  std::ifstream file(exercise.file);
  const std::string source{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const bool asks = source.find("// TODO") != source.npos;

  const std::string target = exercise.chapter + "_exercise_" + exercise.name;
  const Run build = run("ninja -C " + quoted(kBuild) + " " + target);
  if (build.code != 0) return {State::wrong, "It does not compile:\n" + build.output};

  fs::path program = kBuild / exercise.chapter / target;
  if (!fs::exists(program)) program = kBuild / target;  // a chapter configured on its own
  const Run check = run(quoted(program));
  if (check.code == 0) return {State::solved, ""};
  return {asks ? State::to_do : State::wrong, check.output};
}

std::string shown(const Exercise& exercise) {
  return exercise.id + " " + exercise.name.substr(exercise.name.find('_') + 1);
}

}  // namespace

int check_exercise(std::string_view id) {
  const std::vector<Exercise> all = find_exercises();
  const auto found = std::find_if(all.begin(), all.end(), [id](const Exercise& e) {
    return e.id == id || e.id == "0" + std::string(id);  // 1.1 means 01.1
  });
  if (found == all.end()) {
    std::string list;
    for (const Exercise& exercise : all) list += (list.empty() ? "" : ", ") + exercise.id;
    throw std::invalid_argument("There is no exercise '" + std::string(id) +
                                "'. There are: " + list);
  }
  const std::string path = fs::relative(found->file, kProject).string();
  const Verdict verdict = judge(*found);
  if (!verdict.message.empty()) std::printf("%s\n", verdict.message.c_str());
  switch (verdict.state) {
    case State::solved:
      std::printf("%s: solved. Compare with %s/solutions/%s.cu\n", shown(*found).c_str(),
                  found->chapter.c_str(), found->name.c_str());
      return 0;
    case State::to_do:
      std::printf("%s: to do. See TODO in %s, then run this again.\n", shown(*found).c_str(),
                  path.c_str());
      return 1;
    case State::wrong:
      std::printf("%s: wrong. The check's words are above; the file is %s\n", shown(*found).c_str(),
                  path.c_str());
      return 1;
  }
  return 1;
}

int report_exercises(std::string_view chapter) {
  int code = 0;
  for (const Exercise& exercise : find_exercises()) {
    if (exercise.chapter.rfind(chapter, 0) != 0) continue;
    const State state = judge(exercise).state;
    const char* words = state == State::solved  ? "solved"
                        : state == State::to_do ? "to do"
                                                : "wrong";
    std::printf("Exercise %s: %s\n", shown(exercise).c_str(), words);
    if (state == State::wrong) code = 1;
  }
  return code;
}

}  // namespace tile
