// Matrices too large to pass through the host: filled and checked on the device.
#pragma once

#include "inputs.hpp"
#include "softmax.hpp"

namespace softmax {

/// Makes inputs whose results are exact, from random bits that depend on row and column. Forward,
/// x becomes 0 or -infinity, as likely. Backward, y becomes 1 or 0, one in four being 1, and dy
/// -1, 0 or 1.
tile::Status fill_exact(const Problem& problem, const Buffers& buffers);

/// Counts the elements of the output that are not what those inputs give: without a logarithm, to
/// the bit. It makes the inputs anew and reads none. Rows are up to 2^24 columns long.
tile::Status count_wrong(const Problem& problem, const Buffers& buffers, std::int64_t* wrong);

}  // namespace softmax
