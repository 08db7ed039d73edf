// What a correct kernel computes, and how far it may be from that.
#pragma once

#include <span>

#include "activation.hpp"
#include "harness/compare.hpp"

namespace matmul {

/// C in double, and how far a correct kernel may be from it. `a`, `b`, `c` and `bias` hold the
/// values that the kernel sees, as they are stored but without padding; c, of m x n values, is used
/// if beta is not 0, and an empty bias is none. Infinite is what the type rounds to infinity.
///
/// The bound is 4 sqrt(k) u (|A||B|) for sums whose terms have mean zero, if `zero_mean` says so,
/// and gamma_k (|A||B|) or a little more for any (Higham, "Accuracy and Stability of Numerical
/// Algorithms", 3.1), with the u of fp32, in which all types add; to it come the roundings of alpha
/// and beta, of the type, of bias and activation. It has room for a step that stores C before it
/// adds the bias, unless `fused` says that it does not. Where C overflows there, and only there,
/// such a step is right and fails.
///
/// If `exact` says that no addition of fp32 rounds, all bounds are 0: the caller rounds to C's
/// type.
///
/// `scale` is the product of those of A and B. With e4m3 tensor cores keep 14 bits while they add,
/// so the bound is wider; see sum_error() in reference.cpp.
tile::Expected reference(const Problem& problem, std::span<const double> a,
                         std::span<const double> b, std::span<const double> c, bool zero_mean,
                         std::span<const double> bias = {}, bool fused = false, double scale = 1,
                         bool exact = false);

/// y in double, and how far a correct kernel may be from it: not at all without gelu.
tile::Expected reference(const ActivateProblem& problem, std::span<const double> x);

/// The gradients, too. Of dbias the bound is that of dx in fp32, and 4 sqrt(rows) roundings of the
/// sum of magnitudes, of which some cancel (Higham and Mary, "A new approach to probabilistic
/// rounding error analysis", 2019); up to 16 rows they are more than there are additions.
struct ActivateBackwardReference {
  tile::Expected dx, dbias;
};
ActivateBackwardReference reference(const ActivateBackwardProblem& problem,
                                    std::span<const double> x, std::span<const double> dy);

}  // namespace matmul
