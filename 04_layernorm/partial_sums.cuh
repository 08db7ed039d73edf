// dgamma and dbeta from partial sums.
#pragma once

#include "layernorm.cuh"

namespace layernorm {

/// The workspace: `count` partial sums for each column of dgamma, then as many of dbeta.
struct PartialSums {
  float* dgamma;  // [count][cols]
  float* dbeta;   // [count][cols]
  std::int64_t count;

  __host__ __device__ PartialSums(void* memory, std::int64_t cols, std::int64_t number)
      : dgamma(static_cast<float*>(memory)), dbeta(dgamma + number * cols), count(number) {}
  PartialSums(const Problem& p, const Buffers& b, std::int64_t number)
      : PartialSums(b.workspace, p.cols, number) {}
};

/// Adds up the partial sums, always in the same order, and writes dgamma and dbeta, of which either
/// may be null. In the stream, after the kernels that make the sums.
tile::Status sum_partial_sums(const Problem& problem, const Buffers& buffers,
                              const PartialSums& sums, void* stream);

/// The same of no sums at all, as there are without rows: writes zeros.
tile::Status write_zeros(const Problem& problem, const Buffers& buffers, void* stream);

}  // namespace layernorm
