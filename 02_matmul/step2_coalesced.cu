// Step 2: neighbouring threads, neighbouring columns.
// Change: threadIdx.x counts columns instead of rows. Nothing else.
// Idea: a warp is 32 columns of one row now. It reads 32 neighbours of B, writes 32 neighbours of
//       C, and all its threads need the same element of A.
// Limit: every multiplication still loads both its factors, through the caches.
#include "matmul.cuh"
#include "matmul_launch.hpp"

namespace matmul {
namespace {

constexpr int kTileM = 8;   // rows of C that a block computes: threadIdx.y
constexpr int kTileN = 32;  // columns: threadIdx.x

// snippet-begin kernel
__global__ void matmul_coalesced(Operand<float> a,  // [m][k]
                                 Operand<float> b,  // [k][n]
                                 Output<float> c,   // [m][n]
                                 std::int64_t m, std::int64_t n, std::int64_t k) {
  const Corner corner = corner_of_block(n, kTileM, kTileN);
  const std::int64_t row = corner.row + threadIdx.y;
  const std::int64_t col = corner.col + threadIdx.x;
  if (row >= m || col >= n) return;

  float sum = 0;
  for (std::int64_t l = 0; l < k; ++l) sum += a(row, l) * b(l, col);
  c.store(row, col, sum);
}
// snippet-end kernel

}  // namespace

tile::Status coalesced(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kTileM, kTileN, &blocks));
  matmul_coalesced<<<blocks, dim3(kTileN, kTileM), 0, static_cast<cudaStream_t>(stream)>>>(
      op_a<float>(p, buffers), op_b<float>(p, buffers), output_c<float>(p, buffers), p.m, p.n,
      terms(p));
  TILE_TRY(tile::launch_status("matmul_coalesced"));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
