// For tensor cores: tiles of chunks in shared memory, the copies of these tiles, and their products
// by a warp.
#pragma once

#include "matmul.cuh"
#include "matmul_launch.hpp"
#include "tile/basics.cuh"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/cp_async.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/ldmatrix.cuh"
#include "tile/ptx/mma.cuh"
#include "tile/ptx/swizzle.hpp"

namespace matmul {

constexpr int kMmaM = 16, kMmaN = 8, kMmaK = 16;  // of mma_m16n8k16
// Steps 7 to 11: a block computes 128 x 128 elements of C, each of its eight warps 64 x 32.
constexpr int kBlockM = 128, kBlockN = 128, kBlockK = 32;
constexpr int kTensorWarpM = 64, kTensorWarpN = 32;
constexpr int kTensorThreads = kBlockM / kTensorWarpM * (kBlockN / kTensorWarpN) * 32;

/// Where the part of a warp begins in its block's part of C.
template <int kBlockN, int kWarpM, int kWarpN>
__device__ tile::ptx::Element corner_of_warp() {
  const int warp = threadIdx.x / 32;
  return {warp / (kBlockN / kWarpN) * kWarpM, warp % (kBlockN / kWarpN) * kWarpN};
}

// A tile in shared memory is made of chunks of 16 bytes: what one instruction moves from global
// memory, and a row of the 8 x 8 elements that ldmatrix loads. place(row, chunk) gives the place of
// each of its kRows x kRowChunks chunks. The places of the next eight rows are the same, 8 kPitch
// chunks later.

// snippet-begin swizzled
/// The chunks of a row are permuted, differently in each row (tile/ptx/swizzle.hpp).
template <int kRows_, int kCols>
struct Swizzled {
  static constexpr int kRows = kRows_, kRowChunks = kCols / 8, kPitch = kRowChunks;
  static constexpr int kChunks = kRows * kPitch;
  static_assert(kRowChunks == 4 || kRowChunks % 8 == 0, "rows of 64 bytes, or of 128 and more");
  static __device__ int place(int row, int chunk) {
    return row * kPitch +
           (kRowChunks == 4 ? tile::swizzle_64B(row, chunk) : tile::swizzle_128B(row, chunk));
  }
};
// snippet-end swizzled

/// The part of an operand that a block works on at a time: kX rows of op(A) or columns of op(B), by
/// kK of k. In shared memory it lies as it does in global memory: in rows along k, or along x.
template <template <int, int> class Layout, bool kAlongK, int kX, int kK>
using OperandTile = Layout<kAlongK ? kX : kK, kAlongK ? kK : kX>;

/// What one thread does to move the tiles of one operand to shared memory, one after the other
/// along k. x is a row of op(A) or a column of op(B). kWhole promises what are_whole_tiles() says.
template <class T, class Tile, bool kAlongK, bool kWhole, int kThreads>
class ChunkLoader {
 public:
  using Chunk = tile::Vector<T>;
  /// There are `x_count` x, and `k` elements for each.
  __device__ ChunkLoader(const Operand<T>& operand, std::int64_t x_count, std::int64_t k,
                         Chunk* tile)
      : to_(tile + Tile::place(row(), chunk())),
        to_address_(to_),
        data_(operand.data),
        ld_(operand.row_stride == 1 ? operand.col_stride : operand.row_stride),
        x_count_(x_count),
        k_(k),
        aligned_(reinterpret_cast<std::uintptr_t>(data_) % sizeof(Chunk) == 0 &&
                 ld_ % kChunk == 0) {}

  /// The next tile is the first of those that begin at x0.
  __device__ void begin(std::int64_t x0) {
    next_ = data_ + (kAlongK ? x0 * ld_ : x0) + row() * ld_ + chunk() * kChunk;
    x_left_ = static_cast<int>(min(x_count_ - x0, std::int64_t{kX}));
    k_left_ = k_;
  }
  /// How many of these tiles are left.
  __device__ int tiles_left() const {
    return k_left_ <= 0 ? 0 : static_cast<int>((k_left_ + kK - 1) / kK);
  }

  /// Copies the next tile through registers. Elements outside of the matrix count as zero.
  __device__ void load() {
    const bool whole = aligned_ && x_left_ == kX && k_left_ >= kK;
    Chunk frag[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      frag[i] = whole ? *reinterpret_cast<const Chunk*>(next_ + i * kStep * ld_) : part(i);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) to_[i * kStep * Tile::kPitch] = frag[i];
    advance();
  }

