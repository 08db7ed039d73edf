// How the threads of a block share a row, or its part of one, in shared memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "tile/host/cuda_check.hpp"
#include "softmax.cuh"
#include "tile/row_plan.hpp"

namespace softmax {

// More than the kernels declare: a pair of floats for each warp of a cluster.
inline constexpr int kStaticBytes = 4096;

/// The threads of a block and the chunks of 16 bytes of each.
struct Share {
  bool fits;
  bool plain;
  int threads;
  int chunks;
  std::size_t shared_bytes;  // dynamic
};

/// Up to here a row is as fast in registers (an H200), and fits into those of a block.
inline std::int64_t longest_in_registers(const Problem& p) {
  const bool plain_forward = p.direction == tile::Direction::forward && !p.causal && !p.log;
  return plain_forward ? 16 * 1024 : 8 * 1024;
}

/// A block's share if `blocks` blocks share a row. Only rows that chunks of 16 bytes fill can be
/// shared: cp.async copies 16 bytes.
inline tile::Status share_of_block(const Problem& p, const Buffers& b, unsigned blocks,
                                   Share* share) {
  if (tile::Status s = validate(p, b); !s.ok()) return s;
  int card = 0, limit = 0;
  TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
  TILE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, card));
  const bool forward = p.direction == tile::Direction::forward;
  const std::int64_t width = 16 / static_cast<std::int64_t>(tile::size_bytes(p.type));
  const std::int64_t all = p.cols / width;
  const std::int64_t most = (all + blocks - 1) / blocks;
  // Measured on an H200. In a cluster two blocks or more must fit on a multiprocessor, or all of
  // its multiprocessors wait at the same time; and forward fewer threads with more chunks merge
  // less.
  const int most_threads = blocks == 1 ? tile::kMaxThreadsPerBlock : tile::kMaxThreadsPerBlock / 2;
  const int chunks = (blocks > 1 && forward) || most > 4 * most_threads ? 8 : 4;
  const std::int64_t threads = (most + chunks * 32 - 1) / (chunks * 32) * 32;
  const std::int64_t bytes = (forward ? 1 : 2) * threads * chunks * 16;
  const bool several = blocks == 1 || 2 * bytes <= limit;
  *share = {
      vectors_fit(p, b) && threads <= most_threads && several && bytes + kStaticBytes <= limit,
      !p.causal && !p.log, static_cast<int>(threads), chunks, static_cast<std::size_t>(bytes)};
  return {};
}

/// Calls `launch` with the share as constants: the chunks of a thread, and whether the problem is
/// plain.
template <class Launch>
tile::Status with_share(const Share& share, Launch launch) {
  auto with_chunks = [&](auto plain) {
    return share.chunks == 4 ? launch(std::integral_constant<int, 4>{}, plain)
                             : launch(std::integral_constant<int, 8>{}, plain);
  };
  return share.plain ? with_chunks(std::true_type{}) : with_chunks(std::false_type{});
}

}  // namespace softmax
