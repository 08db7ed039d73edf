// What correct kernels compute, and how far they may be from it.
#pragma once

#include <span>

#include "harness/compare.hpp"
#include "softmax.hpp"

namespace softmax {

/// y and dx in double, and how far a correct kernel may be from them. x, y and dy hold the values
/// that the kernel sees, without padding.
tile::Expected reference(const ForwardProblem& problem, std::span<const double> x);
tile::Expected reference(const BackwardProblem& problem, std::span<const double> y,
                         std::span<const double> dy);

}  // namespace softmax
