// A row, or a block's share of one, on its way through a block that stays for many rows.
#pragma once

#include <algorithm>

#include "partial_sums.cuh"
#include "vectors.cuh"

namespace layernorm {

/// Every `stride`-th row from `first` on. To the next it is an addition, and none is multiplied.
template <class T>
class RowWalk {
 public:
  __device__ RowWalk(tile::Rows<T> rows, std::int64_t first, std::int64_t stride)
      : at_(rows[first]), step_(stride * rows.ld) {}

  /// The row where the walk stands, which goes on to the next.
  __device__ __forceinline__ T* next() {
    T* row = at_;
    at_ += step_;
    return row;
  }

 private:
  T* at_;
  std::int64_t step_;
};

/// A row on its way: a thread's parts of it, and its statistics, which are as far away as they are.
template <class Part>
struct RowParts {
  Part x, dy;
  Statistics statistics;
};

/// Elements of a thread.
inline constexpr int kElements = 32;

/// How a thread's registers are used. The sums of dgamma and dbeta take 64 of them, gamma 16 or 32.
/// With w and xhat of a row, another 64, there are 256 threads on a multiprocessor.
struct Keeping {
  static constexpr int kMostThreads = 256;
  static constexpr int kAhead = 2;  // rows on their way while a block works on one
  static constexpr bool kKeeps = true;

  template <class T>
  static constexpr bool has() {
    return true;
  }
};
/// Without them 128 registers do, and 512 threads share rows twice as long: of elements of 2 bytes,
/// since gamma in fp32 takes 16 registers more.
struct Recomputing {
  static constexpr int kMostThreads = 512;
  static constexpr int kAhead = 1;
  static constexpr bool kKeeps = false;

  template <class T>
  static constexpr bool has() {
    return sizeof(T) == 2;
  }
};

/// The rows of a block or a warp on their way, every `stride`-th from `first` on, and of each
/// `cols` columns from `column` on.
template <class T, int kAhead>
class RowQueue {
 public:
  using Part = tile::SharedSlice<T, kElements* static_cast<int>(sizeof(T)) / 16>;

  /// Shared memory for `threads` threads.
  __host__ __device__ static constexpr std::size_t bytes(int threads) {
    return 2 * (kAhead + 1) * Part::bytes(threads);
  }

  __device__ __forceinline__ RowQueue(const Arguments<T>& a, std::int64_t column, int cols,
                                      tile::ChunkColumns<Part::kChunkWidth> place, void* smem,
                                      std::int64_t first, std::int64_t stride)
      : place_(place),
        cols_(cols),
        row_(first),
        stride_(stride),
        x_({a.x.data + column, a.x.ld}, first, stride),
        dy_({a.dy.data + column, a.dy.ld}, first, stride),
        smem_(smem) {
#pragma unroll
    for (auto& row : rows_) row = fetch(a);
  }

  /// The next row, which has come. Another is sent for, to the place of the row before. No thread
  /// reads what another has fetched, so that there is nothing to wait for but one's own copies.
  __device__ __forceinline__ RowParts<Part> next(const Arguments<T>& a) {
    tile::ptx::cp_async_wait<kAhead - 1>();
    const RowParts<Part> row = rows_[0];
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) rows_[i] = rows_[i + 1];
    rows_[kAhead - 1] = fetch(a);
    return row;
  }

 private:
  __device__ __forceinline__ RowParts<Part> fetch(const Arguments<T>& a) {
    const int bytes = static_cast<int>(Part::bytes(place_.threads));
    const tile::ptx::SharedAddress x_smem = smem_ + 2 * turn_ * bytes;
    const int exist = row_ < a.rows ? cols_ : 0;
    const RowParts<Part> row{Part(x_.next(), exist, place_, 0, x_smem),
                             Part(dy_.next(), exist, place_, 0, x_smem + bytes),
                             Statistics(a, row_)};
    tile::ptx::cp_async_commit();
    row_ += stride_;
    turn_ = turn_ == kAhead ? 0 : turn_ + 1;
    return row;
  }

  tile::ChunkColumns<Part::kChunkWidth> place_;
  int cols_, turn_ = 0;
  std::int64_t row_, stride_;  // the next to fetch
  RowWalk<const T> x_, dy_;
  tile::ptx::SharedAddress smem_;  // [kAhead + 1][x, dy]
  RowParts<Part> rows_[kAhead];
};

/// A thread's part of gamma, which stays for all rows.
template <class Part>
struct Gamma {
  typename Part::Chunk chunk[Part::kChunks];

  template <class T>
  __device__ Gamma(const Arguments<T>& a, std::int64_t first, int cols,
                   const tile::ChunkColumns<Part::kChunkWidth>& place) {
#pragma unroll
    for (int i = 0; i < Part::kChunks; ++i) {
      chunk[i] = Part::Chunk::filled(1);
      if (a.gamma && place.column(i) < cols) {
        chunk[i] = Part::Chunk::load(a.gamma + first + place.column(i));
      }
    }
  }
};

/// What the elements of a row's chunk contribute, in both passes over it.
template <class Part>
struct ChunkValues {
  float w[Part::kChunkWidth], xhat[Part::kChunkWidth], dy[Part::kChunkWidth];

