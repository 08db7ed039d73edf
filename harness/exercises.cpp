#include "harness/exercises.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "harness/progress.hpp"
#include "tile/host/text.hpp"

namespace tile {
namespace {

namespace fs = std::filesystem;

struct Exercise {
  std::string chapter;  // 01_vector_add
  std::string name;     // 1_axpy
  fs::path file;

  int number() const {
    int value = 0;
    std::from_chars(name.data(), name.data() + name.size(), value);
    return value;
  }
  std::string id() const { return chapter.substr(0, 2) + "." + std::to_string(number()); }
  std::string shown() const { return id() + " " + name.substr(name.find('_') + 1); }
};

std::vector<Exercise> find_exercises(const fs::path& project) {
  std::vector<Exercise> found;
  for (const auto& chapter : fs::directory_iterator(project)) {
    const fs::path folder = chapter.path() / "exercises";
    if (!fs::is_directory(folder)) continue;
    for (const auto& file : fs::directory_iterator(folder)) {
      if (file.path().extension() != ".cu") continue;
      found.push_back(
          {chapter.path().filename().string(), file.path().stem().string(), file.path()});
    }
  }
  auto order = [](const Exercise& e) { return std::pair(e.chapter, e.number()); };
  std::ranges::sort(found, {}, order);
  return found;
}

struct Run {
  int code;    // of exit()
  int signal;  // that ended it, or 0
  std::string output;
};

/// Runs a program with its arguments, as a shell reads them.
Run run(const std::string& command) {
  Run result{};
  FILE* pipe = popen(("exec " + command + " 2>&1").c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot run " + command);
  std::array<char, 4096> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe)) result.output += buffer.data();
  const int status = pclose(pipe);
  if (WIFEXITED(status)) {
    result.code = WEXITSTATUS(status);
  } else {
    result.signal = WTERMSIG(status);
  }
  return result;
}

std::string quoted(const fs::path& path) { return "'" + path.string() + "'"; }

enum class State { solved, to_do, wrong, crashed, not_compiled };

const char* words(State state) {
  switch (state) {
    case State::solved: return "solved";
    case State::to_do: return "to do";
    case State::wrong: return "wrong";
    case State::crashed: return "wrong: its check crashed";
    case State::not_compiled: return "does not compile";
  }
  return "unknown";
}

bool ok(const Run& r) { return r.code == 0 && r.signal == 0; }

std::string target_of(const Exercise& exercise) {
  return exercise.chapter + "_exercise_" + exercise.name;
}

Run build(const Exercise& exercise, const fs::path& folder) {
  return run("ninja -C " + quoted(folder) + " " + target_of(exercise));
}

Run check(const Exercise& exercise, const fs::path& folder) {
  fs::path program = folder / exercise.chapter / target_of(exercise);
  if (!fs::exists(program)) program = folder / target_of(exercise);  // a chapter on its own
  Run result = run(quoted(program));
  if (result.signal != 0) {
    result.output +=
        std::string("The check was ended by a signal: ") + strsignal(result.signal) + "\n";
  } else if (!ok(result) && result.output.empty()) {
    result.output = "The check failed and did not say why.\n";
  }
  return result;
}

/// The first report of the CPU device in what a program said, as it stands there or in a message:
/// "kernel … failed: …" and the lines after it that are indented by two.
std::string first_report(const std::string& output) {
  constexpr std::string_view kPrefix = "[CPU device] ";
  std::istringstream lines(output);
  std::string report;
  for (std::string line; std::getline(lines, line);) {
    if (!report.empty()) {
      if (line.rfind("  ", 0) != 0) break;
      report += line + "\n";
      continue;
    }
    if (line.rfind(kPrefix, 0) == 0) line.erase(0, kPrefix.size());
    const bool begins = line.rfind("kernel ", 0) == 0 && line.find(" failed: ") != line.npos;
    if (begins) report = line + "\n";
  }
  return report;
}

struct Findings {
  std::string found;    // what the check build has to add; empty if nothing
  std::string trouble;  // why the check build could not be asked
};

/// Runs the exercise in the check build, which is made if need be. `ordinary` is how it ran in the
/// ordinary build.
Findings look_closer(const Exercise& exercise, const ExerciseFolders& folders,
                     const Run& ordinary) {
  if (folders.check.empty()) return {};
  Run made{};
  {
    const bool configured = fs::exists(folders.check / "build.ninja");
    const Progress progress(configured ? "building the check build"
                                       : "making the check build, once: a minute or two");
    if (!configured) {
      made = run("cmake -S " + quoted(folders.project) + " -B " + quoted(folders.check) +
                 " -G Ninja -DTILE_DEVICE=cpu -DTILE_CHECK=ON");
    }
    if (ok(made)) made = build(exercise, folders.check);
  }
  if (!ok(made)) return {"", made.output + "The check build could not be made.\n"};
  const Progress progress("looking at every access to memory");
  const Run checked = check(exercise, folders.check);
  if (ok(checked)) return {};
  const std::string report = first_report(checked.output);
  if (report.empty()) return {ok(ordinary) ? checked.output : "", ""};
  return {ordinary.output.find(report) == std::string::npos ? report : "", ""};
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Whether the file still has the line that asks for work.
bool asks_for_work(const Exercise& exercise) {
  return text_of(exercise.file).find("// TODO") != std::string::npos;
}

/// Which exercises were solved, and by which text: a line for each in a file of the build. Whoever
/// goes on editing has to show it again.
class Record {
 public:
  explicit Record(const fs::path& build) : path_(build / "exercises_solved.txt") {
    std::ifstream file(path_);
    for (std::string id, text; file >> id >> text;) solved_[id] = text;
  }
  bool is_solved(const Exercise& exercise) const {
    const auto found = solved_.find(exercise.id());
    return found != solved_.end() && found->second == mark_of(exercise);
  }
  void add(const Exercise& exercise) {
    solved_[exercise.id()] = mark_of(exercise);
    std::ofstream file(path_);
    for (const auto& [id, text] : solved_) file << id << " " << text << "\n";
  }

 private:
  static std::string mark_of(const Exercise& exercise) {
    return std::to_string(std::hash<std::string>()(text_of(exercise.file)));
  }
  fs::path path_;
  std::map<std::string, std::string> solved_;
};

/// "5 of 23 solved.", and the command for the first that is not.
void say_what_is_next(const std::vector<Exercise>& all, const Record& record, std::ostream& out) {
  const auto solved = [&record](const Exercise& e) { return record.is_solved(e); };
  out << std::ranges::count_if(all, solved) << " of " << all.size() << " solved.";
  const auto next = std::ranges::find_if_not(all, solved);
  if (next != all.end()) out << " Next: ./tour exercise " << next->id();
  out << "\n";
}

/// Solved is what passes, and in which the check build finds nothing. To do is what does not pass
/// and still has the line that asks for work. The reasons go to `out`, as they are found.
State judge(const Exercise& exercise, const ExerciseFolders& folders, std::ostream& out) {
  const Run built = build(exercise, folders.build);
  if (!ok(built)) {
    out << built.output << "\n";
    return State::not_compiled;
  }
  const Run checked = check(exercise, folders.build);
  if (!ok(checked)) {
    out << checked.output << "\n" << std::flush;
    if (asks_for_work(exercise)) return State::to_do;
  }
  const Findings closer = look_closer(exercise, folders, checked);
  if (!closer.trouble.empty()) out << closer.trouble << "\n";
  if (!closer.found.empty()) {
    out << (ok(checked) ? "The results are right, but the check build finds:\n"
                        : "The check build finds:\n")
        << closer.found << "\n";
  }
  if (checked.signal != 0) return State::crashed;
  return ok(checked) && closer.found.empty() ? State::solved : State::wrong;
}

}  // namespace

int check_exercise(const ExerciseFolders& folders, std::string_view id, std::ostream& out) {
  const std::vector<Exercise> all = find_exercises(folders.project);
  const auto found = std::ranges::find_if(all, [id](const Exercise& e) {
    return e.id() == id || e.id() == "0" + std::string(id);  // 1.1 means 01.1
  });
  if (found == all.end()) {
    throw std::invalid_argument("There is no exercise '" + std::string(id) + "'. There are: " +
                                joined(all, [](const Exercise& e) { return e.id(); }));
  }
  const std::string path = fs::relative(found->file, folders.project).string();
  const State state = judge(*found, folders, out);
  out << found->shown() << ": " << words(state);
  switch (state) {
    case State::solved:
      out << ". Compare with " << found->chapter << "/solutions/" << found->name << ".cu\n";
      {
        Record record(folders.build);
        record.add(*found);
        say_what_is_next(all, record, out);
      }
      break;
    case State::to_do: out << ". See TODO in " << path << ", then run this again.\n"; break;
    case State::wrong: out << ". The check's words are above; the file is " << path << "\n"; break;
    case State::crashed: out << "; the file is " << path << "\n"; break;
    case State::not_compiled:
      out << ". The compiler's words are above; the file is " << path << "\n";
      break;
  }
  return state == State::solved ? 0 : 1;
}

void list_exercises(const ExerciseFolders& folders, std::ostream& out) {
  const std::vector<Exercise> all = find_exercises(folders.project);
  const Record record(folders.build);
  std::string chapter;
  for (const Exercise& exercise : all) {
    if (exercise.chapter != chapter) out << exercise.chapter << "\n";
    chapter = exercise.chapter;
    const char* state = record.is_solved(exercise) ? "solved"
                        : asks_for_work(exercise)  ? "to do"
                                                   : "changed, not checked";
    out << "  " << std::left << std::setw(26) << exercise.shown() << state << "\n";
  }
  say_what_is_next(all, record, out);
}

int report_exercises(const ExerciseFolders& folders, std::string_view chapter, std::ostream& out) {
  int code = 0;
  std::string to_do;
  for (const Exercise& exercise : find_exercises(folders.project)) {
    if (exercise.chapter.rfind(chapter, 0) != 0) continue;
    if (asks_for_work(exercise)) {  // not even built
      to_do.append(to_do.empty() ? "" : ", ").append(exercise.id());
      continue;
    }
    std::ostream nowhere(nullptr);
    const State state = judge(exercise, folders, nowhere);
    out << "Exercise " << exercise.shown() << ": " << words(state) << "\n";
    if (state != State::solved) code = 1;
  }
  if (!to_do.empty()) out << "Exercises to do: " << to_do << "\n";
  return code;
}

}  // namespace tile
