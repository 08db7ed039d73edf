#include "harness/bench.hpp"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "harness/progress.hpp"
#include "tile/host/device.hpp"
#include "tile/host/text.hpp"

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

/// The unit of a workload's measurement.
struct Measure {
  explicit Measure(const Workload& workload)
      : arithmetic(workload.operations() > 0),
        amount(arithmetic ? workload.operations() : workload.bytes()),
        name(arithmetic ? "throughput " : "bandwidth "),
        unit(arithmetic ? "TFLOP/s" : "TB/s") {}

  double rate(double milliseconds) const { return tera_per_second(amount, milliseconds); }

  static double tera_per_second(double amount, double milliseconds) {
    return amount / milliseconds * 1e-9;
  }

  bool arithmetic;
  double amount;
  const char* name;
  const char* unit;
};

const char* name(Duty duty) { return duty == Duty::burst ? "burst" : "sustained"; }

/// Executions that show how fast the card is.
struct Ceiling {
  std::vector<Work> works;
  double amount = 0;  // bytes or operations of each
  std::string text;   // "a copy of as many bytes reaches"
};

Status find_ceiling(const Workload& workload, Ceiling* ceiling) {
  if (workload.operations() > 0) {
    const DType type = workload.multiplied_type();
    ceiling->text =
        type == DType::fp32 ? "independent multiply-adds reach" : "independent mma.sync reach";
    ceiling->works.resize(1);
    return multiply_adds(type, ceiling->works.data(), &ceiling->amount);
  }
  ceiling->text = "a copy of as many bytes reaches";
  ceiling->amount = workload.bytes();
  return copies(ceiling->amount, &ceiling->works);
}

/// A line of what is printed.
void print(const Measure& measure, const std::string& who, const Timing& timing, double ceiling,
           const std::string& remark) {
  const double rate = measure.rate(timing.median);
  std::printf("     %-24s %9.4f ms  %5.2f %s  %s %4.0f %%%s\n", who.c_str(), timing.median, rate,
              measure.unit, bar(rate / ceiling).c_str(), rate / ceiling * 100, remark.c_str());
}

}  // namespace

std::vector<Result> rows(const Chapter& chapter, const StepInfo& step, const Workload& workload,
                         Duty duty, const Timing& timing, double ceiling,
                         const std::vector<TimedPeer>& peers) {
  const Measure measure(workload);
  const Result alone{.chapter = std::string(chapter.name),
                     .step = std::string(step.name),
                     .direction = std::string(workload.direction()),
                     .workload = workload.name(),
                     .metric = std::string(measure.name) + name(duty),
                     .value = measure.rate(timing.median),
                     .unit = measure.unit,
                     .ceiling = ceiling,
                     .peer = {},
                     .peer_value = {},
                     .ratio = {},
                     .low = measure.rate(timing.high),
                     .high = measure.rate(timing.low),
                     .sm_clock = timing.sm_clock};
  if (peers.empty()) return {alone};
  std::vector<Result> rows;
  for (const TimedPeer& peer : peers) {
    rows.push_back(alone);
    rows.back().peer = peer.name;
    rows.back().peer_value = measure.rate(peer.timing.median);
    rows.back().ratio = peer.timing.median / timing.median;
  }
  return rows;
}

std::string nearest_limit(double milliseconds, double memory, double arithmetic,
                          const std::string& next) {
  constexpr double kNear = 0.6;  // of a time that overlaps with others, as loads and arithmetic do
  const auto part = [&](const char* what, double alone) {
    char text[96];
    std::snprintf(text, sizeof text, "%s alone takes %.4f ms, %.0f %% of it", what, alone,
                  alone / milliseconds * 100);
    return std::string(text);
  };
  std::string text = part("memory", memory);
  if (arithmetic > 0) text += "; " + part("arithmetic", arithmetic);
  const bool of_memory = memory >= arithmetic;
  if (std::max(memory, arithmetic) >= kNear * milliseconds) {
    return text + ". It is near the limit of " + (of_memory ? "memory." : "arithmetic.");
  }
  return text + ". It is near neither limit: see " + next;
}

Status explain_times(const Chapter& chapter, const LadderInfo& ladder, const Workload& workload,
                     std::span<const Result> rows) {
  const Measure measure(workload);
  std::vector<Work> works;
  if (Status s = copies(workload.bytes(), &works); !s.ok()) return s;
  std::vector<Timing> timings(works.size());
  Group group{.works = {}, .repetitions = 10, .burst = 10};
  for (std::size_t i = 0; i < works.size(); ++i) group.works.push_back(i);
  if (Status s = time_in_turn(works, group, Duty::burst, &timings); !s.ok()) return s;
  const double memory = std::ranges::min(timings, {}, &Timing::median).median;
  std::string last;
  for (const Result& row : rows) {
    if (row.step == last || row.metric != std::string(measure.name) + name(Duty::burst)) continue;
    last = row.step;
    const double took = measure.amount / row.value * 1e-9;
    const double arithmetic = measure.arithmetic ? measure.amount / *row.ceiling * 1e-9 : 0;
    const std::string words = std::string(chapter.name.substr(0, 2)) + " " +
                              (ladder.name.empty() ? "" : std::string(ladder.name) + " ") + last;
    std::printf("     why %s: %.4f ms; %s\n", last.c_str(), took,
                nearest_limit(took, memory, arithmetic,
                              "./tour xray " + words + ", ./tour resources " + words)
                    .c_str());
  }
  return {};
}

