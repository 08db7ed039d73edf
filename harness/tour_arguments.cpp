#include "harness/tour_arguments.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "tile/host/text.hpp"

namespace tile {
namespace {

std::vector<std::int64_t> parse_size(std::string_view text, const LadderInfo& ladder,
                                     const Chapter& chapter) {
  std::vector<std::int64_t> size;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    std::int64_t value = 0;
    const auto [after, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 0) break;
    size.push_back(value);
    at = after;
    if (at == end || *at != 'x') break;
    ++at;
  }
  const std::size_t extents = ladder.extents.size();
  if (at != end || (size.size() != extents && size.size() != 1)) {
    std::string form =
        extents == 1 ? "one whole number" : std::to_string(extents) + " whole numbers";
    form += ", " + joined(ladder.extents, [](auto extent) { return extent; }) + ": " +
            std::string(ladder.size_hint);
    std::string example = "100";
    for (std::size_t i = 1; i < extents; ++i) example += "x" + std::to_string(100 * (i + 1));
    throw UsageError("--size '" + std::string(text) + "': " + std::string(chapter.name) +
                     " takes " + form + ". For example: --size " + example);
  }
  size.resize(extents, size.front());
  return size;
}

const Chapter& find_chapter(std::string_view name) {
  for (const Chapter* chapter : chapters()) {
    // 01 and 1 mean 01_vector_add.
    const std::string_view number = chapter->name.substr(0, 2);
    if (name == chapter->name || name == number || (number[0] == '0' && name == number.substr(1))) {
      return *chapter;
    }
  }
  throw UsageError("There is no chapter '" + std::string(name) + "'. There are: " +
                   joined(chapters(), [](auto chapter) { return chapter->name; }));
}

// "backward" is that of the chapter's first operation, and "attention forward" is "attention".
std::string full_name(const Chapter& chapter, std::string name) {
  const std::string first(chapter.ladders.front().name);
  if (name == "forward") return first;
  if (name == "backward") return first + " " + name;
  if (name.ends_with(" forward")) name.resize(name.size() - std::string(" forward").size());
  return name;
}

// The ladder named by the next words, of "attention" and "attention backward" the one with more of
// them; no such words mean the chapter's first. They are used up.
const LadderInfo& find_ladder(const Chapter& chapter, const std::vector<std::string_view>& words,
                              std::size_t* next) {
  const LadderInfo* found = nullptr;
  std::string named;
  std::size_t end = *next;
  for (std::size_t i = *next; i < words.size(); ++i) {
    named.append(i == *next ? "" : " ").append(words[i]);
    for (const LadderInfo& ladder : chapter.ladders) {
      if (named == ladder.name || full_name(chapter, named) == ladder.name) {
        found = &ladder;
        end = i + 1;
      }
    }
  }
  *next = end;
  return found ? *found : chapter.ladders.front();
}

bool has_step(const LadderInfo& ladder, std::string_view name) {
  return std::ranges::any_of(ladder.steps, [&](const StepInfo& s) { return s.name == name; });
}

std::size_t find_step(const Chapter& chapter, const LadderInfo& ladder, std::string_view name) {
  for (std::size_t i = 0; i < ladder.steps.size(); ++i) {
    if (name == ladder.steps[i].name || name == std::to_string(i + 1)) return i;
  }
  std::string others;
  for (const LadderInfo& other : chapter.ladders) {
    if (&other == &ladder) continue;
    others.append(others.empty() ? ". Other ladders: " : ", ").append(other.name);
  }
  throw UsageError(std::string(chapter.name) + (ladder.name.empty() ? "" : " ") +
                   std::string(ladder.name) + " has no step '" + std::string(name) +
                   "'. Its steps: " +
                   joined(ladder.steps, [](const StepInfo& step) { return step.name; }) + others);
}

}  // namespace