  // snippet-begin asynchronously
  /// Starts to copy the next tile, to the same place `stage_bytes` further on. For a tile that is
  /// not whole, cp.async gets the number of bytes inside the matrix and fills the rest with zeros;
  /// it takes aligned chunks only, and others go through registers.
  __device__ void copy(int stage_bytes) {
    const T* from = next_;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const tile::ptx::SharedAddress to = to_address_ + stage_bytes + i * kStepBytes;
      if constexpr (kWhole) {
        tile::ptx::cp_async<16>(to, from);
      } else if (aligned_) {
        tile::ptx::cp_async<16>(to, from, count(i) * static_cast<int>(sizeof(T)));
      } else {
        to_[(stage_bytes + i * kStepBytes) / static_cast<int>(sizeof(Chunk))] = part(i);
      }
      from += kStep * ld_;
    }
    advance();
  }
  // snippet-end asynchronously

 private:
  static constexpr int kChunk = Chunk::kCount;
  static constexpr int kX = kAlongK ? Tile::kRows : Tile::kRowChunks * kChunk;
  static constexpr int kK = kAlongK ? Tile::kRowChunks * kChunk : Tile::kRows;
  // Rows that the block's threads reach at one time, and how many times they do.
  static constexpr int kStep = kThreads / Tile::kRowChunks, kCount = Tile::kRows / kStep;
  static constexpr int kStepBytes = kStep * Tile::kPitch * static_cast<int>(sizeof(Chunk));
  static_assert(kStep * Tile::kRowChunks == kThreads && kCount * kStep == Tile::kRows,
                "equally many chunks a thread");
  static_assert(kStep % 8 == 0, "all chunks of a thread are as far apart as their rows");

  // This thread's first chunk. Neighbouring threads take neighbouring chunks of a row.
  static __device__ int row() { return threadIdx.x / Tile::kRowChunks; }
  static __device__ int chunk() { return threadIdx.x % Tile::kRowChunks; }
  __device__ void advance() {
    next_ += kAlongK ? kK : kK * ld_;
    k_left_ -= kK;
  }
  // Elements of chunk i that lie in the matrix.
  __device__ int count(int i) const {
    const int k_left = static_cast<int>(max(min(k_left_, std::int64_t{kK}), std::int64_t{0}));
    const int rows = kAlongK ? x_left_ : k_left, cols = kAlongK ? k_left : x_left_;
    return row() + i * kStep < rows ? max(0, min(cols - chunk() * kChunk, kChunk)) : 0;
  }
  // Chunk i, element by element.
  __device__ Chunk part(int i) const {
    const T* from = next_ + i * kStep * ld_;
    const int inside = count(i);
    Chunk part;
#pragma unroll
    for (int e = 0; e < kChunk; ++e) part.element[e] = e < inside ? from[e] : T(0.f);
    return part;
  }

  Chunk* to_;  // this thread's first chunk of a tile
  tile::ptx::SharedAddress to_address_;
  const T* data_;
  std::int64_t ld_, x_count_, k_;  // elements
  bool aligned_;
  const T* next_ = nullptr;  // what becomes its first chunk of the next tile
  int x_left_ = 0;           // x of these tiles that lie in the matrix
  std::int64_t k_left_ = 0;  // from the next tile's first k to the matrix's end
};

/// Whether all tiles of C and of both operands are whole, and their chunks aligned.
inline bool are_whole_tiles(const Problem& p, const Buffers& buffers, int tile_m, int tile_n,
                            int tile_k) {
  const auto in_chunks = [size = tile::size_bytes(p.type)](const void* data, std::int64_t ld) {
    return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uint64_t>(ld) * size) % 16 ==
           0;
  };
  return p.m % tile_m == 0 && p.n % tile_n == 0 && terms(p) % tile_k == 0 && terms(p) > 0 &&
         in_chunks(buffers.a, p.lda) && in_chunks(buffers.b, p.ldb);
}

// snippet-begin fragment
/// How a warp reads an operand for mma: kWarpX rows of op(A) or columns of op(B), from x0 on in the
/// tile. An instruction takes 16 x 16 elements, which are four times 8 x 8, and lane l says where
/// row l % 8 of number l / 8 lies. In A's registers the halves of x alternate first, in B's those
/// of k (tile/ptx/fragments.hpp). A tile whose rows lie along x is transposed on the way.
template <class Tile, bool kIsA, bool kAlongK, int kWarpX>
class FragmentReader {
 public:
  __device__ FragmentReader(const void* tile, int x0) {
    const int lane = threadIdx.x % 32, matrix = lane / 8;
    const int x = x0 + (kIsA ? matrix % 2 : matrix / 2) * 8;
    const int k = (kIsA ? matrix / 2 : matrix % 2) * 8;
    const int row = (kAlongK ? x : k) + lane % 8, chunk = (kAlongK ? k : x) / 8;
    const tile::ptx::SharedAddress begin(tile);
#pragma unroll
    for (int i = 0; i < kAcross; ++i) first_[i] = begin + Tile::place(row, chunk + 2 * i) * 16;
  }

  /// The 16 x 16 elements with number x_part along x, and k_part along k.
  __device__ void read(std::uint32_t (&frag)[4], int stage_bytes, int x_part, int k_part) const {
    const int across = kAlongK ? k_part : x_part, down = kAlongK ? x_part : k_part;
    const tile::ptx::SharedAddress row =
        first_[across] + stage_bytes + down * 16 * Tile::kPitch * 16;
    if constexpr (kAlongK) {
      tile::ptx::ldmatrix_x4(frag, row);
    } else {
      tile::ptx::ldmatrix_x4_trans(frag, row);
    }
  }

