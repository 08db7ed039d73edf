// The steps of a ladder: the table from which tests, benchmark, tour, C interface and pages are
// made.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tile/host/device.hpp"
#include "tile/host/dtype.hpp"
#include "tile/host/status.hpp"

namespace tile {

/// A set of enumerators, at most 32 of them.
template <class Enum>
class EnumSet {
 public:
  constexpr EnumSet(std::initializer_list<Enum> members) {
    for (const Enum member : members) bits_ |= bit(member);
  }
  constexpr bool contains(Enum member) const { return bits_ & bit(member); }
  constexpr bool empty() const { return bits_ == 0; }

 private:
  static constexpr std::uint32_t bit(Enum e) {
    const auto number = static_cast<unsigned>(e);  // a caller of C can pass any
    return number < 32 ? 1u << number : 0;
  }
  std::uint32_t bits_ = 0;
};

/// What a card can have and a step can need.
enum class Feature {
  fp16_mma,  ///< compute capability 7.5 and up: tensor cores that multiply fp16
  cp_async,  ///< 8.0 and up, as is bf16_mma
  bf16_mma,  ///< tensor cores that multiply bf16 and tf32; a step that needs it needs fp16_mma
             ///< instead for a problem in fp16, and none for one in fp32
  fp8_mma,   ///< 8.9 and up
  tma,       ///< 9.0 and up, as is cluster
  cluster,
  wgmma,  ///< 9.0 only
};

inline constexpr Feature kFeatures[] = {Feature::fp16_mma, Feature::cp_async, Feature::bf16_mma,
                                        Feature::fp8_mma,  Feature::tma,      Feature::cluster,
                                        Feature::wgmma};

std::string_view name(Feature feature);

/// Whether a card of this compute capability (80 for 8.0) has the feature.
bool has_feature(int capability, Feature feature);

/// The sizes of two problems, in the order of the chapter's extents, as --size takes them: a small
/// one for tests and the CPU device's tour, a large one to be timed on a GPU. The step's own kernel
/// runs on both, in each of its types.
struct Shows {
  static constexpr std::size_t kMostExtents = 8;
  std::array<std::int64_t, kMostExtents> small, large;
};

/// A rung of a ladder.
template <class Problem, class Buffers>
struct Step {
  std::string_view name;  ///< that of its file, without the ladder's name and its number
  std::string_view idea;  ///< one line
  EnumSet<DType> types;
  EnumSet<Feature> needs;
  /// Whether the step's own kernel takes a valid problem; if not, the Status says why. It may also
  /// decline where an earlier step is faster. Null: it takes every problem.
  Status (*takes)(const Problem&, const Buffers&, const Device&);
  /// The earlier step that runs what this one does not take. Empty: none does.
  std::string_view otherwise;
  Shows shows;
  /// Starts the step's own kernel in the stream, a cudaStream_t, on a problem that is valid, not
  /// empty, and taken. Outputs are untouched if it fails.
  Status (*launch)(const Problem&, const Buffers&, void* stream);
};

/// The steps that solve one kind of problem, from the first and simplest to the last.
template <class ProblemType, class BuffersType>
struct Ladder {
  using Problem = ProblemType;
  using Buffers = BuffersType;
  using Step = tile::Step<Problem, Buffers>;

