// Shared by the steps in fp32 from 5 on: the copies of a tile from global to shared memory and from
// there to registers, in vectors of 16 bytes, and the elements of each thread.
#pragma once

#include "matmul.cuh"

namespace matmul {

// A block has 128 x 128 elements of C, a warp 64 x 64, a thread 16 x 8. So 24 values in registers,
// six vectors, give 128 products.
constexpr int kTileM = 128, kTileN = 128, kTileK = 8;
constexpr int kWarpM = 64, kWarpN = 64;
constexpr int kLanesM = 4, kLanesN = 8;  // a warp's 32 threads over its part of C
constexpr int kThreadM = kWarpM / kLanesM, kThreadN = kWarpN / kLanesN;
constexpr int kWarpsN = kTileN / kWarpN;
constexpr int kThreads = kTileM / kWarpM * kWarpsN * 32;
static_assert(kLanesM * kLanesN == 32, "a warp has 32 threads");
static_assert(kTileM == kTileN, "one class loads the tiles of A and of B");

constexpr int kVector = 4;  // floats in 16 bytes: the most that one instruction moves
// A row of 128 elements ends where it began among the 32 banks; a vector of padding moves each row
// by four banks. Two threads that store k and k + 4 of one row of A are then 16 banks apart, and
// the 16 rows of a warp lie in the banks between.
constexpr int kPitch = kTileM + kVector;
template <int kExtent, int kK = kTileK>
using TileOf = float[kK][kExtent + kPitch - kTileM];
using Tile = TileOf<kTileM>;

__device__ inline float4 load_vector(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}
__device__ inline void store_vector(float* to, float4 vector) {
  *reinterpret_cast<float4*>(to) = vector;
}

// Whether the vectors of every row are aligned to their 16 bytes.
__device__ inline bool is_aligned(const float* data, std::int64_t ld) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(float4) == 0 && ld % kVector == 0;
}

/// Moves one thread's part of an operand, tile after tile along k. x is a row of op(A) or a column
/// of op(B). Memory is contiguous either along k or along x. In 32 bits, what is left takes fewer
/// registers than in 64.
template <bool kAlongK, int kExtent = kTileM, int kBlockThreads = kThreads, int kK = kTileK,
          class Left = std::int64_t>
class TileLoader {
  using Tile = TileOf<kExtent, kK>;

 public:
  /// For tiles that begin at x0, of an operand that has `count` rows or columns x, and `k` of k.
  __device__ TileLoader(const float* data, std::int64_t ld, std::int64_t x0, std::int64_t count,
                        std::int64_t k)
      : x_left_(static_cast<Left>(count - x0)),
        k_left_(static_cast<Left>(k)),
        aligned_(is_aligned(data, ld)) {
    // Neighbouring threads take neighbouring vectors of the contiguous direction.
    constexpr int kVectors = (kAlongK ? kK : kExtent) / kVector;
    const int along = threadIdx.x % kVectors * kVector, across = threadIdx.x / kVectors;
    x_ = kAlongK ? across : along;
    k_ = kAlongK ? along : across;
    next_ = data + (kAlongK ? (x0 + x_) * ld + k_ : k_ * ld + x0 + x_);
    to_next_tile_ = kAlongK ? kK : kK * ld;
    to_next_vector_ = kAcross * ld;
  }

