#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tile/host/dtype.hpp"

namespace tile {

/// Reads `count` packed elements of `dtype` from host memory. Exact: every value of every type is a
/// double. NaNs keep their sign and the leading bits of their payload, so a poison stays known.
std::vector<double> to_double(const void* data, DType dtype, std::int64_t count);

/// Packs `values` as elements of `dtype`, each rounded once to the nearest value (ties to even,
/// overflow to infinity).
std::vector<std::byte> from_double(std::span<const double> values, DType dtype);

/// Rounds each value to `dtype`: what a kernel sees of it.
void round_to(std::span<double> values, DType dtype);

/// The same for `values` rounded to `dtype`.
std::vector<double> rounded(std::span<const double> values, DType dtype);

}  // namespace tile
