// Matrices too large to pass through the host: filled and checked on the device.
#pragma once

#include "softmax.hpp"

namespace softmax {

/// Makes inputs whose results are exact, from random bits that depend on row and column. Forward,
/// x becomes 0 or -infinity, as likely. Backward, y becomes 1 or 0, one in four being 1, and dy
/// -1, 0 or 1.
tile::Status fill_exact(const ForwardProblem& problem, void* x);
tile::Status fill_exact(const BackwardProblem& problem, void* y, void* dy);

/// Counts the elements of the output that are not what those inputs give: without a logarithm, to
/// the bit. It makes the inputs anew and reads none. Rows are up to 2^24 columns long.
tile::Status count_wrong(const ForwardProblem& problem, const void* y, std::int64_t* wrong);
tile::Status count_wrong(const BackwardProblem& problem, const void* dx, std::int64_t* wrong);

}  // namespace softmax
