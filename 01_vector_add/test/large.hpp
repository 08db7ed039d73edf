// Vectors too large to pass through the host: filled and checked on the device.
#pragma once

#include <cstdint>

#include "tile/host/status.hpp"

namespace vector_add {

/// a[i] = i mod 4096 and b[i] = i mod 977, in fp32: sums are exact, and i and i + 2^31 or 2^32 give
/// different ones. c[i] becomes NaN, unless c is a. All have n elements of device memory.
tile::Status fill_large(float* a, float* b, float* c, std::int64_t n);

/// Counts the elements with c[i] != (i mod 4096) + (i mod 977).
tile::Status count_wrong(const float* c, std::int64_t n, std::int64_t* wrong);

}  // namespace vector_add
