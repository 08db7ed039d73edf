// The steps of a ladder: the table from which tests, benchmark, tour, C interface and pages are
// made.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
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

/// A rung of a ladder. `Arguments` describe a call: a problem and its buffers, or one struct that
/// has both. The first has the element type as `type`.
template <class... Arguments>
struct Step {
  using Problem = std::tuple_element_t<0, std::tuple<Arguments...>>;

  std::string_view name;  ///< that of its file, without the ladder's name and its number
  std::string_view idea;  ///< one line
  EnumSet<DType> types;
  EnumSet<Feature> needs;
  /// Whether the step's own kernel takes a valid problem; if not, the Status says why. It may also
  /// decline where an earlier step is faster. Null: it takes every problem.
  Status (*takes)(const Arguments&..., const Device&);
  /// The earlier step that runs what this one does not take. Empty: none does.
  std::string_view otherwise;
  Shows shows;
  /// Starts the step's own kernel in the stream, a cudaStream_t, on a problem that is valid, not
  /// empty, and taken. Outputs are untouched if it fails.
  Status (*launch)(const Arguments&..., void* stream);
  /// The device memory that it needs besides its arguments, for valid sizes; INT64_MAX if they
  /// overflow. Null: none.
  std::int64_t (*workspace_bytes)(const Problem&) = nullptr;
  /// It gives up speed for something that not every caller wants: only one who names it runs it.
  bool on_request = false;
  /// Whether a call that names no step gets this one, if its kernel takes more problems than it is
  /// the fastest for. Null: always.
  bool (*is_best)(const Problem&) = nullptr;
  /// A kernel rounds its output and stores it, and a second one reads that, adds to it, and rounds
  /// again. No card's best step may do so.
  bool rounds_twice = false;
  /// What its kernel's name begins with, if not the ladder's `kernels` and the step's name.
  std::string_view kernel = "";
};

/// The problem among the arguments of a call.
template <class Problem, class... Rest>
constexpr const Problem& first(const Problem& problem, const Rest&...) {
  return problem;
}

/// The bytes of a step's workspace.
template <class... Arguments>
std::int64_t workspace_bytes_of(const Step<Arguments...>& step,
                                const typename Step<Arguments...>::Problem& problem) {
  return step.workspace_bytes ? step.workspace_bytes(problem) : 0;
}

/// The file of a step, without ".cu": "forward3_shuffles", and "attention/backward1_composed" of
/// the ladder "attention backward". Steps count from 0.
inline std::string file_of_step(std::string_view ladder, std::size_t step, std::string_view name) {
  std::string file(ladder.empty() ? "step" : ladder);
  if (const std::size_t space = file.find(' '); space != std::string::npos) {
    file[space] = '/';
  } else if (!ladder.empty() && ladder != "forward" && ladder != "backward") {
    file += "/forward";
  }
  return file.append(std::to_string(step + 1)).append("_").append(name);
}

/// "fp32, fp16, bf16".
std::string listed(EnumSet<DType> types);

/// Why a step with these types and needs cannot run here in `type`: an unsupported() Status, or ok.
Status check_requirements(EnumSet<DType> types, EnumSet<Feature> needs, DType type);

/// Whether the step itself runs the valid problem on this device.
template <class... Arguments>
Status check_step(const Step<Arguments...>& step, const std::type_identity_t<Arguments>&... of) {
  TILE_TRY(check_requirements(step.types, step.needs, first(of...).type));
  return step.takes ? step.takes(of..., device()) : Status{};
}

/// Which step runs a problem that another was asked for.
struct Choice {
  std::size_t step = 0;
  std::string why;  ///< why not the one asked for; empty if it is that
};

/// The steps that solve one kind of problem, from the first and simplest to the last.
template <class... Arguments>
struct Ladder {
  using Step = tile::Step<Arguments...>;
  using Problem = typename Step::Problem;
  using Buffers = std::tuple_element_t<sizeof...(Arguments) - 1, std::tuple<Arguments...>>;

  /// Of the command line and of the files: "forward" for forward1_thread_per_row.cu, "attention
  /// backward" for attention/backward1_fused.cu, "attention" for attention/forward1_composed.cu.
  /// Empty if the chapter has one ladder, whose files are step1_….
  std::string_view name;
  /// What the names of its kernels begin with. The rest begins with the step's name.
  std::string_view kernels;
  std::span<const Step> steps;
  /// What is checked once, before any step. The Status names the argument that is wrong.
  Status (*validate)(const Arguments&...);
  /// Whether there is nothing to compute, so that nothing is launched.
  bool (*is_empty)(const Problem&);

  /// The number of the step of this name, or of none the number of steps.
  friend std::size_t find_step(const Ladder& ladder, std::string_view wanted) {
    std::size_t at = 0;
    while (at < ladder.steps.size() && ladder.steps[at].name != wanted) ++at;
    return at;
  }