  /// Loads the next tile into registers. Elements outside of the matrix count as zero.
  __device__ void fetch() {
    if (aligned_ && x_left_ >= kExtent && k_left_ >= kK) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) frag_[i] = load_vector(next_ + i * to_next_vector_);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) frag_[i] = fetch_partly(i);
    }
    next_ += to_next_tile_;
    k_left_ -= kK;
  }

  /// The same, for callers that name the tile: WordLoader of step 24 copies straight into it.
  __device__ void fetch(Tile&) { fetch(); }

  /// Stores the fetched vectors, k first.
  __device__ void put(Tile& tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kAlongK) {
        const int x = x_ + i * kAcross;
        tile[k_][x] = frag_[i].x;
        tile[k_ + 1][x] = frag_[i].y;
        tile[k_ + 2][x] = frag_[i].z;
        tile[k_ + 3][x] = frag_[i].w;
      } else {
        store_vector(&tile[k_ + i * kAcross][x_], frag_[i]);
      }
    }
  }

 private:
  // How far the block's threads reach at one time across the contiguous direction, and how many
  // times they do.
  static constexpr int kAcross = kBlockThreads * kVector / (kAlongK ? kK : kExtent);
  static constexpr int kCount = kK * kExtent / (kBlockThreads * kVector);
  static_assert(kCount * kBlockThreads * kVector == kK * kExtent, "equally many vectors a thread");

  // Vector i, element by element.
  __device__ float4 fetch_partly(int i) const {
    const int x = kAlongK ? x_ + i * kAcross : x_, k = kAlongK ? k_ : k_ + i * kAcross;
    const float* from = next_ + i * to_next_vector_;
    auto element = [&](int e) {
      const bool inside = kAlongK ? x < x_left_ && k + e < k_left_ : x + e < x_left_ && k < k_left_;
      return inside ? from[e] : 0.f;
    };
    return {element(0), element(1), element(2), element(3)};
  }

  Left x_left_, k_left_;  // elements from the tile's corner to the matrix's end
  bool aligned_;
  int x_, k_;  // in the tile, of this thread's first vector
  const float* next_;
  std::int64_t to_next_tile_, to_next_vector_;  // elements
  float4 frag_[kCount];
};

/// Where in the block's tile this thread's elements lie: in groups of 4 x 4, so that each group is
/// a vector of A times a vector of B; a group's neighbours belong to other threads.
struct ThreadPosition {
  int row, col;

  /// A block has two warps side by side, each of so many rows and columns.
  explicit __device__ ThreadPosition(int warp_rows = kWarpM, int warp_cols = kWarpN) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    row = warp / kWarpsN * warp_rows + lane / kLanesN * kVector;
    col = warp % kWarpsN * warp_cols + lane % kLanesN * kVector;
  }
  // The i-th row and the j-th column of this thread.
  static constexpr __device__ int row_of(int i) {
    return i / kVector * kLanesM * kVector + i % kVector;
  }
  static constexpr __device__ int col_of(int j) {
    return j / kVector * kLanesN * kVector + j % kVector;
  }
};

/// The factors of one k, of a thread whose warp has so many rows and columns: 16 values of A and 8
/// of B where these are 64 x 64.
template <int kWarpRows, int kWarpCols>
struct FactorsOf {
  static constexpr int kRows = kWarpRows / kLanesM, kCols = kWarpCols / kLanesN;
  alignas(16) float a[kRows], b[kCols];

  // A warp's threads read four different vectors of A, or eight of B: 128 bytes at most, a bank to
  // every four of them. Threads that read the same vector share it.
  template <class ATile, class BTile>
  __device__ void load(const ATile& a_tile, const BTile& b_tile, int k, ThreadPosition at) {
#pragma unroll
    for (int i = 0; i < kRows; i += kVector) {
      store_vector(a + i, load_vector(&a_tile[k][at.row + at.row_of(i)]));
    }
#pragma unroll
    for (int j = 0; j < kCols; j += kVector) {
      store_vector(b + j, load_vector(&b_tile[k][at.col + at.col_of(j)]));
    }
  }
};

using Factors = FactorsOf<kWarpM, kWarpN>;

/// This thread's elements of C, as they grow.
template <int kWarpRows, int kWarpCols>
struct SumsOf {
  using Factors = FactorsOf<kWarpRows, kWarpCols>;
  static constexpr int kRows = Factors::kRows, kCols = Factors::kCols;
  // The floats of four rows of a warp, which it exchanges at a time if rows of C begin anywhere.
  static constexpr int kStoreFloats = kLanesM * kWarpCols;
  alignas(16) float sum[kRows][kCols] = {};

