// Step 9: no padding.
// Idea: chunks that would share banks lie in one column. If each row puts its chunks in another
//       order, a column is spread over all banks, and no memory is lost.
// Change: only the layout, Swizzled instead of Padded (tensor_tiles.cuh). The copy engine of Hopper
//         and its instruction wgmma support this layout, and none with padding.
// Limit: no warp multiplies while the block loads.
#include "matmul_launch.hpp"
#include "tensor_tiles.cuh"

namespace matmul {
namespace {

template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kTensorThreads, 2)
    matmul_swizzle(Operand<T> a,       // [m][k]
                   Operand<T> b,       // [k][n]
                   Output<T, true> c,  // [m][n]
                   std::int64_t m, std::int64_t n, std::int64_t k) {
  using ATile = OperandTile<Swizzled, kAAlongK, kBlockM, kBlockK>;
  using BTile = OperandTile<Swizzled, kBAlongK, kBlockN, kBlockK>;
  __shared__ tile::Vector<T> a_smem[ATile::kChunks];  // 128 rows of C by 32 of k
  __shared__ tile::Vector<T> b_smem[BTile::kChunks];  // 32 of k by 128 columns of C
  const Corner corner = corner_of_block(n, kBlockM, kBlockN);
  const auto warp = corner_of_warp<kBlockN, kTensorWarpM, kTensorWarpN>();
  ChunkLoader<T, ATile, kAAlongK, false, kTensorThreads> a_loader(a, m, k, a_smem);
  ChunkLoader<T, BTile, kBAlongK, false, kTensorThreads> b_loader(b, n, k, b_smem);
  a_loader.begin(corner.row);
  b_loader.begin(corner.col);
  const FragmentReader<ATile, true, kAAlongK, kTensorWarpM> a_reader(a_smem, warp.row);
  const FragmentReader<BTile, false, kBAlongK, kTensorWarpN> b_reader(b_smem, warp.col);

  WarpSums<kTensorWarpM, kTensorWarpN> sums;
  WarpFragments<kTensorWarpM, kTensorWarpN> fragments;
  for (std::int64_t k0 = 0; k0 < k; k0 += kBlockK) {
    a_loader.load();
    b_loader.load();
    __syncthreads();  // both tiles are complete before a thread reads them
#pragma unroll
    for (int part = 0; part < kBlockK / kMmaK; ++part) {
      fragments.load(a_reader, b_reader, 0, part);
      sums.template add_products<T>(fragments);
    }
    __syncthreads();  // every thread has read them before one loads the next
  }
  sums.store(c, corner.row + warp.row, corner.col + warp.col, m, n);
}

}  // namespace

tile::Status swizzle(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kBlockM, kBlockN, &blocks));
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    return tile::launch(matmul_swizzle<T, a_along_k.value, b_along_k.value>, "matmul_swizzle",
                        blocks, kTensorThreads, 0, stream, op_a<T>(p, buffers), op_b<T>(p, buffers),
                        output_c<T, true>(p, buffers), p.m, p.n, terms(p));
  };
  return with_16_bits(p, launch);
}

}  // namespace matmul
