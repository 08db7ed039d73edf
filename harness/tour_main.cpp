// The program behind ./tour, and that of each chapter: lists, runs and times its steps.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/bench.hpp"
#include "harness/chapter.hpp"
#include "harness/device.hpp"
#include "harness/progress.hpp"
#include "harness/tour_arguments.hpp"

namespace tile {
namespace {

std::string text(std::string_view view) { return std::string(view); }

enum class Outcome { right, wrong, not_run };

/// Runs a step or a peer, and compares what it wrote.
Outcome run(const std::string& who, const Work& launch, Workload& workload) {
  std::fflush(stdout);
  Comparison comparison;
  Status status;
  std::string activity;
  {
    const Progress progress("running " + who);
    device_activity();  // forget what went before
    status = launch(nullptr);
    if (status.ok()) comparison = workload.check();
    activity = device_activity();
  }
  const std::string name = workload.name();
  if (status.code == Code::unsupported) {
    std::printf("     %s: not run: %s\n", name.c_str(), status.message.c_str());
    return Outcome::not_run;
  }
  if (!status.ok()) {
    std::printf("     %s: failed: %s\n", name.c_str(), status.message.c_str());
    return Outcome::wrong;
  }
  if (!comparison.ok()) {
    std::printf("     %s: WRONG\n%s\n", name.c_str(), comparison.message.c_str());
    return Outcome::wrong;
  }
  const std::string part = workload.checked_part();
  std::printf("     %s: right%s, the worst error is %.3g %% of its bound\n", name.c_str(),
              part.empty() ? "" : (" in " + part).c_str(), comparison.worst_ratio * 100);
  if (!activity.empty()) std::printf("     simulated: %s\n", activity.c_str());
  return Outcome::right;
}

/// What happened so far.
struct Record {
  bool run = false;          // a step was
  bool step_failed = false;  // or its result is wrong
  bool timing_failed =
      false;  // something right was not timed, or a peer that is there is not right
};

/// The peers that can be timed: those whose result is right.
std::vector<Peer> right_peers(Workload& workload, Record* record) {
  std::vector<Peer> right;
  for (Peer& peer : workload.peers()) {
    std::printf("  -  %s, to compare with\n", peer.name.c_str());
    const Outcome outcome = run(peer.name, peer.launch, workload);
    if (outcome == Outcome::wrong) record->timing_failed = true;
    if (outcome == Outcome::right) right.push_back(std::move(peer));
  }
  return right;
}

/// The type that a step runs in if nobody asks for one: fp32 if it can.
DType default_type(const StepInfo& step) {
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16, DType::tf32}) {
    if (step.types.contains(type)) return type;
  }
  return DType::fp64;
}

bool is_requested(const Request& request, std::size_t step) {
  return !request.step || *request.step == step;
}

/// Those of the requested steps, each once, in the order in which the steps come.
std::vector<DType> default_types(const Chapter& chapter, const Request& request) {
  std::vector<DType> types;
  for (std::size_t step = 0; step < chapter.steps.size(); ++step) {
    const DType type = default_type(chapter.steps[step]);
    if (is_requested(request, step) && std::ranges::find(types, type) == types.end())
      types.push_back(type);
  }
  return types;
}

/// Runs the requested steps on one problem and, on a GPU, times those that are right.
void run_problem(const Chapter& chapter, const Request& request, MakeWorkload make,
                 const std::vector<std::int64_t>& size, DType type, std::vector<Result>* results,
                 Record* record) {
  std::unique_ptr<Workload> workload;
  try {
    const Progress progress("making inputs");
    workload = make(size, type);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
  if (!workload) return;
  const bool bench = request.command == "bench";
  std::vector<std::size_t> to_time;
  for (std::size_t step = 0; step < chapter.steps.size(); ++step) {
    if (!is_requested(request, step) || !workload->takes(step)) continue;
    const StepInfo& info = chapter.steps[step];
    // Whoever asks for a type is told which steps do not have it. Otherwise each has its own, or in
    // a benchmark all of its own.
    if (bench && !info.types.contains(type)) continue;
    if (!bench && !request.type && default_type(info) != type) continue;
    std::printf("  %zu  %s: %s\n", step + 1, text(info.name).c_str(), text(info.idea).c_str());
    const Work launch = [&](void* stream) { return workload->launch(step, stream); };
    const Outcome outcome = run(text(info.name), launch, *workload);
    if (outcome != Outcome::not_run) record->run = true;
    if (outcome == Outcome::wrong) record->step_failed = true;
    if (outcome == Outcome::right) to_time.push_back(step);
  }
  if (device().simulated || workload->bytes() == 0 || to_time.empty()) return;
  const std::vector<Peer> peers = right_peers(*workload, record);
  const Status timed = time_steps(chapter, *workload, to_time, peers, bench, results);
  if (timed.ok()) return;
  std::printf("     not timed: %s\n", timed.message.c_str());
  record->timing_failed = true;
}

void show_title(const Chapter& chapter) {
  std::printf("\n%s  %s\n", text(chapter.name).c_str(), text(chapter.title).c_str());
}

void list() {
  for (const Chapter* chapter : chapters()) {
    show_title(*chapter);
    for (std::size_t i = 0; i < chapter->steps.size(); ++i) {
      const StepInfo& step = chapter->steps[i];
      std::printf("  %zu  %s: %s (%s)\n", i + 1, text(step.name).c_str(), text(step.idea).c_str(),
                  listed(step.types).c_str());
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
        "Device: the CPU device, a simulated card. It is exact about results and says nothing "
        "about time.\n");
  } else {
    std::printf("Device: %s, driver %s, CUDA %s\n", device().name.c_str(), device().driver.c_str(),
                device().runtime.c_str());
  }

  // A file that cannot be written is better known before an hour of measuring than after it.
  if (!request.json.empty()) merge_results(request.json, {}, origin(request.commit));
  Record record;
  std::vector<Result> results;
  for (const Chapter* chapter : chapters()) {
    if (request.chapter && request.chapter != chapter) continue;
    show_title(*chapter);
    std::vector<std::vector<std::int64_t>> sizes{device().simulated ? chapter->size_on_cpu
                                                                    : chapter->size_on_gpu};
    if (bench) sizes = chapter->benchmark_sizes;
    std::vector<DType> types = bench ? chapter->benchmark_types : default_types(*chapter, request);
    if (request.type) types = {*request.type};
    if (!request.size.empty()) sizes = {request.size};
    std::vector<MakeWorkload> makers = chapter->make;
    if (bench) {
      makers.insert(makers.end(), chapter->make_for_benchmark.begin(),
                    chapter->make_for_benchmark.end());
    }
    for (const DType type : types) {
      for (const auto& size : sizes) {
        for (const MakeWorkload make : makers) {
          run_problem(*chapter, request, make, size, type, &results, &record);
        }
      }
    }
    if (request.command == "tour") std::printf("  Next: %s\n", text(chapter->next).c_str());
  }
  if (!request.json.empty()) merge_results(request.json, results, origin(request.commit));
  if (!record.run) std::printf("\nNothing was run; see above.\n");
  if (record.step_failed) std::printf("\nAt least one step failed; see above.\n");
  if (record.timing_failed) std::printf("\nNot everything could be timed; see above.\n");
  // Without times a bench has not done what it was asked for, any other command has.
  return !record.run || record.step_failed || (bench && record.timing_failed) ? 1 : 0;
}

}  // namespace
}  // namespace tile

int main(int count, char** arguments) {
  tile::keep_device_reports();
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
