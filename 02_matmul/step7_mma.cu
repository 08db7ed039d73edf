// Step 7: tensor cores.
// Idea: one instruction, mma, multiplies 16 x 16 elements of A with 16 x 8 of B. A warp executes it
//       together, and each lane holds a few elements of the three matrices in its registers.
// Change: elements of 16 bits, added in fp32. The threads no longer multiply: they bring the
//         factors into the order that mma wants.
// Limit: bringing them. Each lane gathers its elements one by one from shared memory, and four to
//        eight lanes use the same bank.
#include "matmul_launch.hpp"
#include "tensor_tiles.cuh"

namespace matmul {
namespace {

// snippet-begin gather
/// Two elements in one register, as mma takes them.
template <class T>
__device__ std::uint32_t pair_of(T low, T high) {
  std::uint16_t bits[2];
  memcpy(&bits[0], &low, sizeof low);
  memcpy(&bits[1], &high, sizeof high);
  return bits[0] | static_cast<std::uint32_t>(bits[1]) << 16;
}

/// What this lane holds of 16 x 16 elements of A, from (row, k) on; and of 16 x 8 of B.
template <class T>
__device__ void gather_a(std::uint32_t (&frag)[4], const T (&a_smem)[kBlockM][kBlockK], int row,
                         int k) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const tile::ptx::Element low = tile::ptx::element_of_a<16>(threadIdx.x % 32, 2 * r),
                             high = tile::ptx::element_of_a<16>(threadIdx.x % 32, 2 * r + 1);
    frag[r] = pair_of(a_smem[row + low.row][k + low.col], a_smem[row + high.row][k + high.col]);
  }
}
template <class T>
__device__ void gather_b(std::uint32_t (&frag)[2], const T (&b_smem)[kBlockK][kBlockN], int k,
                         int col) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const tile::ptx::Element low = tile::ptx::element_of_b<16>(threadIdx.x % 32, 2 * r),
                             high = tile::ptx::element_of_b<16>(threadIdx.x % 32, 2 * r + 1);
    frag[r] = pair_of(b_smem[k + low.row][col + low.col], b_smem[k + high.row][col + high.col]);
  }
}
// snippet-end gather

/// Loads kRows x kCols elements from (row, col) on, zeros outside of rows x cols. Neighbouring
/// threads load what lies side by side in global memory: along a row, or along a column.
template <bool kAlongRow, int kRows, int kCols, class T>
__device__ void load_tile(T (&tile)[kRows][kCols], const Operand<T>& from, std::int64_t row,
                          std::int64_t col, std::int64_t rows, std::int64_t cols) {
  for (int i = threadIdx.x; i < kRows * kCols; i += kTensorThreads) {
    const int y = kAlongRow ? i / kCols : i % kRows, x = kAlongRow ? i % kCols : i / kRows;
    tile[y][x] = row + y < rows && col + x < cols ? from(row + y, col + x) : T(0.f);
  }
}

// snippet-begin kernel
template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kTensorThreads)
    matmul_mma(Operand<T> a,  // [m][k]
               Operand<T> b,  // [k][n]
               Output<T> c,   // [m][n]
               std::int64_t m, std::int64_t n, std::int64_t k) {
  __shared__ T a_smem[kBlockM][kBlockK];  // [rows of C][part of k]
  __shared__ T b_smem[kBlockK][kBlockN];  // [part of k][columns of C]
  const Corner corner = corner_of_block(n, kBlockM, kBlockN);
  const auto warp = corner_of_warp<kBlockN, kTensorWarpM, kTensorWarpN>();

  WarpSums<kTensorWarpM, kTensorWarpN> sums;
  WarpFragments<kTensorWarpM, kTensorWarpN> fragments;
  for (std::int64_t k0 = 0; k0 < k; k0 += kBlockK) {
    load_tile<kAAlongK>(a_smem, a, corner.row, k0, m, k);
    load_tile<!kBAlongK>(b_smem, b, k0, corner.col, k, n);
    __syncthreads();  // both tiles are complete before a thread reads them
    for (int part = 0; part < kBlockK; part += kMmaK) {
#pragma unroll
      for (int i = 0; i < fragments.kM; ++i) {
        gather_a(fragments.a[i], a_smem, warp.row + i * kMmaM, part);
      }
#pragma unroll
      for (int j = 0; j < fragments.kN; ++j) {
        gather_b(fragments.b[j], b_smem, part, warp.col + j * kMmaN);
      }
      sums.template add_products<T>(fragments);
    }
    __syncthreads();  // every thread has read them before one loads the next
  }
  sums.store(c, corner.row + warp.row, corner.col + warp.col, m, n);
}
// snippet-end kernel

}  // namespace

tile::Status mma(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kBlockM, kBlockN, &blocks));
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    return tile::launch(matmul_mma<T, a_along_k.value, b_along_k.value>, "matmul_mma", blocks,
                        kTensorThreads, 0, stream, op_a<T>(p, buffers), op_b<T>(p, buffers),
                        output_c<T>(p, buffers), p.m, p.n, terms(p));
  };
  TILE_TRY(with_16_bits(p, launch));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
