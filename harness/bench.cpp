#include "harness/bench.hpp"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "harness/device.hpp"
#include "harness/measure.hpp"
#include "harness/progress.hpp"

namespace tile {
namespace {

/// "██████████████░░░░░░" for 0.7.
std::string bar(double share) {
  constexpr int kWidth = 20;
  const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kWidth + 0.5);
  std::string text;
  for (int i = 0; i < kWidth; ++i) text += i < full ? "█" : "░";
  return text;
}

constexpr double terabytes_per_second(double bytes, double milliseconds) {
  return bytes / milliseconds * 1e-9;
}

}  // namespace

Status time_steps(const Chapter& chapter, Workload& workload, const std::vector<std::size_t>& steps,
                  bool sustained_too, std::vector<Result>* results) {
  std::vector<Work> works;
  if (Status s = copies(workload.bytes(), &works); !s.ok()) return s;
  const std::size_t copy_count = works.size();
  for (const std::size_t step : steps) {
    works.push_back([&workload, step](void* stream) { return workload.launch(step, stream); });
  }

  std::vector<Duty> duties{Duty::burst};
  if (sustained_too) duties.push_back(Duty::sustained);
  for (const Duty duty : duties) {
    const char* load = duty == Duty::burst ? "burst" : "sustained";
    std::vector<Timing> timings;
    {
      const Progress progress("timing");
      if (Status s = time_in_turn(works, duty, &timings); !s.ok()) return s;
    }
    auto rate = [&](double milliseconds) {
      return terabytes_per_second(workload.bytes(), milliseconds);
    };
    double copy = 0;
    for (std::size_t i = 0; i < copy_count; ++i) copy = std::max(copy, rate(timings[i].median));
    std::printf("     %s, %s; a copy of as many bytes reaches %.2f TB/s\n", workload.name().c_str(),
                load, copy);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Timing& timing = timings[copy_count + i];
      const std::string name(chapter.steps[steps[i]].name);
      const double ours = rate(timing.median);
      std::printf("     %-24s %9.4f ms  %5.2f TB/s  %s %4.0f %%\n", name.c_str(), timing.median,
                  ours, bar(ours / copy).c_str(), ours / copy * 100);
      results->push_back({.chapter = std::string(chapter.name),
                          .step = name,
                          .direction = "forward",
                          .workload = workload.name(),
                          .metric = std::string("bandwidth ") + load,
                          .value = ours,
                          .unit = "TB/s",
                          .ceiling = copy,
                          .peer = "copy",
                          .peer_value = copy,
                          .ratio = ours / copy,
                          .low = rate(timing.high),
                          .high = rate(timing.low),
                          .sm_clock = timing.sm_clock});
    }
  }
  std::fflush(stdout);
  return {};
}

Origin origin(const std::string& commit) {
  char date[16] = "";
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  return {device().name, device().driver, device().runtime, commit, date};
}

}  // namespace tile