  /// Of the command line and of the files: "forward" for forward1_thread_per_row.cu, "attention
  /// backward" for attention_backward1_fused.cu. Empty if the chapter has one ladder, whose files
  /// are step1_….
  std::string_view name;
  /// What the names of its kernels begin with. The rest begins with the step's name.
  std::string_view kernels;
  std::span<const Step> steps;
  /// What is checked once, before any step. The Status names the argument that is wrong.
  Status (*validate)(const Problem&, const Buffers&);
  /// Whether there is nothing to compute, so that nothing is launched.
  bool (*is_empty)(const Problem&);
};

/// "forward3_shuffles": the file of a step, without ".cu". Steps count from 0.
inline std::string file_of_step(std::string_view ladder, std::size_t step, std::string_view name) {
  std::string file(ladder.empty() ? "step" : ladder);
  for (char& c : file) c = c == ' ' ? '_' : c;
  return file.append(std::to_string(step + 1)).append("_").append(name);
}

/// "fp32, fp16, bf16".
std::string listed(EnumSet<DType> types);

/// Why a step with these types and needs cannot run here in `type`: an unsupported() Status, or ok.
Status check_requirements(EnumSet<DType> types, EnumSet<Feature> needs, DType type);

/// Whether the step itself runs the valid problem on this device.
template <class Problem, class Buffers>
Status check_step(const Step<Problem, Buffers>& step, const Problem& problem,
                  const Buffers& buffers) {
  if (Status s = check_requirements(step.types, step.needs, problem.type); !s.ok()) return s;
  return step.takes ? step.takes(problem, buffers, device()) : Status{};
}

/// The number of the step of this name, or of none the number of steps.
template <class Ladder>
std::size_t find_step(const Ladder& ladder, std::string_view name) {
  std::size_t at = 0;
  while (at < ladder.steps.size() && ladder.steps[at].name != name) ++at;
  return at;
}

/// Which step runs a problem that another was asked for.
struct Choice {
  std::size_t step = 0;
  std::string why;  ///< why not the one asked for; empty if it is that
};

/// Finds the step that runs a valid problem: `wanted`, or the first on the way of `otherwise` that
/// takes it. Fails, with what `wanted` says, if none does.
template <class Problem, class Buffers>
Status choose(const Ladder<Problem, Buffers>& ladder, std::size_t wanted, const Problem& problem,
              const Buffers& buffers, Choice* choice) {
  Status refused;
  for (std::size_t at = wanted; at < ladder.steps.size();
       at = find_step(ladder, ladder.steps[at].otherwise)) {
    Status here = check_step(ladder.steps[at], problem, buffers);
    if (here.ok()) {
      *choice = {at, refused.message};
      return {};
    }
    if (refused.ok()) std::swap(refused, here);  // nvcc warns of an assignment here
  }
  return refused;
}

/// What a caller of a step does: validates once, chooses, and launches unless there is nothing to
/// compute. `choice` may be null.
template <class Problem, class Buffers>
Status run(const Ladder<Problem, Buffers>& ladder, std::size_t wanted, const Problem& problem,
           const Buffers& buffers, void* stream, Choice* choice = nullptr) {
  if (Status s = ladder.validate(problem, buffers); !s.ok()) return s;
  Choice chosen{wanted, {}};
  Status status;
  if (!ladder.is_empty(problem)) {
    status = choose(ladder, wanted, problem, buffers, &chosen);
    if (status.ok()) status = ladder.steps[chosen.step].launch(problem, buffers, stream);
  }
  if (choice) *choice = std::move(chosen);
  return status;
}

/// The last step of a ladder with the problem's type, or the one that it falls back to: what a
/// composition of ladders runs.
template <class Problem, class Buffers>
Status choose_last(const Ladder<Problem, Buffers>& ladder, const Problem& problem,
                   const Buffers& buffers, Choice* choice) {
  std::size_t count = ladder.steps.size();
  while (count > 1 && !ladder.steps[count - 1].types.contains(problem.type)) --count;
  return choose(ladder, count - 1, problem, buffers, choice);
}

/// Validates, and runs that step.
template <class Problem, class Buffers>
Status run_last(const Ladder<Problem, Buffers>& ladder, const Problem& problem,
                const Buffers& buffers, void* stream) {
  if (Status s = ladder.validate(problem, buffers); !s.ok()) return s;
  if (ladder.is_empty(problem)) return {};
  Choice choice;
  if (Status s = choose_last(ladder, problem, buffers, &choice); !s.ok()) return s;
  return ladder.steps[choice.step].launch(problem, buffers, stream);
}

/// A step without the types of its problem.
struct StepInfo {
  std::string_view name, idea;
  EnumSet<DType> types;
  EnumSet<Feature> needs;
  std::string_view otherwise;
  Shows shows;
};

/// The type that a step runs in if none is asked for: the first of fp32, bf16, fp16 and tf32 for
/// which the card has what the step needs. If it has that for none, the first of the step's.
DType default_type(const StepInfo& step);

template <class Ladder>
std::vector<StepInfo> infos_of(const Ladder& ladder) {
  std::vector<StepInfo> infos;
  for (const auto& s : ladder.steps) {
    infos.push_back({s.name, s.idea, s.types, s.needs, s.otherwise, s.shows});
  }
  return infos;
}

}  // namespace tile
