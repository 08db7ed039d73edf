// The two sums over a row that the backward pass needs, and the sums over all rows.
#pragma once

#include "layernorm.hpp"
#include "tile/reduce.cuh"

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

/// The same where the workspace holds [count][cols] sums of dgamma, then as many of dbeta.
inline tile::Status sum_partial_sums(const BackwardProblem& p, const BackwardBuffers& b,
                                     std::int64_t count, void* stream) {
  auto* sums = static_cast<float*>(b.workspace);
  return sum_partial_sums(p, b, {sums, sums + count * p.cols, count, p.cols, nullptr}, stream);
}

/// The sums over a row that dx needs, of w = gamma dy and of w xhat.
struct RowSums {
  float w, w_xhat;
};
struct AddRowSums {
  __device__ RowSums identity() const { return {0, 0}; }
  __device__ RowSums operator()(RowSums a, RowSums b) const {
    return {a.w + b.w, a.w_xhat + b.w_xhat};
  }
};

/// tile::reduce_block() finds this overload by argument-dependent lookup.
__device__ __forceinline__ RowSums reduce_lanes(RowSums sums, AddRowSums, int lanes = tile::kWarp) {
  return {tile::reduce_lanes(sums.w, tile::Add{}, lanes),
          tile::reduce_lanes(sums.w_xhat, tile::Add{}, lanes)};
}

}  // namespace layernorm
