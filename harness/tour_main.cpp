// The program behind ./tour, and that of each chapter: lists, runs and times its steps.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "harness/chapter.hpp"
#include "harness/device.hpp"
#include "harness/measure.hpp"
#include "harness/progress.hpp"
#include "harness/text.hpp"

namespace tile {
namespace {

/// The command line makes no sense. The message lists what would.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Request {
  std::string_view command = "tour";
  const Chapter* chapter = nullptr;  // null: all
  std::optional<std::size_t> step;   // nothing: all
  std::vector<std::int64_t> size;    // empty: the chapter's own
  DType type = DType::fp32;
};

template <class Range, class Name>
std::string listed(const Range& range, Name name) {
  std::string text;
  for (const auto& item : range) text.append(text.empty() ? "" : ", ").append(name(item));
  return text;
}

std::vector<std::int64_t> parse_size(std::string_view text, const Chapter& chapter) {
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
  if (at != end || size.size() != chapter.extents.size()) {
    const std::string form = listed(chapter.extents, [](auto extent) { return extent; });
    throw UsageError("--size '" + std::string(text) + "': " + std::string(chapter.name) +
                     " takes " +
                     counted(static_cast<std::int64_t>(chapter.extents.size()), "whole number") +
                     " of 0 or more joined by x: " + form);
  }
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
                   listed(chapters(), [](auto chapter) { return chapter->name; }));
}

std::size_t find_step(const Chapter& chapter, std::string_view name) {
  for (std::size_t i = 0; i < chapter.steps.size(); ++i) {
    if (name == chapter.steps[i].name || name == std::to_string(i + 1)) return i;
  }
  throw UsageError(
      std::string(chapter.name) + " has no step '" + std::string(name) +
      "'. Its steps: " + listed(chapter.steps, [](const StepInfo& step) { return step.name; }));
}

Request parse(int count, char** arguments) {
  Request request;
  if (chapters().size() == 1) request.chapter = chapters().front();
  std::optional<std::string_view> size;
  std::vector<std::string_view> words;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--size" || argument == "--type") {
      if (++i == count) throw UsageError(std::string(argument) + " needs a value");
      const std::string_view value = arguments[i];
      if (argument == "--size") {
        size = value;
      } else if (const auto type = parse_dtype(value)) {
        request.type = *type;
      } else {
        throw UsageError("--type '" + std::string(value) + "' is none of " +
                         listed(kDTypes, [](DType t) { return name(t); }));
      }
    } else if (argument.substr(0, 1) == "-") {
      throw UsageError("There is no flag '" + std::string(argument) +
                       "' here. Flags: --size, --type, --device");
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
  const bool takes_step = request.command == "run";
  const bool takes_chapter = takes_step || request.command == "bench";
  if (takes_chapter && next < words.size()) request.chapter = &find_chapter(words[next++]);
  if (takes_step && !request.chapter) {
    throw UsageError("run needs a chapter: " +
                     listed(chapters(), [](auto chapter) { return chapter->name; }));
  }
  if (takes_step && next < words.size()) request.step = find_step(*request.chapter, words[next++]);
  if (next < words.size()) {
    throw UsageError("'" + std::string(words[next]) + "' is one word too many after " +
                     std::string(request.command));
  }
  if (size) {
    if (!request.chapter) throw UsageError("--size needs a chapter");
    request.size = parse_size(*size, *request.chapter);
  }
  return request;
}

/// "██████████████░░░░░░" for 0.7.
std::string bar(double share) {
  constexpr int kWidth = 20;
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kWidth + 0.5);
  std::string text;
  for (int i = 0; i < kWidth; ++i) text += i < full ? "█" : "░";
  return text;
}

// The copy of as many bytes, measured once a size.
double ceiling_milliseconds(double bytes) {
  static std::map<double, double> known;
  const auto found = known.find(bytes);
  if (found != known.end()) return found->second;
  double milliseconds = 0;
  const Status status = copy_milliseconds(bytes, 20, &milliseconds);
  if (!status.ok()) throw std::runtime_error(status.message);
  return known[bytes] = milliseconds;
}

