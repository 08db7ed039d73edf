// The methods' positions for far keys, and their tables.
#include "method/tables.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "tile/host/attention.hpp"
#include "tile/host/text.hpp"

namespace windowed_rope::method {

using tile::FarRotation;

std::string_view name(FarRotation method) {
  switch (method) {
    case FarRotation::none: return "none";
    case FarRotation::rerope: return "rerope";
    case FarRotation::leaky_rerope: return "leaky_rerope";
    case FarRotation::self_extend: return "self_extend";
  }
  return "?";
}

tile::Status validate(const tile::Rotary& rotary, std::int64_t window) {
  const double factor = rotary.far_factor;
  if (name(rotary.far) == "?" || rotary.far == FarRotation::none) {
    return tile::invalid_argument("far", "is none");
  }
  if (window < 0) return tile::invalid_argument("window", std::to_string(window) + " is negative");
  if (rotary.far == FarRotation::rerope) return {};
  if (!(factor >= 1) || !std::isfinite(factor)) {
    return tile::invalid_argument("far_factor", tile::number(factor) + " is not 1 or more");
  }
  if (rotary.far == FarRotation::self_extend && factor != std::floor(factor)) {
    return tile::invalid_argument("far_factor", tile::number(factor) + " is not a whole number");
  }
  return {};
}

// snippet-begin places
double far_query_place(const tile::Rotary& rotary, std::int64_t window, std::int64_t position) {
  const auto i = static_cast<double>(position), w = static_cast<double>(window);
  const double factor = rotary.far_factor;
  switch (rotary.far) {
    case FarRotation::none: return i;
    case FarRotation::rerope: return w;
    case FarRotation::leaky_rerope: return (i + w * (factor - 1)) / factor;
    case FarRotation::self_extend: return std::floor(i / factor) + w - std::floor(w / factor);
  }
  return i;
}

double far_key_place(const tile::Rotary& rotary, std::int64_t position) {
  const auto j = static_cast<double>(position);
  switch (rotary.far) {
    case FarRotation::none: return j;
    case FarRotation::rerope: return 0;
    case FarRotation::leaky_rerope: return j / rotary.far_factor;
    case FarRotation::self_extend: return std::floor(j / rotary.far_factor);
  }
  return j;
}
// snippet-end places

rope::Tables make_tables(const tile::Rotary& rotary, std::int64_t window,
                         std::span<const double> frequencies, std::int64_t positions) {
  std::vector<double> places;
  for (std::int64_t p = 0; p < positions; ++p) places.push_back(static_cast<double>(p));
  for (std::int64_t p = 0; p < positions; ++p) {
    places.push_back(far_query_place(rotary, window, p));
  }
  for (std::int64_t p = 0; p < positions; ++p) places.push_back(far_key_place(rotary, p));
  return rope::make_tables(frequencies, places, rotary.attention_factor);
}

}  // namespace windowed_rope::method
