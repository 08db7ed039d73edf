// For blocks that work on many rows (backward steps 3 and 4): a queue of rows, and what a thread
// keeps for its columns of all of them.
#pragma once

#include "row_sums.cuh"
#include "tile/row_edges.cuh"
#include "tile/shared_slice.cuh"

namespace layernorm {

/// A thread's slices of a row, in shared memory, and the row's statistics. kWhole: chunks of 16
/// bytes fill the row. If not, columns count from the beginning of the chunk in which the row
/// begins, `lead` elements before the row.
template <class T, int kElements = kThreadElements, bool kWhole = true>
struct RowSlices {
  using Slice = tile::SharedSlice<T, kElements* static_cast<int>(sizeof(T)) / 16, !kWhole>;
  static constexpr int kWidth = Slice::kChunkWidth, kChunks = Slice::kChunks;
  using Floats = float[kChunks][kWidth];
  Slice x, dy;
  float mean, rstd;
};

/// The rows of a block or a warp, every `stride`-th one, kAhead of them under way. Each thread
/// reads only what it has copied itself, so it waits for its own copies and needs no barrier.
template <class T, int kAhead, int kElements = kThreadElements, bool kWhole = true>
struct RowQueue {
  using Slices = RowSlices<T, kElements, kWhole>;
  const T *x, *dy;               // [cols], of the next row to fetch
  std::int64_t x_step, dy_step;  // to the row after it: an addition, and no multiplication
  const float *mean, *rstd;      // [rows]; no mean: zeros
  std::int64_t rows, row, stride;
  int cols;
  tile::ChunkColumns<Slices::kWidth> columns;
  tile::ptx::SharedAddress smem;  // [kAhead + 1][x, dy]
  int lead = 0;                   // elements before each row: they count as columns of zeros
  int turn = 0;                   // where in smem the next row goes
  Slices under_way[kAhead] = {};

  __host__ __device__ static constexpr std::size_t shared_bytes(int threads) {
    return 2 * (kAhead + 1) * Slices::Slice::bytes(threads);
  }

  /// Starts to copy a row. A row past the last one is zeros.
  __device__ __forceinline__ Slices fetch() {
    using Slice = typename Slices::Slice;
    const bool exists = row < rows;
    const auto bytes = static_cast<int>(Slice::bytes(columns.threads));
    const tile::ptx::SharedAddress to = smem + 2 * turn * bytes;
    const int count = exists ? lead + cols : 0;
    Slices slices{Slice(x - lead, count, columns, 0, to),
                  Slice(dy - lead, count, columns, 0, to + bytes), 0, 0};
    if (exists) {
      if (mean) slices.mean = mean[row];
      slices.rstd = rstd[row];
    }
    tile::ptx::cp_async_commit();
    x += x_step;
    dy += dy_step;
    row += stride;
    turn = turn == kAhead ? 0 : turn + 1;
    return slices;
  }
  __device__ __forceinline__ void start() {
#pragma unroll
    for (auto& slices : under_way) slices = fetch();
  }
  /// Sets the elements before the row, in its first chunk, to zeros.
  __device__ __forceinline__ void clear_first(const typename Slices::Slice& slice) const {
    const uint4 all = slice.chunk(0).words;
    unsigned word[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int bytes = lead * static_cast<int>(sizeof(T)) - 4 * i;
      if (bytes > 0) word[i] = bytes >= 4 ? 0 : word[i] & ~0u << 8 * bytes;
    }
    tile::ptx::store_shared(slice.address(0), make_uint4(word[0], word[1], word[2], word[3]));
  }
  /// The next row, which has landed. Starts to copy another one over the previous row.
  __device__ __forceinline__ Slices next() {
    tile::ptx::cp_async_wait<kAhead - 1>();
    const Slices slices = under_way[0];
    if (!kWhole && lead > 0 && columns.thread == 0) {
      clear_first(slices.x);
      clear_first(slices.dy);
    }
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) under_way[i] = under_way[i + 1];
    under_way[kAhead - 1] = fetch();
    return slices;
  }
};

/// What a thread holds of its columns for all rows: gamma, and its sums of dgamma and dbeta.
template <class T, int kElements = kThreadElements, bool kWhole = true>
struct ThreadColumns {
  using Slices = RowSlices<T, kElements, kWhole>;
  using Chunk = typename Slices::Slice::Chunk;
  using Floats = typename Slices::Floats;
  static constexpr int kWidth = Slices::kWidth, kChunks = Slices::kChunks;
  Chunk gamma[kChunks];
  Floats dgamma = {}, dbeta = {};

