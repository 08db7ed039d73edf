// A row, or a block's share of one, on its way through a block that stays for many rows.
#pragma once

#include <algorithm>

#include "partial_sums.cuh"
#include "tile/row_plan.hpp"
#include "vectors.cuh"

namespace layernorm {

/// A row on its way: a thread's parts of it, and its statistics, which are as far away as they are.
template <class Part>
struct RowParts {
  Part x, dy;
  Statistics statistics;
};

/// A thread's part of gamma, which stays for all rows.
template <class Part>
struct Gamma {
  typename Part::Chunk chunk[Part::kChunks];

  template <class T>
  __device__ Gamma(const Arguments<T>& a, std::int64_t first, int cols,
                   const tile::Place<Part::kChunkWidth>& place) {
#pragma unroll
    for (int i = 0; i < Part::kChunks; ++i) {
      chunk[i] = Part::Chunk::filled(1);
      if (a.gamma && place.column(i) < cols) {
        chunk[i] = Part::Chunk::load(a.gamma + first + place.column(i));
      }
    }
  }
};

/// Calls `use(e, col, w, xhat, dy)` for the elements of chunk i: e counts within the chunk.
template <class Part, class Use>
__device__ __forceinline__ void for_each_element(const RowParts<Part>& row, int i,
                                                 const Gamma<Part>& all_gamma, Use use) {
  float x[Part::kChunkWidth], dy[Part::kChunkWidth], gamma[Part::kChunkWidth];
  row.x.chunk(i).to_floats(x);
  row.dy.chunk(i).to_floats(dy);
  all_gamma.chunk[i].to_floats(gamma);
#pragma unroll
  for (int e = 0; e < Part::kChunkWidth; ++e) {
    use(e, gamma[e] * dy[e], row.statistics.xhat(x[e]), dy[e]);
  }
}

/// What a thread knows of dgamma and dbeta of its columns.
template <class Part>
class ColumnSums {
 public:
  /// Adds a row; returns its own sums of this thread's part.
  __device__ __forceinline__ RowSums add(const RowParts<Part>& row, const Gamma<Part>& gamma,
                                         int cols) {
    RowSums own{0, 0};
#pragma unroll
    for (int i = 0; i < Part::kChunks; ++i) {
      if (row.x.column(i) >= cols) continue;
      for_each_element(row, i, gamma, [&](int e, float w, float xhat, float dy) {
        own.w += w;
        own.w_xhat += w * xhat;
        dgamma_[i][e] += dy * xhat;
        dbeta_[i][e] += dy;
      });
    }
    return own;
  }

  /// Writes partial sum `number` of `cols` columns from `first` on.
  __device__ __forceinline__ void store(const PartialSums& sums, std::int64_t number,
                                        std::int64_t all_cols, std::int64_t first, int cols,
                                        const tile::Place<Part::kChunkWidth>& place) const {
#pragma unroll
    for (int i = 0; i < Part::kChunks; ++i) {
      if (place.column(i) >= cols) continue;
      const std::int64_t to = number * all_cols + first + place.column(i);
#pragma unroll
      for (int e = 0; e < Part::kChunkWidth; e += 4) {
        *reinterpret_cast<float4*>(sums.dgamma + to + e) =
            make_float4(dgamma_[i][e], dgamma_[i][e + 1], dgamma_[i][e + 2], dgamma_[i][e + 3]);
        *reinterpret_cast<float4*>(sums.dbeta + to + e) =
            make_float4(dbeta_[i][e], dbeta_[i][e + 1], dbeta_[i][e + 2], dbeta_[i][e + 3]);
      }
    }
  }

 private:
  float dgamma_[Part::kChunks][Part::kChunkWidth] = {};
  float dbeta_[Part::kChunks][Part::kChunkWidth] = {};
};

/// Writes `cols` columns of dx from the row's column `first` on.
template <class Part, class T>
__device__ __forceinline__ void store_dx(const RowParts<Part>& row, const Gamma<Part>& gamma, T* dx,
                                         std::int64_t first, int cols,
                                         const GradientOfX& gradient) {
#pragma unroll
  for (int i = 0; i < Part::kChunks; ++i) {
    if (row.x.column(i) >= cols) continue;
    float result[Part::kChunkWidth];
    for_each_element(row, i, gamma,
                     [&](int e, float w, float xhat, float) { result[e] = gradient(w, xhat); });
    Part::Chunk::from_floats(result).store(dx + first + row.x.column(i));
  }
}

/// Elements of a thread, and threads of a block at most, which then have 128 registers each. Sums,
/// gamma and the rest take most of them. Fewer elements would make the reductions cost more than
/// they do.
inline constexpr int kElements = 16;
inline constexpr int kMostThreads = 512;
template <class T>
inline constexpr int kChunks = kElements* static_cast<int>(sizeof(T)) / 16;

/// How a block's threads share a row, or their part of one.
struct RowShare {
  bool fits;
  int threads;
  int blocks;  // that the card holds at one time
  std::size_t shared_bytes;
};

/// The share if `blocks_of_row` blocks share a row. Only rows that chunks of 16 bytes fill can be
/// shared: cp.async copies 16 bytes.
inline tile::Status share_of_row(const Problem& p, const Buffers& b, unsigned blocks_of_row,
                                 RowShare* share) {
  if (tile::Status s = validate(p, b); !s.ok()) return s;
  int card = 0, limit = 0, all = 0, multiprocessors = 0;
  TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
  TILE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, card));
  TILE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, card));
  TILE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, card));
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  const std::int64_t width = 16 / element;
  const std::int64_t cols = (p.cols / width + blocks_of_row - 1) / blocks_of_row * width;
  const std::int64_t threads = (cols + kElements * 32 - 1) / (kElements * 32) * 32;
  const std::int64_t bytes = 4 * threads * kElements * element;  // x and dy of two rows
  constexpr int kStaticBytes = 9 * 1024;                         // no less than the kernels declare
  const bool fits = vectors_fit(p, b) && threads <= kMostThreads && bytes + kStaticBytes <= limit;
  // A multiprocessor has registers for so many threads.
  const std::int64_t each =
      fits && threads > 0
          ? std::min<std::int64_t>(kMostThreads / threads, all / (bytes + kStaticBytes))
          : 1;
  *share = {fits, static_cast<int>(threads),
            multiprocessors * static_cast<int>(std::max<std::int64_t>(1, each)),
            static_cast<std::size_t>(bytes)};
  return {};
}

}  // namespace layernorm