  /// Why no step runs a call: the reason of the step that `choose` would find with more workspace,
  /// or else `why`.
  template <class Choose>
  Status reason(Choose choose, const Arguments&... of, const Status& why) const {
    if constexpr (sizeof...(Arguments) == 1 && requires(Problem p) { p.workspace_bytes; }) {
      Problem p = first(of...);
      Choice with_more;
      if (std::exchange(p.workspace_bytes, INT64_MAX) < INT64_MAX && choose(p, &with_more).ok()) {
        return check_step(steps[with_more.step], of...);
      }
    }
    return why;
  }

  /// Finds the step that runs a valid problem: `wanted`, or the first on the way of `otherwise`
  /// that takes it. If none does, fails with the reason of the one that needs more workspace and
  /// nothing else, or else with that of `wanted`.
  friend Status choose_step(const Ladder& ladder, std::size_t wanted, const Arguments&... of,
                            Choice* choice) {
    Status refused;
    for (std::size_t at = wanted; at < ladder.steps.size();
         at = find_step(ladder, ladder.steps[at].otherwise)) {
      Status here = check_step(ladder.steps[at], of...);
      if (here.ok()) {
        *choice = {at, refused.message};
        return {};
      }
      if (refused.ok()) std::swap(refused, here);  // nvcc warns of an assignment here
    }
    const auto choose = [&](const auto& p, Choice* found) {
      return choose_step(ladder, wanted, p, found);
    };
    return ladder.reason(choose, of..., refused);
  }

  /// Finds the best step here: the last whose own kernel takes the valid problem, which is not
  /// empty, of those that run unasked. Fails, if none does, with the reason of the one that comes
  /// closest. That is the step that needs more workspace and nothing else; or the first, which
  /// takes the most, of those that have the type and whose needs the card meets, or at least the
  /// type.
  friend Status choose_last(const Ladder& ladder, const Arguments&... of, Choice* choice) {
    Status why;
    int why_rank = -1;
    for (std::size_t at = ladder.steps.size(); at-- > 0;) {
      const Step& step = ladder.steps[at];
      if (step.on_request || (step.is_best && !step.is_best(first(of...)))) continue;
      Status here = check_step(step, of...);
      if (here.ok()) {
        *choice = {at, {}};
        return {};
      }
      const DType type = first(of...).type;
      const bool can_run = check_requirements(step.types, step.needs, type).ok();
      const int rank = can_run ? 2 : step.types.contains(type) ? 1 : 0;
      if (rank >= why_rank) std::swap(why, here), why_rank = rank;
    }
    const auto choose = [&](const auto& p, Choice* found) { return choose_last(ladder, p, found); };
    return ladder.reason(choose, of..., why);
  }

  /// What a caller of a step does: validates once, chooses, and launches unless there is nothing to
  /// compute. `choice` may be null.
  friend Status run(const Ladder& ladder, std::size_t wanted, const Arguments&... of, void* stream,
                    Choice* choice = nullptr) {
    TILE_TRY(ladder.validate(of...));
    Choice chosen{wanted, {}};
    Status status;
    if (!ladder.is_empty(first(of...))) {
      status = choose_step(ladder, wanted, of..., &chosen);
      if (status.ok()) status = ladder.steps[chosen.step].launch(of..., stream);
    }
    if (choice) *choice = std::move(chosen);
    return status;
  }

  /// Validates, and runs the last step.
  friend Status run_last(const Ladder& ladder, const Arguments&... of, void* stream) {
    TILE_TRY(ladder.validate(of...));
    if (ladder.is_empty(first(of...))) return {};
    Choice choice;
    TILE_TRY(choose_last(ladder, of..., &choice));
    return ladder.steps[choice.step].launch(of..., stream);
  }
};

/// The bytes of the workspace of the last step that takes this call, whatever its tensors'
/// addresses are; 0 if none does.
template <class Call>
std::int64_t bytes_of_last(const Ladder<Call>& ladder, Call call) {
  call.workspace = nullptr;
  call.workspace_bytes = INT64_MAX;
  Choice choice;
  if (!choose_last(ladder, call, &choice).ok()) return 0;
  return workspace_bytes_of(ladder.steps[choice.step], call);
}

/// A step without the types of its problem.
struct StepInfo {
  std::string_view name, idea;
  EnumSet<DType> types;
  EnumSet<Feature> needs;
  std::string_view otherwise;
  Shows shows;
  std::string_view kernel = "";
};

/// The type that a step runs in if none is asked for: the first of fp32, bf16, fp16 and tf32 for
/// which the card has what the step needs. If it has that for none, the first of the step's.
DType default_type(const StepInfo& step);

template <class Ladder>
std::vector<StepInfo> infos_of(const Ladder& ladder) {
  std::vector<StepInfo> infos;
  for (const auto& s : ladder.steps) {
    infos.push_back({s.name, s.idea, s.types, s.needs, s.otherwise, s.shows, s.kernel});
  }
  return infos;
}

}  // namespace tile
