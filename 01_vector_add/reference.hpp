// What a correct kernel computes.
#pragma once

#include <span>

#include "harness/compare.hpp"
#include "vector_add.hpp"

namespace vector_add {

/// The exact sum of every pair, rounded once to the type, with bound 0: a correct kernel gives the
/// same bits. `a` and `b` hold values of the type.
tile::Expected reference(tile::DType type, std::span<const double> a, std::span<const double> b);

}  // namespace vector_add
