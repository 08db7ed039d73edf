// The program of each chapter, which ./tour builds and starts: lists, runs and times its steps.
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/bench.hpp"
#include "harness/chapter.hpp"
#include "harness/progress.hpp"
#include "harness/terminal.hpp"
#include "harness/tour_arguments.hpp"
#include "tile/host/device.hpp"
#include "tile/host/text.hpp"

namespace tile {
namespace {

std::string text(std::string_view view) { return std::string(view); }

using Size = std::vector<std::int64_t>;

/// What happened so far.
struct Record {
  bool run = false;          // a step was
  bool not_run = false;      // a step of the tour was not
  bool step_failed = false;  // or its result is wrong
  bool timing_failed =
      false;  // something right was not timed, or a peer that is there is not right
};

enum class Outcome { right, wrong, not_run };

/// What a step or a peer did with a problem.
struct Finding {
  Outcome outcome = Outcome::not_run;
  std::string what;       // why it was not run, or what is wrong
  Comparison comparison;  // if it was run
  std::string simulated;  // what the CPU device did
};

/// Runs `launch`, and compares what it wrote.
Finding run(const std::string& who, const Work& launch, Workload& workload) {
  std::fflush(stdout);
  Finding found;
  Status status;
  {
    const Progress progress("running " + who);
    device_activity();  // forget what went before
    status = launch(nullptr);
    if (status.ok()) found.comparison = workload.check();
    found.simulated = device_activity();
  }
  if (status.code == Code::unsupported) {
    found.what = status.message;
    return found;
  }
  found.what = status.ok() ? found.comparison.message : status.message;
  found.outcome = status.ok() && found.comparison.ok() ? Outcome::right : Outcome::wrong;
  return found;
}

/// The problem on which the step shows what it does.
Size size_to_show(const LadderInfo& ladder, const StepInfo& step) {
  const auto& size = device().simulated ? step.shows.small : step.shows.large;
  return {size.begin(), size.begin() + static_cast<std::ptrdiff_t>(ladder.extents.size())};
}

/// Makes problems, and keeps the last: neighbouring steps often share theirs.
class Workloads {
 public:
  Workload* get(MakeWorkload make, const Size& size, DType type) {
    if (make != make_ || size != size_ || type != type_) {
      last_.reset();
      const Progress progress("making inputs");
      try {
        last_ = make(size, type);
      } catch (const std::invalid_argument& error) {
        throw UsageError(error.what());
      }
      make_ = make, size_ = size, type_ = type;
    }
    return last_.get();
  }

