// For blocks that work on many rows (backward steps 3 and 4): a queue of rows, and what a thread
// keeps for its columns of all of them.
#pragma once

#include "row_sums.cuh"
#include "tile/row_edges.cuh"
#include "tile/shared_slice.cuh"

namespace layernorm {

/// A thread's slice of a row that may end within a chunk. Zeros follow its elements.
template <class T, int kChunkCount>
struct ClippedSlice : tile::SharedSlice<T, kChunkCount> {
  using Base = tile::SharedSlice<T, kChunkCount>;
  using Base::Base, Base::column, Base::address, Base::kChunkWidth, Base::kChunks;

  /// Starts to copy as a SharedSlice does; `fill` is 0. Only threads at the row's end come to the
  /// second loop, which copies what the row has of a chunk. The others copy whole chunks.
  __device__ __forceinline__ ClippedSlice(const T* row, int cols,
                                          tile::ChunkColumns<kChunkWidth> columns, float,
                                          tile::ptx::SharedAddress row_smem)
      : Base(columns, row_smem) {
    row = tile::ptx::address_once(row);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (column(i) + kChunkWidth > cols) continue;
      tile::ptx::cp_async<16>(address(i), row + column(i));
    }
#pragma unroll 1
    for (int i = kChunks - 1; i >= 0 && column(i) + kChunkWidth > cols; --i) {
      const int left = max(0, cols - column(i));
      tile::ptx::cp_async<16>(address(i), row + column(i), left * static_cast<int>(sizeof(T)));
    }
  }
};

/// A thread's slices of a row, in shared memory, and the row's statistics. kWhole: chunks of 16
/// bytes fill the row. If not, columns count from the beginning of the chunk in which the row
/// begins, `lead` elements before the row, and `end` is lead + cols.
template <class T, int kElements = kThreadElements, bool kWhole = true>
struct RowSlices {
  static constexpr int kOfThread = kElements * static_cast<int>(sizeof(T)) / 16;
  using Slice =
      std::conditional_t<kWhole, tile::SharedSlice<T, kOfThread>, ClippedSlice<T, kOfThread>>;
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
  const T *x, *dy;               // [end], of the next row to fetch
  std::int64_t x_step, dy_step;  // to the row after it: an addition, and no multiplication
  const float *mean, *rstd;      // [rows]; no mean: zeros
  std::int64_t rows, row, stride;
  int end;
  tile::ChunkColumns<Slices::kWidth> columns;
  tile::ptx::SharedAddress smem;  // [kAhead + 1][x, dy]
  int lead = 0;                   // elements before each row: columns of zeros
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
    const int count = exists ? end : 0;
    Slices slices{Slice(x, count, columns, 0, to), Slice(dy, count, columns, 0, to + bytes), 0, 0};
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
  /// The slices of the row that next() takes, without what lies before the row. Its addresses are
  /// those to which fetch() will copy next, and are computed anew: in registers, from the row's own
  /// fetch() on, they would make kernels spill.
  __device__ __forceinline__ Slices without_lead(const Slices& fetched) const {
    const auto bytes = static_cast<int>(Slices::Slice::bytes(columns.threads));
    const tile::ptx::SharedAddress here = smem + 2 * turn * bytes;
    const Slices slices{{columns, here}, {columns, here + bytes}, fetched.mean, fetched.rstd};
    if (lead > 0 && columns.thread == 0) {
      clear_first(slices.x);
      clear_first(slices.dy);
    }
    return slices;
  }
  /// The next row, which has landed. Starts to copy another one over the previous row.
  __device__ __forceinline__ Slices next() {
    tile::ptx::cp_async_wait<kAhead - 1>();
    const Slices slices = under_way[0];
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) under_way[i] = under_way[i + 1];
    under_way[kAhead - 1] = fetch();
    if constexpr (kWhole) return slices;
    return without_lead(slices);
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

  /// dx = rstd (w - mean of w - xhat mean of w xhat), for the row that the queue has returned.
  /// kKept: w and xhat are those that add() left.
  template <bool kKept, class Queue>
  __device__ __forceinline__ void write_dx(const Queue& queue, const Slices& row, Floats& w,
                                           Floats& xhat, RowSums sums, float per_col, bool centred,
                                           T* dx) const {  // [queue.end]
    const float of_row = centred ? -row.rstd * (sums.w * per_col) : 0;
    const float of_xhat = -row.rstd * (sums.w_xhat * per_col);
    unsigned parts = 0;  // a bit for each chunk of which the row has a part
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int col = row.x.column(i);
      if (col >= queue.end) continue;
      float result[kWidth];
      if constexpr (!kKept) load(row, i, w[i], xhat[i], result);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if constexpr (!kKept) xhat[i][e] *= row.rstd;
        result[e] = row.rstd * w[i][e] + (of_xhat * xhat[i][e] + of_row);
      }
      const Chunk chunk = Chunk::from_floats(result);
      if (kWhole || ((i > 0 || col >= queue.lead) && col + kWidth <= queue.end)) {
        chunk.store(dx + col);
      } else {
        tile::ptx::store_shared(row.x.address(i), chunk.words);
        parts |= 1u << i;
      }
    }
    if constexpr (!kWhole) store_parts(queue, row.x, parts, dx);
  }

  /// Stores what the row has of its first and its last chunk, which write_dx() has put in the place
  /// of x. Only the threads that have them come here.
  template <class Queue>
  __device__ __forceinline__ void store_parts(const Queue& queue, const typename Slices::Slice& x,
                                              unsigned parts, T* dx) const {
#pragma unroll 1
    while (parts != 0) {
      const int i = __ffs(static_cast<int>(parts)) - 1;
      parts &= parts - 1;
      const int col = x.column(i);
      const Chunk chunk = x.chunk(i);
      const bool begins = col < queue.lead;
      const bool ends = col + kWidth > queue.end;
      if (!begins || !ends) {
        const int count = begins ? kWidth - queue.lead : queue.end - col;
        tile::store_end(dx + col, chunk, count, begins);
        continue;
      }
      float value[kWidth];  // of a row within a chunk
      chunk.to_floats(value);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if (e >= queue.lead && e < queue.end) dx[e] = static_cast<T>(value[e]);
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
