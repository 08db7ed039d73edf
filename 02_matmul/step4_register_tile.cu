// Step 4: tiles in registers.
// Idea: a thread computes 8 x 8 elements of C. Eight values of A and eight of B, once in registers,
//       give 64 products: a quarter of a value from shared memory for each, instead of two.
// Change: the tile of C grows to 128 x 128, the part of k shrinks to 8, the block has 256 threads.
// Limit: the instructions that load. Each moves 4 bytes, and while the tiles arrive no thread
//        multiplies.
#include "matmul.cuh"
#include "matmul_launch.hpp"

namespace matmul {
namespace {

constexpr int kTileM = 128, kTileN = 128, kTileK = 8;
constexpr int kThreadM = 8, kThreadN = 8;  // of the tile of C, a thread's elements
constexpr int kThreadsM = kTileM / kThreadM, kThreadsN = kTileN / kThreadN;
constexpr int kThreads = kThreadsM * kThreadsN;
static_assert(kTileM == kTileN, "one function loads both tiles");
static_assert(kTileK * kTileM % kThreads == 0, "every thread loads equally many elements");

// The tiles lie in shared memory with k first, so that what is multiplied together lies together.
// A row of 128 elements ends where it began among the 32 banks. Four elements of padding move each
// row by four banks: then the eight k of four rows of A, which a warp stores together, lie in 32
// different banks.
constexpr int kPitch = kTileM + 4;

/// Loads elements [x0, x0 + 128) x [k0, k0 + 8) of an operand, with zeros outside of [0, count) x
/// [0, k). x is a row of op(A) or a column of op(B). Memory is contiguous along k or along x, and
/// neighbouring threads take neighbours in memory.
template <bool kAlongK>
__device__ void load_tile(float (*tile)[kPitch],  // [kTileK][kPitch], shared
                          const float* data, std::int64_t ld, std::int64_t x0, std::int64_t count,
                          std::int64_t k0, std::int64_t k) {
#pragma unroll
  for (int turn = 0; turn < kTileK * kTileM / kThreads; ++turn) {
    const int i = threadIdx.x + turn * kThreads;
    const int x = kAlongK ? i / kTileK : i % kTileM;
    const int l = kAlongK ? i % kTileK : i / kTileM;
    const float* from = data + (kAlongK ? (x0 + x) * ld + k0 + l : (k0 + l) * ld + x0 + x);
    tile[l][x] = x0 + x < count && k0 + l < k ? *from : 0;
  }
}

// snippet-begin kernel
template <bool kAAlongK, bool kBAlongK>
__global__ void matmul_register_tile(Operand<float> a,  // [m][k]
                                     Operand<float> b,  // [k][n]
                                     Output<float> c,   // [m][n]
                                     std::int64_t m, std::int64_t n, std::int64_t k) {
  __shared__ float a_smem[kTileK][kPitch];  // [part of k][rows of C]
  __shared__ float b_smem[kTileK][kPitch];  // [part of k][columns of C]
  const Corner corner = corner_of_block(n, kTileM, kTileN);
  // This thread's elements lie 16 rows and 16 columns apart, so that a warp's threads read 16
  // neighbours of b_smem: no two of them in one bank.
  const int first_row = threadIdx.x / kThreadsN, first_col = threadIdx.x % kThreadsN;

  float sum[kThreadM][kThreadN] = {};
  for (std::int64_t k0 = 0; k0 < k; k0 += kTileK) {
    load_tile<kAAlongK>(a_smem, a.data, kAAlongK ? a.row_stride : a.col_stride, corner.row, m, k0,
                        k);
    load_tile<kBAlongK>(b_smem, b.data, kBAlongK ? b.col_stride : b.row_stride, corner.col, n, k0,
                        k);
    __syncthreads();  // both tiles are complete before a thread reads them

#pragma unroll
    for (int l = 0; l < kTileK; ++l) {
      float a_frag[kThreadM], b_frag[kThreadN];
      for (int i = 0; i < kThreadM; ++i) a_frag[i] = a_smem[l][first_row + i * kThreadsM];
      for (int j = 0; j < kThreadN; ++j) b_frag[j] = b_smem[l][first_col + j * kThreadsN];
      for (int i = 0; i < kThreadM; ++i) {
        for (int j = 0; j < kThreadN; ++j) sum[i][j] += a_frag[i] * b_frag[j];
      }
    }
    __syncthreads();  // every thread has read them before one loads the next
  }

  for (int i = 0; i < kThreadM; ++i) {
    for (int j = 0; j < kThreadN; ++j) {
      const std::int64_t row = corner.row + first_row + i * kThreadsM;
      const std::int64_t col = corner.col + first_col + j * kThreadsN;
      if (row < m && col < n) c.store(row, col, sum[i][j]);
    }
  }
}
// snippet-end kernel

}  // namespace

tile::Status register_tile(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kTileM, kTileN, &blocks));
  const auto launch = [&](auto a_along_k, auto b_along_k) {
    return tile::launch(matmul_register_tile<a_along_k.value, b_along_k.value>,
                        "matmul_register_tile", blocks, kThreads, 0, stream,
                        op_a<float>(p, buffers), op_b<float>(p, buffers),
                        output_c<float>(p, buffers), p.m, p.n, terms(p));
  };
  TILE_TRY(with_directions(p, launch));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
