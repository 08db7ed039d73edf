// For blocks that work on many rows (backward steps 3 and 4): a queue of rows, and what a thread
// keeps for its columns of all of them.
#pragma once

#include "row_sums.cuh"
#include "tile/row_edges.cuh"
#include "tile/shared_slice.cuh"

namespace layernorm {

/// A thread's slices of a row, in shared memory, and the row's statistics.
template <class T, int kElements = kThreadElements>
struct RowSlices {
  using Slice = tile::SharedSlice<T, kElements* static_cast<int>(sizeof(T)) / 16>;
  static constexpr int kWidth = Slice::kChunkWidth, kChunks = Slice::kChunks;
  using Floats = float[kChunks][kWidth];
  Slice x, dy;
  float mean, rstd;
};

/// The rows of a block or a warp, every `stride`-th one, kAhead of them under way. Each thread
/// reads only what it has copied itself, so it waits for its own copies and needs no barrier.
/// kWhole: chunks of 16 bytes fill the row. If not, columns count from the beginning of the chunk
/// in which the row begins, `lead` elements before the row, and `end` is lead + cols. The first
/// chunk comes with what lies before the row, and the last one with zeros after the row.
template <class T, int kAhead, int kElements = kThreadElements, bool kWhole = true>
struct RowQueue {
  using Slices = RowSlices<T, kElements>;
  using Slice = typename Slices::Slice;
  const T *x, *dy;               // [end], of the next row to fetch
  std::int64_t x_step, dy_step;  // to the row after it: an addition, and no multiplication
  const float *mean, *rstd;      // [rows]; no mean: zeros
  std::int64_t rows, row, stride;
  int end;
  tile::ChunkColumns<Slices::kWidth> columns;
  tile::ptx::SharedAddress smem;  // [kAhead + 1][x, dy]
  int turn = 0;                   // where in smem the next row goes
  int part = 0, part_bytes = 0;   // the thread's chunk that the row ends within, and its bytes
  Slices under_way[kAhead] = {};

  __host__ __device__ static constexpr std::size_t shared_bytes(int threads) {
    return 2 * (kAhead + 1) * Slice::bytes(threads);
  }

  /// Starts to copy a row. A row past the last one is zeros.
  __device__ __forceinline__ Slices fetch() {
    const auto bytes = static_cast<int>(Slice::bytes(columns.threads));
    const tile::ptx::SharedAddress to = smem + 2 * turn * bytes;
    const bool exists = row < rows;
    Slices slices;
    if constexpr (kWhole) {
      const int count = exists ? end : 0;
      slices = {Slice(x, count, columns, 0, to), Slice(dy, count, columns, 0, to + bytes), 0, 0};
    } else {
      slices = {Slice(columns, to), Slice(columns, to + bytes), 0, 0};
      if (exists) {
        copy(slices);
      } else if (columns.threads < tile::kWarp) {  // other rows of the warp exist
        clear(to, 0);
      }
    }
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
    if constexpr (!kWhole) {
      for (int i = 0; i < Slices::kChunks; ++i) {
        const int left = end - columns.column(i);
        if (left <= 0 || left >= Slices::kWidth) continue;
        part = i;
        part_bytes = left * static_cast<int>(sizeof(T));
      }
      // No row is copied to chunks after its end: zeros stay there.
      for (int i = 0; i <= kAhead; ++i) {
        clear(smem + 2 * i * static_cast<int>(Slice::bytes(columns.threads)), end);
      }
    }
#pragma unroll
    for (auto& slices : under_way) slices = fetch();
  }
  /// The next row, which has landed. Starts to copy another one over the previous row.
  __device__ __forceinline__ Slices next() {
    tile::ptx::cp_async_wait<kAhead - 1>();
    Slices slices = under_way[0];
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) under_way[i] = under_way[i + 1];
    under_way[kAhead - 1] = fetch();
    if constexpr (!kWhole) {
      // Where fetch() copies next. Kept from the row's own fetch() on, in registers, the addresses
      // would make kernels spill.
      const auto bytes = static_cast<int>(Slice::bytes(columns.threads));
      const tile::ptx::SharedAddress here = smem + 2 * turn * bytes;
      slices.x = Slice(columns, here), slices.dy = Slice(columns, here + bytes);
    }
    return slices;
  }

 private:
  /// Starts to copy the thread's chunks of the row, of the last one what the row has. Bytes that
  /// are known only here take five instructions more: so whole chunks are apart from that one.
  __device__ __forceinline__ void copy(const Slices& to) const {
    const T *of_x = tile::ptx::address_once(x), *of_dy = tile::ptx::address_once(dy);
#pragma unroll
    for (int i = 0; i < Slices::kChunks; ++i) {
      const int col = columns.column(i);
      if (col + Slices::kWidth > end) continue;
      tile::ptx::cp_async<16>(to.x.address(i), of_x + col);
      tile::ptx::cp_async<16>(to.dy.address(i), of_dy + col);
    }
    if (part_bytes == 0) return;
    const int col = columns.column(part);
    tile::ptx::cp_async<16>(to.x.address(part), of_x + col, part_bytes);
    tile::ptx::cp_async<16>(to.dy.address(part), of_dy + col, part_bytes);
  }
  /// Zeros in the thread's chunks from column `first` on, of a row's x and dy.
  __device__ __forceinline__ void clear(tile::ptx::SharedAddress row_smem, int first) const {
    const Slice x_slice(columns, row_smem);
    const Slice dy_slice(columns, row_smem + static_cast<int>(Slice::bytes(columns.threads)));
#pragma unroll
    for (int i = 0; i < Slices::kChunks; ++i) {
      if (columns.column(i) < first) continue;
      tile::ptx::store_shared(x_slice.address(i), make_uint4(0, 0, 0, 0));
      tile::ptx::store_shared(dy_slice.address(i), make_uint4(0, 0, 0, 0));
    }
  }
};