 private:
  static constexpr int kAcross = kAlongK ? Tile::kRowChunks / 2 : kWarpX / 16;
  // This lane's address in the first 16 x 16 elements of each column of them.
  tile::ptx::SharedAddress first_[kAcross];
};
// snippet-end fragment

/// What a warp multiplies at a time: kWarpM rows of op(A) with kWarpN columns of op(B), 16 of k.
template <int kWarpM, int kWarpN>
struct WarpFragments {
  static constexpr int kM = kWarpM / kMmaM, kN = kWarpN / kMmaN;
  static_assert(kM * kMmaM == kWarpM && kN * kMmaN == kWarpN && kN % 2 == 0);
  std::uint32_t a[kM][4], b[kN][2];

  template <class AReader, class BReader>
  __device__ void load(const AReader& a_reader, const BReader& b_reader, int stage_bytes,
                       int k_part) {
#pragma unroll
    for (int i = 0; i < kM; ++i) a_reader.read(a[i], stage_bytes, i, k_part);
#pragma unroll
    for (int j = 0; j < kN; j += 2) {
      std::uint32_t pair[4];  // of columns 8 j to 8 j + 15
      b_reader.read(pair, stage_bytes, j / 2, k_part);
      b[j][0] = pair[0], b[j][1] = pair[1], b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
    }
  }
};

/// A warp's part of C as it grows, in fp32. A lane has 2 kM rows and 2 kN columns.
template <int kWarpM, int kWarpN>
struct WarpSums {
  static constexpr int kM = kWarpM / kMmaM, kN = kWarpN / kMmaN, kCount = kM * kN * 4;
  float sum[kM][kN][4] = {};
  __device__ float& operator[](int i) { return sum[i / (kN * 4)][i / 4 % kN][i % 4]; }
  __device__ float& at(int r, int c) { return sum[r / 2][c / 2][r % 2 * 2 + c % 2]; }
  /// Where its r-th row and its c-th column lie, counted from the warp's corner.
  static __device__ int row(int r) { return r * 8 + threadIdx.x % 32 / 4; }
  static __device__ int col(int c) { return c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2; }

  template <class T>
  __device__ void add_products(const WarpFragments<kWarpM, kWarpN>& f) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int step = 0; step < kN; ++step) {
        const int j = i % 2 == 0 ? step : kN - 1 - step;  // see Sums in tiles.cuh
        tile::ptx::mma_m16n8k16<T>(sum[i][j], f.a[i], f.b[j]);
      }
    }
  }

  /// Turns each sum into the new value of its element of C, by alpha, beta and the old value. The
  /// warp's part of C begins at (row0, col0).
  template <class T, bool kFused>
  __device__ void scale(const Output<T, kFused>& c, std::int64_t row0, std::int64_t col0,
                        std::int64_t m, std::int64_t n) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const std::int64_t y = row0 + row(i * 2 + e / 2), x = col0 + col(j * 2 + e % 2);
          if (y < m && x < n) sum[i][j][e] = c.scaled(sum[i][j][e], c.data + y * c.ld + x);
        }
      }
    }
  }

  /// Does the same and stores, element by element.
  template <class T>
  __device__ void store(const Output<T>& c, std::int64_t row0, std::int64_t col0, std::int64_t m,
                        std::int64_t n) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const std::int64_t y = row0 + row(i * 2 + e / 2), x = col0 + col(j * 2 + e % 2);
          if (y < m && x < n) c.store(y, x, sum[i][j][e]);
        }
      }
    }
  }

  /// The same with bias and activation, each in a loop of its own, as in step 13. All of it at each
  /// of 64 elements would be 8,000 instructions, and half of a minute for nvcc.
  template <class T>
  __device__ void store(const Output<T, true>& c, std::int64_t row0, std::int64_t col0,
                        std::int64_t m, std::int64_t n) {
    if (c.alpha != 1 || c.beta != 0) scale(c, row0, col0, m, n);
    if (c.bias) {
#pragma unroll
      for (int j = 0; j < kN * 2; ++j) {
        const std::int64_t x = col0 + col(j);
        const float add = x < n ? static_cast<float>(c.bias[x]) : 0.f;
#pragma unroll
        for (int i = 0; i < kM * 2; ++i) at(i, j) += add;
      }
    }
    if (c.activation == Activation::relu) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) (*this)[i] = activate(Activation::relu, (*this)[i]);
    } else if (c.activation == Activation::gelu) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) (*this)[i] = activate(Activation::gelu, (*this)[i]);
    }
    store(Output<T>{c.data, c.ld, 1, 0}, row0, col0, m, n);
  }
};

}  // namespace matmul
