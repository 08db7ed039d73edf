#include "tile/host/step.hpp"

#include "tile/host/device.hpp"

namespace tile {

std::string_view name(Feature feature) {
  switch (feature) {
    case Feature::fp16_mma: return "fp16_mma";
    case Feature::cp_async: return "cp_async";
    case Feature::bf16_mma: return "bf16_mma";
    case Feature::fp8_mma: return "fp8_mma";
    case Feature::tma: return "tma";
    case Feature::cluster: return "cluster";
    case Feature::wgmma: return "wgmma";
  }
  return "unknown feature";
}

bool has_feature(int capability, Feature feature) {
  switch (feature) {
    case Feature::fp16_mma: return capability >= 75;
    case Feature::cp_async:
    case Feature::bf16_mma: return capability >= 80;
    case Feature::fp8_mma: return capability >= 89;
    case Feature::tma:
    case Feature::cluster: return capability >= 90;
    case Feature::wgmma: return capability == 90;
  }
  return false;
}

std::string listed(EnumSet<DType> types) {
  std::string all;
  for (const DType type : kDTypes) {
    if (types.contains(type)) all.append(all.empty() ? "" : ", ").append(name(type));
  }
  return all;
}

Status check_requirements(EnumSet<DType> types, EnumSet<Feature> needs, DType type) {
  if (!types.contains(type)) {
    return unsupported("type", std::string(name(type)) + " is not one of " + listed(types));
  }
  for (Feature feature : kFeatures) {
    if (!needs.contains(feature)) continue;
    if (feature == Feature::bf16_mma && type == DType::fp32) continue;
    if (feature == Feature::bf16_mma && type == DType::fp16) feature = Feature::fp16_mma;
    if (!has_feature(device().capability, feature)) {
      return unsupported(name(feature), device().name + " does not have it");
    }
  }
  return {};
}

DType default_type(const StepInfo& step) {
  constexpr DType kInOrder[] = {DType::fp32, DType::bf16, DType::fp16, DType::tf32, DType::e4m3};
  for (const DType type : kInOrder) {
    if (check_requirements(step.types, step.needs, type).ok()) return type;
  }
  for (const DType type : kInOrder) {
    if (step.types.contains(type)) return type;
  }
  return DType::fp64;
}

}  // namespace tile
