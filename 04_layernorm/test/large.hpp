// Matrices too large to pass through the host: filled and checked on the device. Their rows repeat,
// row r is row r % period of a small matrix, so that the reference of that one serves for all.
#pragma once

#include <span>

#include "harness/compare.hpp"
#include "tile/host/dtype.hpp"
#include "tile/host/status.hpp"

namespace layernorm {

/// Rows of `cols` elements, ld from the start of one to the start of the next.
struct Matrix {
  tile::DType type;
  void* data;
  std::int64_t rows, cols, ld;

  std::int64_t bytes() const {
    return ((rows - 1) * ld + cols) * static_cast<std::int64_t>(tile::size_bytes(type));
  }
};

/// Repeats `pattern`, rows of matrix.cols values of the type.
tile::Status repeat_rows(const Matrix& matrix, std::span<const double> pattern);

/// Whether the matrix is the repeated `expected`, of shape {period, matrix.cols}, and all between
/// its rows still has all bits one. Fails with the number of elements that are wrong, and the
/// first.
tile::Status check_repeated(const Matrix& matrix, const tile::Expected& expected);

}  // namespace layernorm
