// Step 3: tiles in shared memory.
// Idea: the 32 x 32 threads of a block need the same 32 rows of A and 32 columns of B. They load a
//       tile of each into shared memory together, and each value loaded is used 32 times.
// Change: the walk along k goes tile by tile: load, wait for the others, multiply, wait again.
// Limit: two values from shared memory for every multiplication. It delivers 32 values a cycle, and
//        the multiprocessor could multiply 128 pairs.
#include "matmul.cuh"
#include "matmul_launch.hpp"

namespace matmul {
namespace {

constexpr int kTile = 32;  // rows and columns of every tile, and of the block's threads

// snippet-begin kernel
__global__ void matmul_shared_tile(Operand<float> a,  // [m][k]
                                   Operand<float> b,  // [k][n]
                                   Output<float> c,   // [m][n]
                                   std::int64_t m, std::int64_t n, std::int64_t k) {
  __shared__ float a_smem[kTile][kTile];  // [rows of C][part of k]
  __shared__ float b_smem[kTile][kTile];  // [part of k][columns of C]
  const Corner corner = corner_of_block(n, kTile, kTile);
  const int x = threadIdx.x, y = threadIdx.y;
  const std::int64_t row = corner.row + y, col = corner.col + x;

  float sum = 0;
  for (std::int64_t k0 = 0; k0 < k; k0 += kTile) {
    // Each thread loads one element of each tile. Elements outside count as zero, which adds
    // nothing to a sum. No thread may leave early: all are needed for loading, and at the barriers.
    a_smem[y][x] = row < m && k0 + x < k ? a(row, k0 + x) : 0;
    b_smem[y][x] = k0 + y < k && col < n ? b(k0 + y, col) : 0;
    __syncthreads();  // both tiles are complete before a thread reads them

    for (int l = 0; l < kTile; ++l) sum += a_smem[y][l] * b_smem[l][x];
    __syncthreads();  // every thread has read them before one loads the next
  }
  if (row < m && col < n) c.store(row, col, sum);
}
// snippet-end kernel

}  // namespace

tile::Status shared_tile(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kTile, kTile, &blocks));
  matmul_shared_tile<<<blocks, dim3(kTile, kTile), 0, static_cast<cudaStream_t>(stream)>>>(
      op_a<float>(p, buffers), op_b<float>(p, buffers), output_c<float>(p, buffers), p.m, p.n,
      terms(p));
  TILE_TRY(tile::launch_status("matmul_shared_tile"));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
