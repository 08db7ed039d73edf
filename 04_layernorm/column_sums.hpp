// Partial sums of columns that need not begin where their row begins in the workspace.
#pragma once

#include "layernorm.hpp"

namespace layernorm {

/// Partial sums of dgamma and of dbeta in the workspace: cols of each row, from its lead on.
struct ColumnSums {
  float *dgamma, *dbeta;  // [count][ld]
  std::int64_t count, ld;
  int* leads;  // [count], or null: zeros
};

/// With room for rows that begin up to 7 floats later, so that any 4 columns can be aligned.
inline ColumnSums shifted_sums(const BackwardProblem& p, const BackwardBuffers& b,
                               std::int64_t count) {
  const std::int64_t ld = (p.cols + 7 + 3) / 4 * 4;
  auto* sums = static_cast<float*>(b.workspace);
  return {sums, sums + count * ld, count, ld, reinterpret_cast<int*>(sums + 2 * count * ld)};
}

/// Adds up partial sums for each column, always in the same order, and writes dgamma and dbeta,
/// unless null.
tile::Status sum_partial_sums(const BackwardProblem& problem, const BackwardBuffers& buffers,
                              const ColumnSums& sums, void* stream);

}  // namespace layernorm
