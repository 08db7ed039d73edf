// Inputs made on the device, for problems too large to pass through the host.
#pragma once

#include <cstdint>

#include "harness/dtype.hpp"
#include "harness/status.hpp"

namespace softmax {

/// Rows of `cols` elements, ld from the start of one to the start of the next.
struct Matrix {
  tile::DType type;
  void* data;
  std::int64_t rows, cols, ld;
};

/// Each element becomes a random number that depends on the seed, the row and the column:
/// bell-shaped with this mean and deviation, and within 3.5 deviations.
tile::Status fill_random(const Matrix& matrix, std::uint64_t seed, double mean, double deviation);

}  // namespace softmax