Status show_time(Workload& workload, std::size_t step) {
  double milliseconds = 0;
  const Status status = median_milliseconds(
      [&](void* stream) { return workload.launch(step, stream); }, 20, &milliseconds);
  if (!status.ok()) return status;
  const double rate = workload.bytes() / milliseconds * 1e-9;  // bytes/ms to TB/s
  const double ceiling = workload.bytes() / ceiling_milliseconds(workload.bytes()) * 1e-9;
  std::printf("     %.3f ms  %.2f TB/s  %s  %.0f %% of a copy, %.2f TB/s\n", milliseconds, rate,
              bar(rate / ceiling).c_str(), rate / ceiling * 100, ceiling);
  return {};
}

/// Runs one step, compares and, on a GPU, times it. False if it is wrong.
bool run_step(const Chapter& chapter, std::size_t step, Workload& workload) {
  std::printf("  %zu  %s: %s\n", step + 1, std::string(chapter.steps[step].name).c_str(),
              std::string(chapter.steps[step].idea).c_str());
  Comparison comparison;
  Status status;
  std::string activity;
  {
    const Progress progress(std::string("running ") + std::string(chapter.steps[step].name));
    device_activity();  // forget what went before
    status = workload.launch(step, nullptr);
    if (status.ok()) comparison = workload.check();
    activity = device_activity();
  }
  if (status.code == Code::unsupported) {
    std::printf("     %s: not run: %s\n", workload.name().c_str(), status.message.c_str());
    return true;
  }
  if (!status.ok()) {
    std::printf("     %s: failed: %s\n", workload.name().c_str(), status.message.c_str());
    return false;
  }
  if (!comparison.ok()) {
    std::printf("     %s: WRONG\n%s\n", workload.name().c_str(), comparison.message.c_str());
    return false;
  }
  std::printf("     %s: right, the worst error is %.3g %% of its bound\n", workload.name().c_str(),
              comparison.worst_ratio * 100);
  if (!activity.empty()) std::printf("     simulated: %s\n", activity.c_str());
  if (!device().simulated && workload.bytes() > 0) {
    status = show_time(workload, step);
    if (!status.ok()) std::printf("     not timed: %s\n", status.message.c_str());
  }
  std::fflush(stdout);
  return status.ok();
}

bool run_chapter(const Chapter& chapter, const Request& request, std::vector<std::int64_t> size) {
  std::unique_ptr<Workload> workload;
  try {
    const Progress progress("making inputs");
    workload = chapter.make(size, request.type);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
  bool right = true;
  for (std::size_t step = 0; step < chapter.steps.size(); ++step) {
    if (request.step && *request.step != step) continue;
    right = run_step(chapter, step, *workload) && right;
  }
  return right;
}

void show_title(const Chapter& chapter) {
  std::printf("\n%s  %s\n", std::string(chapter.name).c_str(), std::string(chapter.title).c_str());
}

void list() {
  for (const Chapter* chapter : chapters()) {
    show_title(*chapter);
    for (std::size_t i = 0; i < chapter->steps.size(); ++i) {
      std::printf("  %zu  %s: %s\n", i + 1, std::string(chapter->steps[i].name).c_str(),
                  std::string(chapter->steps[i].idea).c_str());
    }
  }
}

int execute(const Request& request) {
  if (request.command == "list") {
    list();
    return 0;
  }
  const bool bench = request.command == "bench";
  if (bench && device().simulated) {
    throw UsageError("bench needs a GPU: times on the CPU device say nothing about one");
  }
  if (device().simulated) {
    std::printf(
        "Device: the CPU device, a simulated card. It is exact about results and says "
        "nothing about time.\n");
  } else {
    std::printf("Device: %s, driver for CUDA %s, runtime %s\n", device().name.c_str(),
                device().driver.c_str(), device().runtime.c_str());
  }

  bool right = true;
  for (const Chapter* chapter : chapters()) {
    if (request.chapter && request.chapter != chapter) continue;
    show_title(*chapter);
    std::vector<std::vector<std::int64_t>> sizes{device().simulated ? chapter->size_on_cpu
                                                                    : chapter->size_on_gpu};
    if (bench) sizes = chapter->benchmark_sizes;
    if (!request.size.empty()) sizes = {request.size};
    for (const auto& size : sizes) right = run_chapter(*chapter, request, size) && right;
    if (request.command == "tour") std::printf("  Next: %s\n", std::string(chapter->next).c_str());
  }
  std::printf(right ? "" : "\nAt least one step failed; see above.\n");
  return right ? 0 : 1;
}

}  // namespace
}  // namespace tile

int main(int count, char** arguments) {
  try {
    return tile::execute(tile::parse(count, arguments));
  } catch (const tile::UsageError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