std::string time_beside(Workload& workload, std::size_t step, std::size_t before) {
  std::vector<Work> works;
  Choice choice;
  const bool compared = before != step && workload.choose(before, &choice).ok();
  if (compared) {
    works.push_back([&](void* stream) { return workload.launch(choice.step, stream); });
  }
  works.push_back([&](void* stream) { return workload.launch(step, stream); });
  std::vector<double> milliseconds;
  if (Status s = time_once(works, &milliseconds); !s.ok()) return "not timed: " + s.message;
  constexpr double kSlow = 20;  // once is enough: it varies little, and the reader waits
  if (std::ranges::max(milliseconds) < kSlow) {
    // Without a pause: the card has rested while the host compared.
    Group group{.works = {}, .repetitions = 10, .burst = 0};
    for (std::size_t i = 0; i < works.size(); ++i) group.works.push_back(i);
    std::vector<Timing> timings(works.size());
    if (Status s = time_in_turn(works, group, Duty::burst, &timings); !s.ok()) {
      return "not timed: " + s.message;
    }
    for (std::size_t i = 0; i < works.size(); ++i) milliseconds[i] = timings[i].median;
  }
  const Measure measure(workload);
  const double took = milliseconds.back();
  char text[96];
  std::snprintf(text, sizeof text, "%.4f ms  %.2f %s", took, measure.rate(took), measure.unit);
  std::string all = text;
  if (compared) {
    std::snprintf(text, sizeof text, "  %.2f x step %zu", milliseconds.front() / took,
                  choice.step + 1);
    all += text;
  }
  return all;
}

Status time_steps(const Chapter& chapter, const LadderInfo& ladder, Workload& workload,
                  const std::vector<std::size_t>& steps, const std::vector<Peer>& peers,
                  bool sustained_too, std::vector<Result>* results) {
  const Measure measure(workload);
  Ceiling ceiling;
  if (Status s = find_ceiling(workload, &ceiling); !s.ok()) return s;
  std::vector<Work> works = ceiling.works;
  for (const Peer& peer : peers) works.push_back(peer.launch);
  const std::size_t rivals = works.size();
  for (const std::size_t step : steps) {
    works.push_back([&workload, step](void* stream) { return workload.launch(step, stream); });
  }

  std::vector<Duty> duties{Duty::burst};
  if (sustained_too) duties.push_back(Duty::sustained);
  std::vector<Group> groups;
  for (const Duty duty : duties) {
    std::vector<Timing> timings(works.size());
    {
      const Progress progress("timing");
      if (groups.empty()) {
        std::vector<double> once;
        if (Status s = time_once(works, &once); !s.ok()) return s;
        groups = plan(once, rivals);
      }
      for (const Group& group : groups) {
        if (Status s = time_in_turn(works, group, duty, &timings); !s.ok()) return s;
      }
    }
    std::size_t fastest = 0;
    for (std::size_t i = 1; i < ceiling.works.size(); ++i) {
      if (timings[i].median < timings[fastest].median) fastest = i;
    }
    const double limit = Measure::tera_per_second(ceiling.amount, timings[fastest].median);
    std::vector<TimedPeer> timed;
    if (!measure.arithmetic) timed.push_back({"copy", timings[fastest]});
    for (std::size_t i = 0; i < peers.size(); ++i) {
      timed.push_back({peers[i].name, timings[ceiling.works.size() + i]});
    }

    std::string title = workload.name();
    if (workload.direction() != "forward") title.append(", ").append(workload.direction());
    std::printf("     %s, %s; %s %.2f %s\n", title.c_str(), name(duty), ceiling.text.c_str(), limit,
                measure.unit);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Timing& timing = timings[rivals + i];
      const auto step_rows =
          rows(chapter, ladder.steps[steps[i]], workload, duty, timing, limit, timed);
      std::string remark;
      for (std::size_t p = timed.size() - peers.size(); p < timed.size(); ++p) {
        char text[64];
        std::snprintf(text, sizeof text, "  %.3f x ", *step_rows[p].ratio);
        remark += text + timed[p].name;
      }
      const bool apart = std::ranges::any_of(groups, [&](const Group& group) {
        return group.works == std::vector<std::size_t>{rivals + i};
      });
      if (apart) remark += ", timed apart " + counted(timing.repetitions, "time");
      print(measure, std::string(ladder.steps[steps[i]].name), timing, limit, remark);
      results->insert(results->end(), step_rows.begin(), step_rows.end());
    }
    for (std::size_t i = 0; i < peers.size(); ++i) {
      print(measure, peers[i].name, timings[ceiling.works.size() + i], limit, {});
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
