// The two sums over a row that the backward pass needs, and the sums over all rows.
#pragma once

#include "layernorm.hpp"
#include "tile/reduce.cuh"

namespace layernorm {

/// Adds up `count` partial sums for each column, always in the same order, and writes dgamma and
/// dbeta, unless null. The workspace holds [count][cols] sums of dgamma, then as many of dbeta.
tile::Status sum_partial_sums(const BackwardProblem& problem, const BackwardBuffers& buffers,
                              std::int64_t count, void* stream);

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
