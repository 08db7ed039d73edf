// What correct kernels compute, and how far they may be from it.
#pragma once

#include <span>

#include "harness/compare.hpp"
#include "layernorm.hpp"

namespace layernorm {

/// What each pass computes in double, and how far a correct kernel may be from it. Inputs hold the
/// values that the kernel sees, without padding; an empty gamma is all ones, an empty beta all
/// zeros.
struct ForwardReference {
  tile::Expected y, mean, rstd;
};
/// What LayerNorm subtracts from x before it sums: x_0 of the row, as the steps do; or nothing, as
/// an answer to an exercise may, whose bound then grows with the distance of the row from zero.
enum class Origin { first, zero };
ForwardReference reference(const ForwardProblem& problem, std::span<const double> x,
                           std::span<const double> gamma, std::span<const double> beta,
                           Origin origin = Origin::first);

/// `mean` and `rstd` are what the kernel is given: fp32 values, as the forward pass rounded them.
struct BackwardReference {
  tile::Expected dx, dgamma, dbeta;
};
BackwardReference reference(const BackwardProblem& problem, std::span<const double> x,
                            std::span<const double> gamma, std::span<const double> mean,
                            std::span<const double> rstd, std::span<const double> dy);

}  // namespace layernorm
