// Step 6: loading and multiplying at the same time.
// Idea: memory answers late, so ask early. While a tile is multiplied, the next is on its way from
//       global memory to registers; while the products of one k are added, the factors of the next
//       are on their way from shared memory to registers.
// Change: shared memory holds two tiles of each operand. The next is stored where no thread
//         reads, so one barrier a tile is enough. Blocks near each other in time share rows and
//         columns.
// Limit: the multiply-adds themselves, and the registers that feed them. To go further takes other
//        instructions: the next steps use tensor cores.
#include "matmul_launch.hpp"
#include "tiles.cuh"

namespace matmul {
namespace {

// snippet-begin order
// Cards start blocks in the order of their number, which CUDA does not promise, and an H200 runs
// 264 of these at one time. Taken in rows, at 8192 x 8192, they need all 64 tiles of B and five of
// A. Taken in columns of eight tiles they need 33 of B and eight of A: the L2 cache serves more of
// their loads.
constexpr std::int64_t kGroup = 8;
static_assert(kTileK % 2 == 0, "the factors of a tile's first k are in factors[0]");

__device__ Corner corner_in_groups(std::int64_t m, std::int64_t n) {
  const std::int64_t down = (m + kTileM - 1) / kTileM, across = (n + kTileN - 1) / kTileN;
  const std::int64_t group = blockIdx.x / (kGroup * across),
                     in_group = blockIdx.x % (kGroup * across);
  const std::int64_t rows = min(kGroup, down - group * kGroup);  // the last group may be lower
  return {(group * kGroup + in_group % rows) * kTileM, in_group / rows * kTileN};
}
// snippet-end order

// snippet-begin kernel
template <bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kThreads, 2)
    matmul_double_buffered(Operand<float> a,       // [m][k]
                           Operand<float> b,       // [k][n]
                           Output<float, true> c,  // [m][n]
                           std::int64_t m, std::int64_t n, std::int64_t k) {
  __shared__ alignas(16) Tile a_smem[2];  // [buffer][part of k][rows of C]
  __shared__ alignas(16) Tile b_smem[2];  // [buffer][part of k][columns of C]
  const Corner corner = corner_in_groups(m, n);
  const ThreadPosition at;
  TileLoader<kAAlongK> a_loader(a.data, kAAlongK ? a.row_stride : a.col_stride, corner.row, m, k);
  TileLoader<kBAlongK> b_loader(b.data, kBAlongK ? b.col_stride : b.row_stride, corner.col, n, k);

  a_loader.fetch();
  b_loader.fetch();
  a_loader.put(a_smem[0]);
  b_loader.put(b_smem[0]);
  __syncthreads();  // the first tiles are complete before a thread reads them

  Sums sums;
  Factors factors[2];  // of this k and of the next
  factors[0].load(a_smem[0], b_smem[0], 0, at);
  int buffer = 0;
  for (std::int64_t k0 = 0; k0 < k; k0 += kTileK) {
    a_loader.fetch();  // after the last tile this gives zeros, without a load
    b_loader.fetch();
#pragma unroll
    for (int l = 0; l < kTileK; ++l) {
      if (l == kTileK - 1) {  // the next k is in the next tile
        buffer ^= 1;
        a_loader.put(a_smem[buffer]);
        b_loader.put(b_smem[buffer]);
        // The next tile is complete before a thread reads it; and every thread has read all of
        // this one before one of them, in the next iteration, stores over it.
        __syncthreads();
      }
      factors[(l + 1) % 2].load(a_smem[buffer], b_smem[buffer], (l + 1) % kTileK, at);
      sums.add_products(factors[l % 2]);
    }
  }
  sums.store(c, corner, at, m, n, a_smem[0][0]);
}
// snippet-end kernel

}  // namespace

tile::Status double_buffered(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kTileM, kTileN, &blocks));
  const auto launch = [&](auto a_along_k, auto b_along_k) {
    return tile::launch(matmul_double_buffered<a_along_k.value, b_along_k.value>,
                        "matmul_double_buffered", blocks, kThreads, 0, stream,
                        op_a<float>(p, buffers), op_b<float>(p, buffers),
                        output_c<float, true>(p, buffers), p.m, p.n, terms(p));
  };
  return with_directions(p, launch);
}

}  // namespace matmul
