// What the exercises of chapter 01 are to define.
#pragma once

#include <cstdint>

#include "tile/host/status.hpp"

namespace vector_add {

/// 01.1: y = alpha * x + y for vectors of n elements in device memory.
tile::Status axpy(float alpha, const float* x, float* y, std::int64_t n);

// snippet-begin matrix
/// A matrix in device memory: row r begins at data + r * ld, and ld >= cols.
struct Matrix {
  float* data;
  std::int64_t ld;
};
// snippet-end matrix

/// 01.2: c = a + b for matrices of rows x cols elements, each with its own ld.
tile::Status add_matrices(Matrix a, Matrix b, Matrix c, std::int64_t rows, std::int64_t cols);

}  // namespace vector_add
