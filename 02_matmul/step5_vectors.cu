// Step 5: 16 bytes with one instruction.
// Idea: a load of four neighbours is one instruction instead of four. Between two barriers a thread
//       of step 4 loads 128 values from shared memory for 512 products; here it is 48 vectors for
//       1,024.
// Change: global and shared memory are read and written in vectors; a thread computes 16 x 8
//         elements, and the warps are arranged so that their vectors meet no bank conflict.
//         What is not aligned, or reaches over an edge, goes element by element (tiles.cuh).
// Limit: waiting. Between two barriers the block either loads or multiplies.
#include "matmul_launch.hpp"
#include "tiles.cuh"

namespace matmul {
namespace {

// snippet-begin kernel
template <bool kAAlongK, bool kBAlongK>
__global__ void matmul_vectors(Operand<float> a,  // [m][k]
                               Operand<float> b,  // [k][n]
                               Output<float> c,   // [m][n]
                               std::int64_t m, std::int64_t n, std::int64_t k) {
  __shared__ alignas(16) Tile a_smem;  // [part of k][rows of C]
  __shared__ alignas(16) Tile b_smem;  // [part of k][columns of C]
  const Corner corner = corner_of_block(n, kTileM, kTileN);
  const ThreadPosition at;
  TileLoader<kAAlongK> a_loader(a.data, kAAlongK ? a.row_stride : a.col_stride, corner.row, m, k);
  TileLoader<kBAlongK> b_loader(b.data, kBAlongK ? b.col_stride : b.row_stride, corner.col, n, k);

  Sums sums;
  for (std::int64_t k0 = 0; k0 < k; k0 += kTileK) {
    a_loader.fetch();
    b_loader.fetch();
    a_loader.put(a_smem);
    b_loader.put(b_smem);
    __syncthreads();  // both tiles are complete before a thread reads them
#pragma unroll
    for (int l = 0; l < kTileK; ++l) {
      Factors factors;
      factors.load(a_smem, b_smem, l, at);
      sums.add_products(factors);
    }
    __syncthreads();  // every thread has read them before one stores the next
  }
  sums.store(c, corner, at, m, n, a_smem[0]);
}
// snippet-end kernel

}  // namespace

tile::Status vectors(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kTileM, kTileN, &blocks));
  const auto launch = [&](auto a_along_k, auto b_along_k) {
    return tile::launch(matmul_vectors<a_along_k.value, b_along_k.value>, "matmul_vectors", blocks,
                        kThreads, 0, stream, op_a<float>(p, buffers), op_b<float>(p, buffers),
                        output_c<float>(p, buffers), p.m, p.n, terms(p));
  };
  TILE_TRY(with_directions(p, launch));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
