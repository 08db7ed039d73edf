#pragma once

#include <cstdint>
#include <vector>

#include "tile/host/dtype.hpp"

namespace tile {

// Inputs for tests. All are deterministic, the same on every compiler and machine, and values of
// `dtype` already: the reference sees exactly what the kernel sees. Random element i depends on the
// seed and on i alone, so a longer vector begins with the shorter one. Of tf32, random values have
// the 24 bits of fp32, which a kernel must round, and special ones the 11 of tf32. `count` must not
// be negative (std::invalid_argument).

/// Uniform in [lo, hi].
std::vector<double> uniform(std::int64_t count, DType dtype, std::uint64_t seed, double lo,
                            double hi);

/// Bell-shaped with variance 1: the sum of twelve uniform numbers less 6, which needs no log or cos
/// of the host's and never leaves mean + [-6, 6].
std::vector<double> normal(std::int64_t count, DType dtype, std::uint64_t seed, double mean = 0);

/// Uniform integers in [lo, hi], whose sums and products a kernel can get exactly right. Integers
/// beyond 1/u are not exact in the type: std::invalid_argument.
std::vector<double> integers(std::int64_t count, DType dtype, std::uint64_t seed, std::int64_t lo,
                             std::int64_t hi);

/// All that breaks kernels, over and over: +-0, the smallest and the largest denormals, +-the
/// smallest normal number, +-the largest, +-Inf, NaN, +-1e4 and ramps up and down. The period of 31
/// is prime, so that over a long vector every lane of a warp or tile meets every value.
std::vector<double> adversarial(std::int64_t count, DType dtype);

/// The same without Inf and NaN, for operations that would spread them over a whole row.
std::vector<double> adversarial_finite(std::int64_t count, DType dtype);

/// Rows on which exp(x) without the row's maximum taken off gives only zeros, and which lie below
/// a mask of -1e4: values around -20480, apart by 1/4 or by what the type resolves there.
std::vector<double> all_very_negative(std::int64_t count, DType dtype);

/// Sizes at and around a tile of `tile` >= 1 elements and two of them, and odd ones unlike any
/// tile: 0, 1, 2, T-1, T, T+1, 2T-1, 2T+1, 97, 113, 257, 587, 799, 1023, 1025; ascending, each
/// once.
std::vector<std::int64_t> odd_sizes(std::int64_t tile);

/// Offsets in elements at which a pointer is aligned, and aligned to no vector of elements.
std::vector<std::int64_t> pointer_offsets();

}  // namespace tile