 private:
  MakeWorkload make_ = nullptr;
  Size size_;
  DType type_ = DType::fp64;
  std::unique_ptr<Workload> last_;
};

std::string command_for(const Chapter& chapter, const LadderInfo& ladder, std::size_t step) {
  return "./tour run " + text(chapter.name.substr(0, 2)) + " " +
         (ladder.name.empty() ? "" : text(ladder.name) + " ") + std::to_string(step + 1);
}

/// Advice on finding the mistake in a wrong kernel.
std::string next_command(const Chapter& chapter, const LadderInfo& ladder, std::size_t step) {
  if (!device_reads_host_memory() && device().simulated) return "See docs/debugging.md";
  return "Next: " + command_for(chapter, ladder, step) + " --check";
}

void indent(const std::string& lines) {
  std::printf("      ");
  for (const char c : lines) {
    std::putchar(c);
    if (c == '\n') std::printf("      ");
  }
  std::putchar('\n');
}

/// A text that begins at column `indent`, and whose further lines do, too.
std::string hanging(const std::string& text, std::size_t indent) {
  return wrapped(std::string(indent, ' ') + text, columns_of()).substr(indent);
}

/// "4 online".
std::string numbered(const LadderInfo& ladder, std::size_t step) {
  return std::to_string(step + 1) + " " + text(ladder.steps[step].name);
}

/// Says which step runs instead of another.
void show_choice(const LadderInfo& ladder, std::size_t wanted, const Choice& choice) {
  if (choice.step == wanted) return;
  std::printf("      %s does not take this (%s): step %s runs\n", numbered(ladder, wanted).c_str(),
              choice.why.c_str(), numbered(ladder, choice.step).c_str());
}

// ---- ./tour ----

/// What the CPU device counted, without what chapter 02 explains first.
std::string brief_activity(const std::string& counts) {
  const std::size_t collectives = counts.find(" warp collective");
  if (collectives == std::string::npos) return counts;
  return counts.substr(0, counts.rfind(", ", collectives));
}

/// A line: what a step did. Before it one with the problem, unless it is `shown` already.
void show_step(const Chapter& chapter, const LadderInfo& ladder, std::size_t step,
               Workloads* workloads, std::string* shown, Record* record) {
  const StepInfo& info = ladder.steps[step];
  Workload* workload = workloads->get(ladder.make, size_to_show(ladder, info), default_type(info));
  if (*shown != workload->name()) {
    *shown = workload->name();
    std::printf("  %s\n", shown->c_str());
  }
  Choice choice;
  Status status = workload->choose(step, &choice);
  Finding found;
  if (status.ok() && choice.step == step) {
    found = run(
        text(info.name), [&](void* s) { return workload->launch(step, s); }, *workload);
  } else {
    found.what = status.ok() ? choice.why : status.message;
  }
  std::string did = brief_activity(found.simulated);
  if (found.outcome == Outcome::right && !device().simulated) {
    const Progress progress("timing " + text(info.name));
    did = time_beside(*workload, step, step == 0 ? step : step - 1);
  }
  std::string line = coloured("32", "right") + "  " + did;
  if (found.outcome == Outcome::not_run) line = hanging("not run: " + found.what, 28);
  if (found.outcome == Outcome::wrong) line = coloured("31", "WRONG");
  std::printf("  %2zu  %-20s  %s\n", step + 1, text(info.name).c_str(), line.c_str());
  (found.outcome == Outcome::not_run ? record->not_run : record->run) = true;
  if (found.outcome != Outcome::wrong) return;
  record->step_failed = true;
  indent(found.what + "\n" + next_command(chapter, ladder, step));
}

void show_title(const Chapter& chapter) {
  const std::string title = hanging(text(chapter.title), chapter.name.size() + 2);
  std::printf("\n%s  %s\n", coloured("1", chapter.name).c_str(), title.c_str());
}

void show_ladder(const LadderInfo& ladder) {
  if (!ladder.name.empty()) std::printf("  %s\n", text(ladder.name).c_str());
}

void tour(Record* record) {
  Workloads workloads;
  for (const Chapter* chapter : chapters()) {
    show_title(*chapter);
    for (const LadderInfo& ladder : chapter->ladders) {
      show_ladder(ladder);
      std::string shown;
      for (std::size_t step = 0; step < ladder.steps.size(); ++step) {
        show_step(*chapter, ladder, step, &workloads, &shown, record);
      }
    }
  }
}

/// "forward  3  tiled: one sentence about it".
void show_idea(const std::string& before, const StepInfo& info, std::size_t step,
               std::string_view remark = "") {
  const std::string number = std::to_string(step + 1), name = text(info.name);
  const std::string begin = before + (number.size() < 2 ? " " : "") + number + "  ";
  const std::string idea = name + ": " + text(info.idea) + text(remark);
  std::printf("%s%s\n", begin.c_str(), hanging(idea, begin.size()).c_str());
}

// ---- ./tour run and ./tour bench ----

/// Prints what a step or a peer did, and says how it went.
void show_finding(const Finding& found, const Workload& workload, Record* record) {
  const std::string name = workload.name();
  switch (found.outcome) {
    case Outcome::not_run:
      std::printf("      %s: not run: %s\n", name.c_str(), found.what.c_str());
      return;
    case Outcome::wrong:
      record->run = record->step_failed = true;
      std::printf("      %s: WRONG\n", name.c_str());
      indent(found.what);
      return;
    case Outcome::right: break;
  }
  record->run = true;
  std::printf(
      "      %s: right: %s checked, the worst error is %.3g %% of its bound;\n"
      "      nothing was written outside of the buffers\n",
      name.c_str(), workload.checked_part().c_str(), found.comparison.worst_ratio * 100);
  if (!found.simulated.empty()) std::printf("      simulated: %s\n", found.simulated.c_str());
}

/// The peers that can be timed: those whose result is right.
std::vector<Peer> right_peers(Workload& workload, Record* record) {
  std::vector<Peer> right;
  for (Peer& peer : workload.peers()) {
    std::printf("   -  %s, to compare with\n", peer.name.c_str());
    Record of_peer;
    const Finding found = run(peer.name, peer.launch, workload);
    show_finding(found, workload, &of_peer);
    if (of_peer.step_failed) record->timing_failed = true;
    if (found.outcome == Outcome::right) right.push_back(std::move(peer));
  }
  return right;
}

/// Runs steps on one problem and, on a GPU, times those that are right.
void run_steps(const Chapter& chapter, const LadderInfo& ladder,
               const std::vector<std::size_t>& steps, Workload& workload, bool bench, bool why,
               std::vector<Result>* results, Record* record) {
  std::vector<std::size_t> to_time;
  for (const std::size_t step : steps) {
    const StepInfo& info = ladder.steps[step];
    Choice choice;
    const Status status = workload.choose(step, &choice);
    // A benchmark measures a step by its own kernel only.
    if (bench && (!status.ok() || choice.step != step)) continue;
    show_idea(ladder.name.empty() ? "" : text(ladder.name) + " ", info, step);
    Finding found;
    found.what = status.message;
    if (status.ok()) {
      show_choice(ladder, step, choice);
      found = run(
          text(info.name), [&](void* s) { return workload.launch(choice.step, s); }, workload);
    } else if (status.code != Code::unsupported) {
      found.outcome = Outcome::wrong;
    }
    show_finding(found, workload, record);
    if (found.outcome == Outcome::wrong) indent(next_command(chapter, ladder, step));
    const bool timed = std::ranges::find(to_time, choice.step) != to_time.end();
    if (found.outcome == Outcome::right && !timed) to_time.push_back(choice.step);
  }
  if (device().simulated || workload.bytes() == 0 || to_time.empty()) return;
  const std::vector<Peer> peers = right_peers(workload, record);
  const std::size_t before = results->size();
  Status timed = time_steps(chapter, ladder, workload, to_time, peers, bench, results);
  if (timed.ok() && why) {
    timed = explain_times(chapter, ladder, workload, std::span(*results).subspan(before));
  }
  if (timed.ok()) return;
  std::printf("      not timed: %s\n", timed.message.c_str());
  record->timing_failed = true;
}

void run_ladder(const Chapter& chapter, const LadderInfo& ladder, const Request& request,
                Record* record) {
  std::vector<Result> results;  // shown, and not kept
  Workloads workloads;
  for (std::size_t step = 0; step < ladder.steps.size(); ++step) {
    if (request.step && *request.step != step) continue;
    const StepInfo& info = ladder.steps[step];
    const Size size = request.size.empty() ? size_to_show(ladder, info) : request.size;
    const DType type = request.type.value_or(default_type(info));
    run_steps(chapter, ladder, {step}, *workloads.get(ladder.make, size, type), false, false,
              &results, record);
  }
}

void bench_ladder(const Chapter& chapter, const LadderInfo& ladder, const Request& request,
                  Record* record) {
  std::vector<MakeWorkload> makers{ladder.make};
  makers.insert(makers.end(), ladder.make_for_benchmark.begin(), ladder.make_for_benchmark.end());
  const std::vector<DType> types =
      request.type ? std::vector<DType>{*request.type} : ladder.benchmark_types;
  const std::vector<Size> sizes =
      request.size.empty() ? ladder.benchmark_sizes : std::vector<Size>{request.size};
  for (const DType type : types) {
    std::vector<std::size_t> steps;
    for (std::size_t step = 0; step < ladder.steps.size(); ++step) {
      if (request.step && *request.step != step) continue;
      if (ladder.steps[step].types.contains(type)) steps.push_back(step);
    }
    for (const Size& size : sizes) {
      for (const MakeWorkload make : makers) {
        Workloads workloads;
        Workload* workload = workloads.get(make, size, type);
        if (!workload) continue;
        std::vector<Result> results;
        run_steps(chapter, ladder, steps, *workload, true, request.why, &results, record);
        // Written at once: if an hour of measuring is stopped, what came before is kept.
        if (!request.json.empty()) merge_results(request.json, results, origin(request.commit));
      }
    }
  }
}

void list(const Chapter& chapter, const LadderInfo* only) {
  show_title(chapter);
  for (const LadderInfo& ladder : chapter.ladders) {
    if (only && only != &ladder) continue;
    show_ladder(ladder);
    for (std::size_t i = 0; i < ladder.steps.size(); ++i) {
      show_idea("  ", ladder.steps[i], i, " (" + listed(ladder.steps[i].types) + ")");
    }
  }
}

int execute(const Request& request) {
  if (request.command == "list") {
    for (const Chapter* chapter : chapters()) {
      if (!request.chapter || request.chapter == chapter) list(*chapter, request.ladder);
    }
    return 0;
  }
  const bool bench = request.command == "bench";
  if (bench && device().simulated) {
    throw UsageError("bench needs a GPU: times on the CPU device say nothing about one");
  }
  if (request.command == "tour") {
    // ./tour has said so, for all chapters.
  } else if (device().simulated) {
    std::printf("Device: the CPU device, a simulated card. Its times say nothing about a GPU.\n");
  } else {
    std::printf("Device: %s, driver %s, CUDA %s\n", device().name.c_str(), device().driver.c_str(),
                device().runtime.c_str());
  }

  // A file that cannot be written is better known before an hour of measuring than after it.
  if (!request.json.empty()) merge_results(request.json, {}, origin(request.commit));
  Record record;
  if (request.command == "tour") {
    tour(&record);
  } else if (request.compare) {
    show_title(*request.chapter);
    const bool right = request.chapter->side_by_side.show(
        request.size, request.type.value_or(DType::fp32), request.folder);
    record.run = true, record.step_failed = !right;
  } else {
    for (const Chapter* chapter : chapters()) {
      if (request.chapter && request.chapter != chapter) continue;
      show_title(*chapter);
      for (const LadderInfo& ladder : chapter->ladders) {
        if (request.ladder && request.ladder != &ladder) continue;
        (bench ? bench_ladder : run_ladder)(*chapter, ladder, request, &record);
      }
    }
  }
  if (!record.run) std::printf("\nNothing was run; see above.\n");
  if (record.step_failed) std::printf("\nAt least one step failed; see above.\n");
  if (record.timing_failed) std::printf("\nNot everything could be timed; see above.\n");
  // A test that is left out ends with 77 (cmake/Tile.cmake), and so does a tour that leaves out a
  // step.
  constexpr int kLeftOut = 77;
  if (request.command == "tour" && record.not_run && !record.step_failed) return kLeftOut;
  // Without times a bench has not done what it was asked for, any other command has.
  return !record.run || record.step_failed || (bench && record.timing_failed) ? 1 : 0;
}

}  // namespace
}  // namespace tile

int main(int count, char** arguments) {
  tile::keep_device_reports();
  // Vectors of hundreds of megabytes come and go with every problem. Their pages stay with the
  // program: to get and clear them anew takes longer than most of what is computed there.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  try {
    return tile::execute(tile::parse_arguments(count, arguments));
  } catch (const tile::UsageError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::bad_alloc&) {
    std::cerr << "There is not enough memory for that; try a smaller --size\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
