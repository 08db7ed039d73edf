// One rung of a chapter's ladder. The table of steps drives tests, benchmark, tour and docs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "harness/dtype.hpp"
#include "harness/status.hpp"

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

/// Which of the two passes of training a problem belongs to: from the inputs to the outputs, or
/// from the gradient of the outputs to that of the inputs.
enum class Direction { forward, backward };

constexpr std::string_view name(Direction direction) {
  return direction == Direction::forward ? "forward" : "backward";
}

/// What a card can have and a step can need.
enum class Feature {
  cp_async,  ///< compute capability 8.0 and up, as is bf16_mma
  bf16_mma,
  fp8_mma,  ///< 8.9 and up
  tma,      ///< 9.0 and up, as is cluster
  cluster,
  wgmma,  ///< 9.0 only
};

inline constexpr Feature kFeatures[] = {Feature::cp_async, Feature::bf16_mma, Feature::fp8_mma,
                                        Feature::tma,      Feature::cluster,  Feature::wgmma};

std::string_view name(Feature feature);

/// Whether a card of this compute capability (80 for 8.0) has the feature.
bool has_feature(int capability, Feature feature);

template <class Problem, class Buffers>
struct Step {
  std::string_view name;
  std::string_view idea;  ///< one line
  EnumSet<DType> types;
  EnumSet<Feature> needs;
  /// Whether this step takes the problem, beyond its element type and features.
  Status (*supports)(const Problem&);
  /// Starts the kernel in the stream, a cudaStream_t. Outputs are untouched if it fails.
  Status (*launch)(const Problem&, const Buffers&, void* stream);
};

/// A step without the types of its problem.
struct StepInfo {
  std::string_view name, idea;
  EnumSet<DType> types;
  EnumSet<Feature> needs;
};

template <class Problem, class Buffers, std::size_t kCount>
std::vector<StepInfo> infos_of(const Step<Problem, Buffers> (&table)[kCount]) {
  std::vector<StepInfo> infos;
  for (const auto& step : table) infos.push_back({step.name, step.idea, step.types, step.needs});
  return infos;
}

/// "fp32, fp16, bf16".
std::string listed(EnumSet<DType> types);

/// Why a step with these types and needs cannot run here: an unsupported() Status, or ok.
Status check_requirements(EnumSet<DType> types, EnumSet<Feature> needs, DType type);

}  // namespace tile
