// The tensors and the mask as the kernels see them, and which part of the work a block does.
#pragma once

#include <string>
#include <type_traits>

#include "flash_attention.hpp"
#include "tile/basics.cuh"
#include "tile/host/text.hpp"

namespace flash_attention {

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// snippet-begin heads
/// A tensor of rows, some heads to each batch entry.
template <class T>
struct Heads {
  T* data;
  Strides stride;

  __device__ tile::Rows<T> rows(int batch, int head, int first_row = 0) const {
    return {data + batch * stride.batch + head * stride.head + first_row * stride.row, stride.row};
  }
};
// snippet-end heads
template <class T, class Void>
Heads<T> heads_of(Void* data, const Strides& stride) {
  return {static_cast<T*>(data), stride};
}

/// The masks of all batch entries.
struct Masks {
  int queries, keys, left, right;
  const int* query_lengths;  // [batch], or null
  const int* key_lengths;

  /// That of one. A length beyond the tensor's would lead out of it.
  __device__ Mask of(int batch) const {
    return {query_lengths ? max(0, min(query_lengths[batch], queries)) : queries,
            key_lengths ? max(0, min(key_lengths[batch], keys)) : keys, left, right};
  }
};
template <class Problem, class Buffers>
Masks masks_of(const Problem& p, const Buffers& buffers) {
  const auto window = [](std::int64_t width) {
    return static_cast<int>(width < kUnlimited ? width : kUnlimited);
  };
  return {static_cast<int>(p.queries), static_cast<int>(p.keys), window(p.left), window(p.right),
          buffers.query_lengths,       buffers.key_lengths};
}

/// What a block works on: a tile of the rows of one head.
struct Work {
  int batch, head, tile;
};
/// The tiles of a head follow one another, so that blocks that run at the same time share its keys
/// and values in the L2.
__device__ inline Work work_of_block(int heads, int tiles) {
  const unsigned of_head = blockIdx.x / tiles;
  return {static_cast<int>(of_head / heads), static_cast<int>(of_head % heads),
          static_cast<int>(blockIdx.x % tiles)};
}
inline int tiles_of(std::int64_t rows, int tile) {
  return static_cast<int>((rows + tile - 1) / tile);
}

// snippet-begin longest_first
/// The work of this block if the tiles with the most to do begin first, so that blocks with little
/// fill the gaps at the end; of each tile eight heads in turn, which share the L2. For tiles of
/// keys: where a mask is causal, the first ones are seen by the most queries.
__device__ inline Work keys_longest_first(int batch, int heads, int tiles) {
  constexpr unsigned kTurn = 8;
  const unsigned all = batch * heads, section = blockIdx.x / (kTurn * tiles) * kTurn;
  const unsigned width = min(kTurn, all - section), at = blockIdx.x % (kTurn * tiles);
  const unsigned of_head = section + at % width;
  return {static_cast<int>(of_head / heads), static_cast<int>(of_head % heads),
          static_cast<int>(at / width)};
}
/// For tiles of queries: the last ones see the most keys.
__device__ inline Work work_longest_first(int batch, int heads, int tiles) {
  const Work work = keys_longest_first(batch, heads, tiles);
  return {work.batch, work.head, tiles - 1 - work.tile};
}
// snippet-end longest_first

/// Heads of q to one of k and v.
template <class Problem>
int group_of(const Problem& p) {
  return static_cast<int>(p.heads / p.kv_heads);
}

/// A block for each tile of `tile` rows of each head.
template <class Problem>
tile::Status blocks_for_tiles(const Problem& p, std::int64_t heads, std::int64_t rows, int tile,
                              unsigned* blocks) {
  std::int64_t count = 0;
  if (__builtin_mul_overflow(p.batch * heads, tiles_of(rows, tile), &count)) count = INT64_MAX;
  return tile::blocks_for("batch, heads and lengths", count, 1, blocks);
}

/// Where the head's part of lse, [batch][heads][queries], begins; null if nobody needs it.
__device__ inline float* lse_of_head(float* lse, const Work& work, int heads, int queries) {
  return lse ? lse + (std::int64_t{work.batch} * heads + work.head) * queries : nullptr;
}

/// Backward, of each query: lse in units of log2, and delta. Behind a head's queries there are rows
/// up to a multiple of kRowsOfTerms which have no weight, so that no tile of queries need ask where
/// they end.
struct Terms {
  float lse2, delta;
};
inline constexpr int kRowsOfTerms = 128;

/// Fills the terms, [batch][heads][rows of terms], at the beginning of the workspace.
tile::Status compute_terms(const BackwardProblem& problem, const BackwardBuffers& buffers,
                           void* stream);

__device__ inline const Terms* terms_of_head(const Terms* terms, const Work& work, int heads,
                                             int queries) {
  const std::int64_t rows = (queries + kRowsOfTerms - 1) / kRowsOfTerms * kRowsOfTerms;
  return terms + (std::int64_t{work.batch} * heads + work.head) * rows;
}

/// Calls `launch` with the head dimension as a constant.
template <class Launch>
tile::Status with_head_dim(std::int64_t head_dim, Launch launch) {
  switch (head_dim) {
    case 16: return launch(std::integral_constant<int, 16>{});
    case 32: return launch(std::integral_constant<int, 32>{});
    case 64: return launch(std::integral_constant<int, 64>{});
    case 128: return launch(std::integral_constant<int, 128>{});
    case 256: return launch(std::integral_constant<int, 256>{});
    default: return tile::unsupported("head_dim", std::to_string(head_dim) + " has no kernel");
  }
}

/// The same, after a value of the element type, of which only the type matters.
template <class Launch>
tile::Status with_16_bits_and_head_dim(tile::DType type, std::int64_t head_dim, Launch launch) {
  return with_head_dim(head_dim, [&](auto dim) {
    return type == tile::DType::fp16 ? launch(__half{}, dim) : launch(__nv_bfloat16{}, dim);
  });
}

}  // namespace flash_attention
