// What the exercises of chapter 03 are to define. All pointers are of device memory.
#pragma once

#include "softmax.hpp"

namespace softmax {

/// 03.1: result[row] = log(sum exp(x)) over each of `rows` rows of `cols` columns; ldx elements
/// from one row to the next.
tile::Status log_sum_exp(const float* x, std::int64_t ldx, float* result, std::int64_t rows,
                         std::int64_t cols);

/// 03.2: a row's columns were cut into parts. Each part has seen its own columns only: x, and for
/// each column a vector of `width` numbers, its value.
struct Partials {
  const float* max;       // [parts][rows]: the greatest x of the part, -infinity if it is empty
  const float* sum;       // [parts][rows]: sum exp(x - max), 0 if it is empty
  const float* weighted;  // [parts][rows][width]: sum exp(x - max) value, not divided by anything
  std::int64_t parts, rows, width;
};

/// average[row] = sum y value over all columns of the row, where y is the softmax of x;
/// [rows][width].
tile::Status merge_partials(const Partials& partials, float* average);

/// 03.3: dx = y (dy - sum y dy). The problem has rows and columns, is neither causal nor of the
/// logarithm, and its scale is 1.
tile::Status backward_by_warp(const BackwardProblem& problem, const BackwardBuffers& buffers);

/// 03.4: result[row] = log(sum exp(x)) of rows without gaps, each of which has pieces of kPieceCols
/// columns. `arrived` holds a 0 for each row, `pairs` has room for two floats for each piece.
inline constexpr int kPieceCols = 1000;
tile::Status last_block(const float* x, float* result, unsigned* arrived, void* pairs,
                        std::int64_t rows, std::int64_t cols);

}  // namespace softmax