  __device__ __forceinline__ ChunkValues(const RowParts<Part>& row, const Gamma<Part>& all_gamma,
                                         int i) {
    float x[Part::kChunkWidth], gamma[Part::kChunkWidth];
    row.x.chunk(i).to_floats(x);
    row.dy.chunk(i).to_floats(dy);
    all_gamma.chunk[i].to_floats(gamma);
#pragma unroll
    for (int e = 0; e < Part::kChunkWidth; ++e) {
      w[e] = gamma[e] * dy[e];
      xhat[e] = row.statistics.xhat(x[e]);
    }
  }
};

/// What a thread knows of dgamma and dbeta of its columns.
template <class Part>
class ColumnSums {
 public:
  /// Adds a row, and calls `keep(i, values)` for its chunks; returns its own sums of this thread's
  /// part. Where there are no columns, x and dy are 0, and nothing is added.
  template <class Keep>
  __device__ __forceinline__ RowSums add(const RowParts<Part>& row, const Gamma<Part>& gamma,
                                         Keep keep) {
    RowSums own{0, 0};
#pragma unroll
    for (int i = 0; i < Part::kChunks; ++i) {
      const ChunkValues<Part> values(row, gamma, i);
      keep(i, values);
#pragma unroll
      for (int e = 0; e < Part::kChunkWidth; ++e) {
        own.w += values.w[e];
        own.w_xhat += values.w[e] * values.xhat[e];
        dgamma_[i][e] += values.dy[e] * values.xhat[e];
        dbeta_[i][e] += values.dy[e];
      }
    }
    return own;
  }

  /// Writes partial sum `number` of `cols` columns from `first` on.
  __device__ __forceinline__ void store(const PartialSums& sums, std::int64_t number,
                                        std::int64_t all_cols, std::int64_t first, int cols,
                                        const tile::ChunkColumns<Part::kChunkWidth>& place) const {
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

/// The work on one row: adds it to the column sums, reduces its own sums by `reduce` over all
/// threads that share it, and writes dx. kKeep: w and xhat stay in registers between the two
/// passes. From x, dy and gamma they take six instructions an element more.
template <bool kKeep, class Part, class T, class Reduce>
__device__ __forceinline__ void backward_row(const Arguments<T>& a, const RowParts<Part>& row,
                                             const Gamma<Part>& gamma, ColumnSums<Part>& columns,
                                             T* dx, int cols,
                                             const tile::ChunkColumns<Part::kChunkWidth>& place,
                                             Reduce reduce) {
  float w[Part::kChunks][Part::kChunkWidth], xhat[Part::kChunks][Part::kChunkWidth];
  const RowSums own = columns.add(row, gamma, [&](int i, const ChunkValues<Part>& values) {
#pragma unroll
    for (int e = 0; e < Part::kChunkWidth; ++e) {
      w[i][e] = values.w[e];
      xhat[i][e] = values.xhat[e];
    }
  });
  const GradientOfX gradient(a, row.statistics.rstd, reduce(own));
#pragma unroll
  for (int i = 0; i < Part::kChunks; ++i) {
    if (place.column(i) >= cols) continue;
    if constexpr (!kKeep) {
      const ChunkValues<Part> values(row, gamma, i);
#pragma unroll
      for (int e = 0; e < Part::kChunkWidth; ++e) {
        w[i][e] = values.w[e];
        xhat[i][e] = values.xhat[e];
      }
    }
    float result[Part::kChunkWidth];
#pragma unroll
    for (int e = 0; e < Part::kChunkWidth; ++e) result[e] = gradient(w[i][e], xhat[i][e]);
    Part::Chunk::from_floats(result).store(dx + place.column(i));
  }
}

/// How a block's threads share a row, or their part of one.
struct RowShare {
  bool fits;
  int threads;
  int blocks;  // that the card holds at one time
  std::size_t shared_bytes;
};

/// The share if `blocks_of_row` blocks share a row. Only rows that chunks of 16 bytes fill can be
/// shared: cp.async copies 16 bytes.
template <class Way>
tile::Status share_of_row(const Problem& p, const Buffers& b, unsigned blocks_of_row,
                          RowShare* share) {
  if (tile::Status s = validate(p, b); !s.ok()) return s;
  int card = 0, limit = 0, all = 0, multiprocessors = 0;
  if (tile::Status s = tile::count_multiprocessors(&multiprocessors); !s.ok()) return s;
  TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
  TILE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, card));
  TILE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, card));
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  const std::int64_t width = 16 / element;
  const std::int64_t cols = (p.cols / width + blocks_of_row - 1) / blocks_of_row * width;
  const std::int64_t threads = (cols + kElements * 32 - 1) / (kElements * 32) * 32;
  const std::int64_t bytes = 2 * (Way::kAhead + 1) * threads * kElements * element;
  constexpr int kStaticBytes = 4 * 1024;  // no less than the kernels declare and CUDA takes
  const bool has_type = element == 2 ? Way::template has<__half>() : Way::template has<float>();
  const bool fits = has_type && vectors_fit(p, b) && threads <= Way::kMostThreads &&
                    bytes + kStaticBytes <= limit;
  // A multiprocessor has registers for so many threads.
  const std::int64_t each =
      fits && threads > 0
          ? std::min<std::int64_t>(Way::kMostThreads / threads, all / (bytes + kStaticBytes))
          : 1;
  *share = {fits, static_cast<int>(threads),
            multiprocessors * static_cast<int>(std::max<std::int64_t>(1, each)),
            static_cast<std::size_t>(bytes)};
  return {};
}

}  // namespace layernorm