Request parse_arguments(int count, char** arguments) {
  Request request;
  request.folder = std::filesystem::path(arguments[0]).parent_path().string();
  if (chapters().size() == 1) request.chapter = chapters().front();
  std::optional<std::string_view> size;
  std::vector<std::string_view> words;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    const bool takes_value = argument == "--size" || argument == "--type" || argument == "--json" ||
                             argument == "--commit";
    if (takes_value) {
      if (++i == count) throw UsageError(std::string(argument) + " needs a value");
      const std::string_view value = arguments[i];
      if (argument == "--size") {
        size = value;
      } else if (argument == "--json") {
        request.json = value;
      } else if (argument == "--commit") {
        request.commit = value;
      } else if (const auto type = parse_dtype(value)) {
        request.type = type;
      } else {
        throw UsageError("--type '" + std::string(value) + "' is none of " +
                         joined(kDTypes, [](DType t) { return name(t); }));
      }
    } else if (argument == "--compare") {
      request.compare = true;
    } else if (argument == "--why") {
      request.why = true;
    } else if (argument.substr(0, 1) == "-") {
      throw UsageError(
          "There is no flag '" + std::string(argument) +
          "' here. Flags: --size, --type, --device; for run --compare, for bench --json, "
          "--commit, --why");
    } else {
      words.push_back(argument);
    }
  }

  std::size_t next = 0;
  constexpr std::string_view kCommands[] = {"tour", "list", "run", "bench"};
  if (next < words.size()) {
    request.command = words[next++];
    if (std::find(std::begin(kCommands), std::end(kCommands), request.command) ==
        std::end(kCommands)) {
      throw UsageError("There is no command '" + std::string(request.command) +
                       "'. Commands: list, run, bench");
    }
  }
  const bool takes_step = request.command == "run" || request.command == "bench";
  const bool takes_chapter = takes_step || request.command == "list";
  if (takes_chapter && next < words.size()) request.chapter = &find_chapter(words[next++]);
  if (request.command == "run" && !request.chapter) {
    throw UsageError("run needs a chapter: " +
                     joined(chapters(), [](auto chapter) { return chapter->name; }));
  }
  if (takes_chapter && request.chapter && next < words.size()) {
    const std::size_t before = next;
    request.ladder = &find_ladder(*request.chapter, words, &next);
    if (takes_step && next < words.size()) {
      const bool named = next > before;
      if (!named) {  // a name that only another ladder has
        const auto& ladders = request.chapter->ladders;
        const auto found = std::ranges::find_if(
            ladders, [&](const LadderInfo& ladder) { return has_step(ladder, words[next]); });
        if (found != ladders.end()) request.ladder = &*found;
      }
      request.step = find_step(*request.chapter, *request.ladder, words[next++]);
    } else if (next == before) {
      request.ladder = nullptr;  // the word was no ladder
    }
  }
  if (next < words.size()) {
    throw UsageError("'" + std::string(words[next]) + "' is one word too many after " +
                     std::string(request.command));
  }
  if (request.command != "bench" && !(request.json.empty() && request.commit.empty())) {
    throw UsageError("--json and --commit go with bench");
  }
  if (request.why && request.command != "bench") throw UsageError("--why goes with bench");
  if (request.json.empty() != request.commit.empty()) {
    throw UsageError("--json FILE and --commit ID go together: each row says what it measured");
  }
  if (request.compare) {
    if (request.command != "run" || request.step)
      throw UsageError("--compare goes with run CHAPTER, and no step");
    const SideBySide& of_chapter = request.chapter->side_by_side;
    if (!of_chapter.show) {
      throw UsageError(std::string(request.chapter->name) + " has nothing to --compare");
    }
    std::size_t first = 0;
    request.ladder = &find_ladder(*request.chapter, {of_chapter.ladder}, &first);
  }
  if (request.command == "list" && (size || request.type)) {
    throw UsageError("list takes no --size or --type: it runs nothing");
  }
  if (size) {
    if (!request.chapter) throw UsageError("--size needs a chapter");
    request.size =
        parse_size(*size, request.ladder ? *request.ladder : request.chapter->ladders.front(),
                   *request.chapter);
  }
  return request;
}

}  // namespace tile
