// Sums of dQ in fp32, to which the blocks of all tiles of keys add. They are cleared before that,
// and scaled and rounded after it (tile/round_dq.cuh). They lie as mma's fragments do,
// [batch][heads][rows / 16][head_dim / 8][lane], a head's rows up to a multiple of kRowsOfTerms.
#pragma once

#include "tile/host/attention_launch.hpp"

namespace tile {

/// Rows of the sums of all heads, as many as there are RowStats.
inline std::int64_t rows_of_dq_sums(const Attention& p) {
  return p.batch * p.heads * tiles_of(p.queries, kRowsOfTerms) * kRowsOfTerms;
}

inline Status clear_dq_sums(const Attention& p, float4* sums, void* stream) {
  const auto bytes = static_cast<std::size_t>(rows_of_dq_sums(p) * p.head_dim) * sizeof(float);
  TILE_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(sums, 0, bytes, static_cast<cudaStream_t>(stream)));
  return {};
}

}  // namespace tile
