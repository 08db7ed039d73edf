// Refused: these sums are not in fp16
#include "exercises/exercises.hpp"
#include "tensor_tiles.cuh"

namespace matmul {
namespace {

constexpr int kBlock = 64;  // rows and columns of C that a block computes, each warp 32 x 32
constexpr int kWarp = 32, kThreads = 128;

/// A warp's part of C as it grows.
template <int kWarpM, int kWarpN>
struct HalfSums {
  static constexpr int kM = kWarpM / kMmaM, kN = kWarpN / kMmaN;
  float sum[kM][kN][4] = {};

  template <class T>
  __device__ void add_products(const WarpFragments<kWarpM, kWarpN>& f) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) tile::ptx::mma_m16n8k16<T>(sum[i][j], f.a[i], f.b[j]);
    }
  }

  /// The warp's part of C begins at (row, col).
  template <class T>
  __device__ void store(const Output<T>& c, std::int64_t row, std::int64_t col, std::int64_t m,
                        std::int64_t n) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const tile::ptx::Element at = tile::ptx::element_of_d(threadIdx.x % 32, e);
          const float x = __half2float(__float2half(sum[i][j][e]));
          const std::int64_t r = row + i * kMmaM + at.row, l = col + j * kMmaN + at.col;
          if (r < m && l < n) c.store(r, l, x);
        }
      }
    }
  }
};

template <class Sums>
__global__ void __launch_bounds__(kThreads) matmul_sums(Product<__half> p) {
  using ATile = OperandTile<Swizzled, true, kBlock, kBlockK>;
  using BTile = OperandTile<Swizzled, false, kBlock, kBlockK>;
  __shared__ tile::Vector<__half> a_smem[ATile::kChunks];
  __shared__ tile::Vector<__half> b_smem[BTile::kChunks];
  const Corner corner = corner_of_block(p.n, kBlock, kBlock);
  const auto warp = corner_of_warp<kBlock, kWarp, kWarp>();
  ChunkLoader<__half, ATile, true, false, kThreads> a_loader(p.a, p.m, p.k, a_smem);
  ChunkLoader<__half, BTile, false, false, kThreads> b_loader(p.b, p.n, p.k, b_smem);
  a_loader.begin(corner.row);
  b_loader.begin(corner.col);
  const FragmentReader<ATile, true, true, kWarp> a_reader(a_smem, warp.row);
  const FragmentReader<BTile, false, false, kWarp> b_reader(b_smem, warp.col);

  Sums sums;
  WarpFragments<kWarp, kWarp> fragments;
  for (std::int64_t k0 = 0; k0 < p.k; k0 += kBlockK) {
    a_loader.load();
    b_loader.load();
    __syncthreads();  // the tiles are complete before anybody reads them
#pragma unroll
    for (int part = 0; part < kBlockK / kMmaK; ++part) {
      fragments.load(a_reader, b_reader, 0, part);
      sums.template add_products<__half>(fragments);
    }
    __syncthreads();  // everybody has read them before anybody loads the next
  }
  sums.store(p.c, corner.row + warp.row, corner.col + warp.col, p.m, p.n);
}

template <class Sums>
tile::Status launch(const Problem& problem, const Buffers& buffers) {
  unsigned blocks = 0;
  tile::Status status = blocks_for_tiles(problem, buffers, k16Bits, kBlock, kBlock, &blocks);
  if (!status.ok() || blocks == 0) return status;
  matmul_sums<Sums><<<blocks, kThreads>>>(Product<__half>(problem, buffers));
  return tile::launch_status("matmul_sums");
}

}  // namespace

tile::Status sums_in_fp32(const Problem& problem, const Buffers& buffers) {
  return launch<WarpSums<kWarp, kWarp>>(problem, buffers);
}
tile::Status sums_in_fp16(const Problem& problem, const Buffers& buffers) {
  return launch<HalfSums<kWarp, kWarp>>(problem, buffers);
}

}  // namespace matmul