  __device__ __forceinline__ ThreadColumns(const T* all_gamma,  // [cols], or null: all ones
                                           int cols, tile::ChunkColumns<kWidth> columns,
                                           int lead = 0) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      gamma[i] = Chunk::filled(1);
      const int col = columns.column(i) - lead;
      if (!all_gamma || col >= cols) continue;
      if constexpr (kWhole) {
        gamma[i] = Chunk::load(all_gamma + col);
      } else {
        Chunk one[1];
        tile::load_anywhere<T, kWidth>(all_gamma, col, 0, cols, 1, one);
        gamma[i] = one[0];
      }
    }
  }

  /// w = gamma dy, x - mean and dy in chunk i.
  __device__ __forceinline__ void load(const Slices& row, int i, float (&w)[kWidth],
                                       float (&distance)[kWidth], float (&dy)[kWidth]) const {
    float x[kWidth], weight[kWidth];
    row.x.chunk(i).to_floats(x);
    row.dy.chunk(i).to_floats(dy);
    gamma[i].to_floats(weight);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      w[e] = weight[e] * dy[e];
      distance[e] = x[e] - row.mean;
    }
  }

  // snippet-begin add
  /// dgamma += dy xhat and dbeta += dy. Returns this thread's part of the sums over the row; where
  /// there are no columns it is 0. rstd comes last: 0 times an infinite -mean rstd would be NaN.
  __device__ __forceinline__ RowSums add(const Slices& row, Floats& w, Floats& xhat) {
    RowSums own{0, 0};
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      float dy[kWidth];
      load(row, i, w[i], xhat[i], dy);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        own.w += w[i][e];
        own.w_xhat += w[i][e] * xhat[i][e];
        xhat[i][e] *= row.rstd;
        dgamma[i][e] += dy[e] * xhat[i][e];
        dbeta[i][e] += dy[e];
      }
    }
    own.w_xhat *= row.rstd;
    return own;
  }
  // snippet-end add

  /// dx = rstd (w - mean of w - xhat mean of w xhat). kKept: w and xhat are those that add() left.
  template <bool kKept>
  __device__ __forceinline__ void write_dx(const Slices& row, Floats& w, Floats& xhat, RowSums sums,
                                           float per_col, bool centred, T* dx, int cols,
                                           int lead = 0) const {
    const float of_row = centred ? -row.rstd * (sums.w * per_col) : 0;
    const float of_xhat = -row.rstd * (sums.w_xhat * per_col);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int col = row.x.column(i) - lead;
      if (col >= cols) continue;
      float result[kWidth];
      if constexpr (!kKept) load(row, i, w[i], xhat[i], result);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if constexpr (!kKept) xhat[i][e] *= row.rstd;
        result[e] = row.rstd * w[i][e] + (of_xhat * xhat[i][e] + of_row);
      }
      if constexpr (kWhole) {
        Chunk::from_floats(result).store(dx + col);
      } else {
        tile::store_anywhere(dx, col, cols, result);
      }
    }
  }

  /// Writes the sums of dgamma and dbeta.
  __device__ __forceinline__ void write_sums(float* dgamma_of_cols,  // [cols]
                                             float* dbeta_of_cols,   // [cols]
                                             tile::ChunkColumns<kWidth> columns, int cols,
                                             int lead = 0) const {
    auto store = [](float* to, const float* sums) {
      *reinterpret_cast<float4*>(to) = make_float4(sums[0], sums[1], sums[2], sums[3]);
    };
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int col = columns.column(i) - lead;
      if (col >= cols) continue;
#pragma unroll
      for (int e = 0; e < kWidth; e += kWhole ? 4 : 1) {
        if constexpr (kWhole) {
          store(dgamma_of_cols + col + e, &dgamma[i][e]);
          store(dbeta_of_cols + col + e, &dbeta[i][e]);
        } else if (col + e >= 0 && col + e < cols) {
          dgamma_of_cols[col + e] = dgamma[i][e];
          dbeta_of_cols[col + e] = dbeta[i][e];
        }
      }
    }
  }
};

}  // namespace layernorm