  // snippet-begin multiply
  /// Adds the products of one k. Every other row is walked backwards: where it turns, two
  /// multiplications in a row have the same factor of B, as those within a row have the same of A,
  /// and what an instruction has read from a register the next need not read again.
  __device__ void add_products(const Factors& f) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int step = 0; step < kCols; ++step) {
        const int j = i % 2 == 1 ? step : kCols - 1 - step;
        sum[i][j] += f.a[i] * f.b[j];
      }
    }
  }
  // snippet-end multiply

  /// Applies alpha, beta, bias and activation, and stores the results. `smem` has room for
  /// kStoreFloats of each warp. Other threads may still read it: a barrier waits for them.
  template <bool kFused>
  __device__ void store(const Output<float, kFused>& c, Corner corner, ThreadPosition at,
                        std::int64_t m, std::int64_t n, float* smem) {
    const std::int64_t row = corner.row + at.row, col = corner.col + at.col;
    auto rows = static_cast<int>(min(m - row, std::int64_t{kTileM}));
    auto cols = static_cast<int>(min(n - col, std::int64_t{kTileN}));
    float* const first = c.data + row * c.ld + col;
    finish(c, first, col, rows, cols);
    if (is_aligned(c.data, c.ld) && n % kVector == 0) {  // no vector lies across the end of a row
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (at.row_of(i) >= rows) return;  // so are all rows after it
        float* const to = first + at.row_of(i) * c.ld;
#pragma unroll
        for (int j = 0; j < kCols; j += kVector) {
          if (at.col_of(j) < cols) store_vector(to + at.col_of(j), load_vector(sum[i] + j));
        }
      }
      return;
    }
    // snippet-begin rows
    // One float at a time. Straight from registers a warp would store two of the eight floats in
    // each of 16 sectors. So its lanes exchange sums, and then neighbours store neighbours.
    const int lane = threadIdx.x % 32, y = lane / kLanesN, x = lane % kLanesN * kVector;
    float* const of_warp = smem + threadIdx.x / 32 * kStoreFloats;  // [kLanesM][kWarpCols]
    float* to = first - y * kVector * c.ld - x + lane;
    rows += y * kVector, cols += x - lane;  // from `to` on
    __syncthreads();                        // all threads have read what smem held
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; j += kVector) {
        store_vector(of_warp + y * kWarpCols + x + at.col_of(j), load_vector(sum[i] + j));
      }
      __syncwarp();  // four rows are there
#pragma unroll
      for (int e = 0; e < kLanesM * kWarpCols; e += 32) {
        const int down = e / kWarpCols * kVector, across = e % kWarpCols;
        if (at.row_of(i) + down < rows && across < cols) {
          to[down * c.ld + across] = of_warp[e + lane];
        }
      }
      to += (at.row_of(i + 1) - at.row_of(i)) * c.ld;
      __syncwarp();  // all lanes have read them
    }
    // snippet-end rows
  }

 private:
  // Applies alpha, beta, bias and activation, each in a loop of its own, as in step 13: what is not
  // asked for costs one branch. All of it at each of 128 elements would be 20,000 instructions,
  // which no instruction cache holds. `first` is this thread's first element of C, in the
  // first_col-th column; C ends `rows` and `cols` after it.
  template <bool kFused>
  __device__ void finish(const Output<float, kFused>& c, const float* first, std::int64_t first_col,
                         int rows, int cols) {
    if (c.beta == 0) {
      for_each([&](float& x, int, int) { x *= c.alpha; });
    } else {
      for_each([&](float& x, int row, int col) {
        if (row < rows && col < cols) x = c.scaled(x, first + row * c.ld + col);
      });
    }
    if constexpr (!kFused) return;
    if (c.bias) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        const int col = ThreadPosition::col_of(j);
        const float add = col < cols ? c.bias[first_col + col] : 0.f;
#pragma unroll
        for (int i = 0; i < kRows; ++i) sum[i][j] += add;
      }
    }
    if (c.activation == Activation::relu) {
      for_each([](float& x, int, int) { x = activate(Activation::relu, x); });
    } else if (c.activation == Activation::gelu) {
      for_each([](float& x, int, int) { x = activate(Activation::gelu, x); });
    }
  }
  // Passes each sum with its row and column, counted from the thread's first.
  template <class Function>
  __device__ void for_each(Function function) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        function(sum[i][j], ThreadPosition::row_of(i), ThreadPosition::col_of(j));
      }
    }
  }
};
using Sums = SumsOf<kWarpM, kWarpN>;
static_assert(kThreads / 32 * Sums::kStoreFloats * sizeof(float) <= sizeof(Tile));

}  // namespace matmul
