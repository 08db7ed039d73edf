// Products too large to pass through the host: filled and checked on the device.
#pragma once

#include "matmul.hpp"

namespace matmul {

/// Rows of `cols` elements, ld from the start of one to the start of the next.
struct Matrix {
  tile::DType type;
  void* data;
  std::int64_t rows, cols, ld;

  /// Elements from the first to the last, with the padding between.
  std::int64_t extent() const { return rows == 0 || cols == 0 ? 0 : (rows - 1) * ld + cols; }
};

/// Each element becomes an integer that depends on the seed, the row and the column: in [-8, 8], or
/// for types of 16 bits 1 or -1 in one of four cases and 0 otherwise.
tile::Status fill_integers(const Matrix& matrix, std::uint64_t seed);

/// Whether C is op(A) op(B), for A and B from fill_integers: fails with the number of wrong rows
/// and the first wrong element. No element is computed twice: it takes some m n + n k + k m steps,
/// by multiplying both sides with two vectors of random integers (Freivalds, "Probabilistic
/// machines can use less running time", 1977). A wrong row passes with probability 2^-40. For
/// extents up to 2^14 everything is exact: sums of products in 24 bits of a float, projections in
/// 64 bits. Types of 16 bits must hold C as well, bf16 integers up to 256. For k = 2^14 that is
/// eight standard deviations of such a sum, whose terms are 1 or -1 in one of sixteen cases; a C
/// that were rounded nevertheless would be found wrong.
tile::Status check_product(const Problem& problem, const Buffers& buffers);

/// Whether all of `count` elements from `memory` on, outside of the matrix, still have all bits
/// one. Fails with the number of elements that do not, and the first.
tile::Status check_surroundings(const void* memory, std::int64_t count, const Matrix& matrix);

}  // namespace matmul
