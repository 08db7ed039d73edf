#include "harness/exercises.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "harness/failure.hpp"
#include "harness/progress.hpp"
#include "tile/host/text.hpp"

namespace tile {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSolved = "solved";
constexpr const char* kHints = "hints";  // how many were given
constexpr const char* kAsked = "asked";  // for the solution

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

std::string quoted(const fs::path& path) { return "'" + path.string() + "'"; }

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string mark_of(const std::string& text) {
  return std::to_string(std::hash<std::string>()(text));
}

std::string target_of(const Exercise& exercise) {
  return exercise.chapter + "_exercise_" + exercise.name;
}

/// The first report of the CPU device in what a program said, as it stands there or in a message:
/// "kernel … failed: …" and the lines after it that are indented by two.
std::string first_report(const std::string& output) {
  constexpr std::string_view kPrefix = "[CPU device] ";
  std::string report;
  for (std::string line : lines_of(output)) {
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

/// Of a compiler's output the first error, the line of the reader's file first. g++ and clang say
/// FILE:LINE:COLUMN: error: …, and nvcc FILE(LINE): error: …; the source lines come after it,
/// indented. An error inside a header that the file's line led to names both. All of it if there is
/// no error that is understood.
std::string first_error(const Exercise& exercise, const std::string& output) {
  static const std::regex kError(R"(^([^\s:(][^:(]*)[:(](\d+)[^ ]*(?: fatal)? error: (.*)$)");
  const std::string path = exercise.path();
  const std::regex place(path.substr(path.find('/') + 1) + R"([:(](\d+))");
  const std::vector<std::string> lines = lines_of(output);
  const auto is_error = [](const std::string& line) { return std::regex_search(line, kError); };
  const auto is_here = [&place](const std::string& line) { return std::regex_search(line, place); };
  const auto both = [&](const std::string& line) { return is_error(line) && is_here(line); };
  auto at = std::ranges::find_if(lines, both);
  const bool elsewhere = at == lines.end();
  if (elsewhere) at = std::ranges::find_if(lines, is_error);
  if (at == lines.end()) return output;
  std::smatch error;
  std::regex_search(*at, error, kError);
  std::string text;
  if (elsewhere) {
    const auto from = std::ranges::find_if(lines, is_here);
    std::smatch line;
    if (from != lines.end() && std::regex_search(*from, line, place)) {
      text = path + ":" + line[1].str() + " leads to an error in ";
    }
    text += fs::path(error[1].str()).filename().string() + ":" + error[2].str();
  } else {
    text = path + ":" + error[2].str();
  }
  text += ": " + error[3].str() + "\n";
  for (++at; at != lines.end() && at->rfind("  ", 0) == 0; ++at) text += *at + "\n";
  const auto more = std::ranges::count_if(lines, is_error) - 1;
  if (more > 0)
    text += "The compiler has " + counted(more, "error") + " more; mend this one first.\n";
  return text;
}

bool is_mistake(const std::string& explanation) {
  return explanation.rfind(kMistake.substr(1), 0) == 0;
}

/// What a failed check said, and how it explains that, which is the last line.
std::pair<std::string, std::string> apart(const std::string& output) {
  for (const std::string_view begin : {kMistake.substr(1), kHint.substr(1)}) {
    const std::size_t at = output.rfind(begin);
    if (at == output.npos || (at > 0 && output[at - 1] != '\n')) continue;
    return {output.substr(0, at), output.substr(at)};
  }
  return {output, ""};
}

/// The three hints of an exercise: below the line "01.1" those that begin with "- ", and the lines
/// that go on with one are indented.
std::vector<std::string> hints_of(const fs::path& project, const Exercise& exercise) {
  std::vector<std::string> hints;
  bool here = false;
  for (const std::string& line :
       lines_of(text_of(project / exercise.chapter / "exercises" / "hints.txt"))) {
    if (line.rfind("- ", 0) == 0) {
      if (here) hints.push_back("  " + line.substr(2));
    } else if (line.rfind("  ", 0) == 0) {
      if (here && !hints.empty()) hints.back() += "\n" + line;
    } else if (!line.empty()) {
      here = line == exercise.id();
    }
  }
  return hints;
}

}  // namespace

int Exercise::number() const {
  int value = 0;
  std::from_chars(name.data(), name.data() + name.size(), value);
  return value;
}
std::string Exercise::id() const { return chapter.substr(0, 2) + "." + std::to_string(number()); }
std::string Exercise::shown() const { return id() + " " + name.substr(name.find('_') + 1); }
std::string Exercise::path() const { return chapter + "/exercises/" + name + ".cu"; }

std::string_view words(ExerciseState state) {
  switch (state) {
    case ExerciseState::solved: return "solved";
    case ExerciseState::to_do: return "to do";
    case ExerciseState::wrong: return "wrong";
    case ExerciseState::crashed: return "wrong: its check crashed";
    case ExerciseState::too_slow: return "takes too long";
    case ExerciseState::not_compiled: return "does not compile";
  }
  return "unknown";
}

// ---- Running programs ----

struct Exercises::Run {
  int code;    // of exit(), or kEnded
  int signal;  // that ended it, or 0
  std::string output;
};

bool Exercises::ok(const Run& r) { return r.code == 0 && r.signal == 0; }

constexpr int kEnded = -1;  // by timeout, after the seconds allowed

/// Runs a program with its arguments, as a shell reads them.
Exercises::Run Exercises::run(const std::string& command) const {
  Run result{};
  const std::string limit =
      seconds_ > 0 ? "timeout -k 5 " + std::to_string(seconds_) + " " : std::string();
  FILE* pipe = popen(("exec " + limit + command + " 2>&1").c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot run " + command);
  std::array<char, 4096> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe)) result.output += buffer.data();
  const int status = pclose(pipe);
  if (WIFEXITED(status)) {
    result.code = WEXITSTATUS(status);
  } else {
    result.signal = WTERMSIG(status);
  }
  // timeout ends with 124 after SIGTERM; the SIGKILL for a program that ignores it ends both.
  constexpr int kTimedOut = 124;
  if (seconds_ > 0 && (result.code == kTimedOut || result.signal == SIGKILL)) {
    result.code = kEnded;
    result.signal = 0;
    result.output = "ended after " + counted(seconds_, "second") + "\n" + result.output;
  }
  return result;
}

// What the exercise needs beside its file comes first, by the script that shows how long it takes.
Exercises::Run Exercises::build(const Exercise& exercise, const fs::path& folder) const {
  const fs::path script = folders_.project / "cmake" / "build.sh";
  if (fs::exists(script)) {
    const std::string check = exercise.chapter + "_check_" + exercise.name;
    const std::string options =
        folder == folders_.check ? " -DTILE_DEVICE=cpu -DTILE_CHECK=ON" : "";
    const std::string command = quoted(script) + " " + quoted(folder) + " 'what " + exercise.id() +
                                " needs' " + check + options;
    std::cout.flush();
    const int status = std::system(command.c_str());
    constexpr int kInterrupted = 128 + SIGINT;
    if ((WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) ||
        (WIFEXITED(status) && WEXITSTATUS(status) == kInterrupted)) {
      std::raise(SIGINT);  // system() has kept Ctrl-C from this program
    }
    // Of any other failure Ninja speaks again, to the reader of the exercise.
  }
  const Progress progress("compiling " + exercise.path());
  return run("flock " + quoted(folder / "lock") + " ninja -C " + quoted(folder) + " " +
             target_of(exercise));
}

Exercises::Run Exercises::check_in(const Exercise& exercise, const fs::path& folder) const {
  fs::path program = folder / exercise.chapter / target_of(exercise);
  if (!fs::exists(program)) program = folder / target_of(exercise);  // a chapter on its own
  constexpr const char* kLimit = " --host-seconds=60";               // no watchdog ends loops there
  Run result = run(quoted(program) + kLimit);
  if (result.signal != 0) {
    result.output += std::string("The check was ended by a signal: ") + strsignal(result.signal);
    result.output += "\n";
  } else if (!ok(result) && result.output.empty()) {
    result.output = "The check failed and did not say why.\n";
  }
  return result;
}

struct Exercises::Findings {
  std::string found;    // what the check build has to add; empty if nothing
  std::string trouble;  // why the check build could not be asked
};

/// Runs the exercise in the check build, which is made if need be. `ordinary` is how it ran in the
/// ordinary build.
Exercises::Findings Exercises::look_closer(const Exercise& exercise, const Run& ordinary) const {
  if (folders_.check.empty()) return {};
  const bool configured = fs::exists(folders_.check / "build.ninja");
  if (!ok(ordinary)) {
    const std::string explanation = apart(ordinary.output).second;
    // One explanation is enough to wait for.
    if (is_mistake(explanation) || (!configured && !explanation.empty())) return {};
  }
  if (!configured) std::cout << "Making the check build, once:" << std::endl;
  const Run made = build(exercise, folders_.check);
  if (!ok(made)) return {"", made.output + "The check build could not be made.\n"};
  const Progress progress("looking at every access to memory");
  const Run checked = check_in(exercise, folders_.check);
  if (ok(checked)) return {};
  const std::string report = first_report(checked.output);
  if (report.empty()) return {ok(ordinary) ? checked.output : "", ""};
  const std::string headline = report.substr(0, report.find('\n') + 1);
  return {ordinary.output.find(headline) == std::string::npos ? report : "", ""};
}

// ---- What is known of each ----

Exercises::Exercises(ExerciseFolders folders, int seconds)
    : folders_(std::move(folders)), seconds_(seconds), all_(find_exercises(folders_.project)) {
  std::ifstream file(folders_.progress / "exercises.txt");
  if (!file) file.open(folders_.build / "exercises.txt");  // where it was kept once
  for (std::string id, what, value; file >> id >> what >> value;) facts_[id + " " + what] = value;
  for (const Exercise& exercise : all_) {
    const fs::path copy = folders_.progress / "shipped" / exercise.path();
    if (fs::exists(copy)) continue;
    fs::create_directories(copy.parent_path());
    const fs::path once = folders_.build / "shipped" / exercise.path();
    fs::copy_file(fs::exists(once) ? once : exercise.file, copy);
  }
}

std::optional<std::string> Exercises::fact(const Exercise& exercise,
                                           const std::string& what) const {
  const auto found = facts_.find(exercise.id() + " " + what);
  return found == facts_.end() ? std::nullopt : std::optional(found->second);
}

void Exercises::keep(const Exercise& exercise, const std::string& what, const std::string& value) {
  facts_[exercise.id() + " " + what] = value;
  write_facts();
}

void Exercises::write_facts() const {
  std::ofstream file(folders_.progress / "exercises.txt");
  for (const auto& [name, value] : facts_) file << name << " " << value << "\n";
}

std::string Exercises::shipped(const Exercise& exercise) const {
  const Run git =
      run("git -C " + quoted(folders_.project) + " show 'HEAD:./" + exercise.path() + "'");
  return ok(git) ? git.output : text_of(folders_.progress / "shipped" / exercise.path());
}

bool Exercises::is_as_shipped(const Exercise& exercise) const {
  return text_of(exercise.file) == shipped(exercise);
}

bool Exercises::is_solved(const Exercise& exercise) const {
  return fact(exercise, kSolved) == mark_of(text_of(exercise.file));
}

const Exercise& Exercises::find(std::string_view id) const {
  const auto found = std::ranges::find_if(
      all_, [id](const Exercise& e) { return e.id() == id || e.id() == "0" + std::string(id); });
  if (found != all_.end()) return *found;
  throw std::invalid_argument("There is no exercise '" + std::string(id) + "'. There are: " +
                              joined(all_, [](const Exercise& e) { return e.id(); }));
}

const Exercise* Exercises::next_after(const Exercise* exercise) const {
  const auto to_do = [this](const Exercise& e) { return !is_solved(e); };
  const auto after = exercise ? all_.begin() + (exercise - all_.data()) + 1 : all_.begin();
  auto next = std::find_if(after, all_.end(), to_do);
  if (next == all_.end()) next = std::ranges::find_if(all_, to_do);
  return next == all_.end() ? nullptr : &*next;
}

std::string Exercises::count_solved() const {
  const auto solved = [this](const Exercise& e) { return is_solved(e); };
  return std::to_string(std::ranges::count_if(all_, solved)) + " of " +
         std::to_string(all_.size()) + " solved";
}

// ---- What the reader asks for ----

ExerciseState Exercises::check(const Exercise& exercise, std::ostream& out) {
  const std::string text = text_of(exercise.file);  // may change while it is checked
  const Run built = build(exercise, folders_.build);
  if (built.code == kEnded) {
    out << built.output;
    return ExerciseState::too_slow;
  }
  if (!ok(built)) {
    out << first_error(exercise, built.output);
    return ExerciseState::not_compiled;
  }
  const Run checked = [&] {
    const Progress progress("running it");
    return check_in(exercise, folders_.build);
  }();
  if (checked.code == kEnded) {
    out << checked.output;
    return ExerciseState::too_slow;
  }
  const auto [failure, explanation] = apart(checked.output);
  if (!ok(checked)) out << failure << std::flush;
  if (!ok(checked) && is_as_shipped(exercise)) {
    out << explanation;
    return ExerciseState::to_do;
  }
  const Findings closer = look_closer(exercise, checked);
  out << closer.trouble;
  if (!closer.found.empty()) {
    out << (ok(checked) ? "The results are right, but the check build finds:\n"
                        : "The check build finds:\n")
        << closer.found;
  } else if (!ok(checked)) {
    out << explanation;
  }
  if (checked.signal != 0) return ExerciseState::crashed;
  if (!ok(checked) || !closer.found.empty()) return ExerciseState::wrong;
  keep(exercise, kSolved, mark_of(text));
  return ExerciseState::solved;
}

std::string Exercises::hint(const Exercise& exercise) {
  const std::vector<std::string> hints = hints_of(folders_.project, exercise);
  if (hints.empty()) return "There is no hint for " + exercise.shown() + ".\n";
  const std::size_t given = std::stoul(fact(exercise, kHints).value_or("0"));
  const std::size_t now = std::min(given + 1, hints.size());
  keep(exercise, kHints, std::to_string(now));
  return "Hint " + std::to_string(now) + " of " + std::to_string(hints.size()) + ":\n" +
         hints[now - 1] + "\n";
}

bool Exercises::has_solution(const Exercise& exercise) const {
  return fs::exists(folders_.project / exercise.chapter / "solutions" / (exercise.name + ".cu"));
}

std::string Exercises::solution(const Exercise& exercise) {
  const std::string path = exercise.chapter + "/solutions/" + exercise.name + ".cu";
  if (!has_solution(exercise)) return "There is no " + path + " here.\n";
  if (!is_solved(exercise) && !fact(exercise, kAsked)) {
    keep(exercise, kAsked, "1");
    return exercise.shown() + " is not solved yet. Ask once more to see the solution.\n";
  }
  // A solution changes one place: what is left without the lines that both begin and end with.
  std::vector<std::string> lines = lines_of(text_of(folders_.project / path));
  std::vector<std::string> was = lines_of(shipped(exercise));
  const auto [differs, was_differs] = std::ranges::mismatch(lines, was);
  was.erase(was.begin(), was_differs);
  lines.erase(lines.begin(), differs);
  while (!lines.empty() && !was.empty() && lines.back() == was.back()) {
    lines.pop_back();
    was.pop_back();
  }
  std::string text = path + " has, in place of what is to do:\n";
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

void Exercises::reset(const Exercise& exercise) {
  const std::string text = shipped(exercise);
  std::ofstream(exercise.file) << text;
  for (const char* what : {kSolved, kHints, kAsked}) facts_.erase(exercise.id() + " " + what);
  write_facts();
}

void Exercises::list(std::ostream& out) const {
  std::string chapter;
  for (const Exercise& exercise : all_) {
    if (exercise.chapter != chapter) out << exercise.chapter << "\n";
    chapter = exercise.chapter;
    const char* state = is_solved(exercise)       ? "solved"
                        : is_as_shipped(exercise) ? "to do"
                                                  : "changed, not checked";
    out << "  " << std::left << std::setw(26) << exercise.shown() << state << "\n";
  }
  out << count_solved() << ".";
  if (const Exercise* next = next_after(nullptr)) out << " Next: ./tour exercise " << next->id();
  out << "\n";
}

bool Exercises::report(std::string_view chapter, std::ostream& out) {
  bool all_right = true;
  std::string to_do;
  for (const Exercise& exercise : all_) {
    if (exercise.chapter.rfind(chapter, 0) != 0) continue;
    if (!is_solved(exercise) && is_as_shipped(exercise)) {  // not even built
      to_do.append(to_do.empty() ? "" : ", ").append(exercise.id());
      continue;
    }
    std::ostringstream said;
    const ExerciseState state = check(exercise, said);
    out << "Exercise " << exercise.shown() << ": " << words(state) << "\n" << std::flush;
    if (state != ExerciseState::solved) all_right = false;
  }
  if (!to_do.empty()) out << "Exercises to do: " << to_do << "\n";
  return all_right;
}

int Exercises::grade(const fs::path& answers, std::ostream& out) {
  std::map<std::string, std::map<const Exercise*, fs::path>> of_all;  // by name
  std::size_t widest = 0;
  for (auto at = fs::recursive_directory_iterator(answers); at != fs::end(at); ++at) {
    const fs::path& path = at->path();
    const std::string name = path.filename().string();
    if (at->is_directory() && (name[0] == '.' || name == "build")) at.disable_recursion_pending();
    if (path.extension() != ".cu" || path.parent_path().filename() != "exercises") continue;
    const fs::path chapter = path.parent_path().parent_path();
    const auto exercise = std::ranges::find_if(all_, [&](const Exercise& e) {
      return e.chapter == chapter.filename().string() && e.name == path.stem().string();
    });
    if (exercise == all_.end()) {
      out << path.string() << " is no answer: there is no such exercise\n";
      continue;
    }
    const std::string who = fs::relative(chapter.parent_path(), answers).string();
    of_all[who][&*exercise] = path;
    widest = std::max(widest, who.size());
  }
  int count = 0;
  std::string totals;
  for (const auto& [who, files] : of_all) {
    std::ptrdiff_t solved = 0;
    for (const auto& [exercise, path] : files) {
      ++count;
      const std::string text = text_of(path);
      ExerciseState state = ExerciseState::to_do;
      std::string said;
      if (text != shipped(*exercise)) {
        std::ofstream(exercise->file) << text;
        std::ostringstream stream;
        state = check(*exercise, stream);
        said = stream.str();
      }
      solved += state == ExerciseState::solved;
      out << std::left << std::setw(static_cast<int>(widest) + 2) << who << std::setw(26)
          << exercise->shown() << words(state);
      if (!said.empty()) out << ": " << said.substr(0, said.find('\n'));
      out << "\n" << std::flush;
    }
    totals +=
        who + ": " + std::to_string(solved) + " of " + std::to_string(files.size()) + " solved\n";
  }
  for (const Exercise& exercise : all_) reset(exercise);
  out << totals;
  return count;
}

}  // namespace tile