/// What a thread holds of its columns for all rows: gamma, and its sums of dgamma and dbeta. Of
/// rows that begin anywhere (kWhole: none), kLanes lanes of a warp share one.
template <class T, int kElements = kThreadElements, bool kWhole = true, int kLanes = tile::kWarp>
struct ThreadColumns {
  using Slices = RowSlices<T, kElements>;
  using Chunk = typename Slices::Slice::Chunk;
  using Floats = typename Slices::Floats;
  static constexpr int kWidth = Slices::kWidth, kChunks = Slices::kChunks;
  // Elements of a row's first and last chunk, for each lane.
  static constexpr int kEnds = kLanes < 2 * kWidth ? 2 * kWidth / kLanes : 1;
  Chunk gamma[kChunks];
  Floats dgamma = {}, dbeta = {};
  unsigned row_bits[4];  // in words of the thread's first chunk, the bits that belong to the row
  int end_col[kEnds];    // what the lane stores of a chunk of which the row has a part, or -1

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
    if constexpr (!kWhole) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int before = columns.thread > 0 ? 0 : lead * static_cast<int>(sizeof(T)) - 4 * i;
        row_bits[i] = before <= 0 ? ~0u : before >= 4 ? 0 : ~0u << 8 * before;
      }
#pragma unroll
      for (int i = 0; i < kEnds; ++i) {
        end_col[i] = end(columns.thread % kLanes + i * kLanes, lead, lead + cols, columns);
      }
    }
  }

  /// Column of element e of a row's first chunk, or from kWidth on of its last one, if the row has
  /// a part of that chunk and a thread of this warp has the chunk; or -1.
  __device__ __forceinline__ static int end(int e, int first, int past_last,
                                            tile::ChunkColumns<kWidth> columns) {
    const int last = (past_last - 1) / kWidth, chunk = e < kWidth ? 0 : last;
    const int col = chunk * kWidth + e % kWidth;
    const bool is_part = chunk * kWidth < first || (chunk + 1) * kWidth > past_last;
    const bool is_twice = last == 0 && e >= kWidth;  // first and last are one chunk
    const bool is_here = chunk % columns.threads / kLanes == columns.thread / kLanes;
    return e < 2 * kWidth && is_part && !is_twice && is_here && col >= first && col < past_last
               ? col
               : -1;
  }

  /// w = gamma dy, x - mean and dy in chunk i. Elements before the row are zeros.
  __device__ __forceinline__ void load(const Slices& row, int i, float (&w)[kWidth],
                                       float (&distance)[kWidth], float (&dy)[kWidth]) const {
    float x[kWidth], weight[kWidth];
    Chunk of_x = row.x.chunk(i), of_dy = row.dy.chunk(i);
    if (!kWhole && i == 0) of_x = masked(of_x), of_dy = masked(of_dy);
    of_x.to_floats(x);
    of_dy.to_floats(dy);
    gamma[i].to_floats(weight);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      w[e] = weight[e] * dy[e];
      distance[e] = x[e] - row.mean;
    }
  }
  __device__ __forceinline__ Chunk masked(Chunk chunk) const {
    return {make_uint4(chunk.words.x & row_bits[0], chunk.words.y & row_bits[1],
                       chunk.words.z & row_bits[2], chunk.words.w & row_bits[3])};
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

  /// dx = rstd (w - mean of w - xhat mean of w xhat) in columns from `lead` up to `end`. kKept: w
  /// and xhat are those that add() left. All lanes of a warp call it.
  template <bool kKept>
  __device__ __forceinline__ void write_dx(const Slices& row, Floats& w, Floats& xhat, RowSums sums,
                                           float per_col, bool centred, int lead, int end,
                                           T* dx) const {  // [end]
    const float of_row = centred ? -row.rstd * (sums.w * per_col) : 0;
    const float of_xhat = -row.rstd * (sums.w_xhat * per_col);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int col = row.x.column(i);
      if (col >= end) continue;
      float result[kWidth];
      if constexpr (!kKept) load(row, i, w[i], xhat[i], result);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if constexpr (!kKept) xhat[i][e] *= row.rstd;
        result[e] = row.rstd * w[i][e] + (of_xhat * xhat[i][e] + of_row);
      }
      const Chunk chunk = Chunk::from_floats(result);
      if (kWhole || ((i > 0 || col >= lead) && col + kWidth <= end)) {
        chunk.store(dx + col);
      } else {
        tile::ptx::store_shared(row.x.address(i), chunk.words);
      }
    }
    if constexpr (!kWhole) store_ends(row.x, end, dx);
  }

  /// Stores what the row has of its first and its last chunk, which write_dx() has put in the place
  /// of x: an element for each lane. A thread that stores its own chunk would need up to three
  /// stores, of 8, 4 and 2 bytes, for which the other lanes wait.
  __device__ __forceinline__ void store_ends(const typename Slices::Slice& x, int end,
                                             T* dx) const {
    const tile::ptx::SharedAddress row_smem = x.address(0) + -x.thread() * 16;
    __syncwarp();  // the chunks are in shared memory
#pragma unroll
    for (int i = 0; i < kEnds; ++i) {
      if (end_col[i] < 0 || end == 0) continue;
      dx[end_col[i]] =
          tile::ptx::load_shared_element<T>(row_smem + end_col[i] * static_cast<int>(sizeof(T)));
    }
    __syncwarp();  // they are read, and the next row but one may come there
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
