// Step 1: one thread for each element of C.
// Idea: an element of C is a row of A times a column of B. Each thread walks along both.
// Limit: a warp's 32 threads are 32 rows. Where they read A or write C, each touches a sector of 32
//        bytes for the sake of 4.
#include "matmul.cuh"
#include "matmul_launch.hpp"

namespace matmul {
namespace {

constexpr int kTileM = 32;  // rows of C that a block computes: threadIdx.x
constexpr int kTileN = 8;   // columns: threadIdx.y

// snippet-begin kernel
__global__ void matmul_naive(Operand<float> a,  // [m][k]
                             Operand<float> b,  // [k][n]
                             Output<float> c,   // [m][n]
                             std::int64_t m, std::int64_t n, std::int64_t k) {
  const Corner corner = corner_of_block(n, kTileM, kTileN);
  const std::int64_t row = corner.row + threadIdx.x;
  const std::int64_t col = corner.col + threadIdx.y;
  if (row >= m || col >= n) return;

  float sum = 0;
  for (std::int64_t l = 0; l < k; ++l) sum += a(row, l) * b(l, col);
  c.store(row, col, sum);
}
// snippet-end kernel

}  // namespace

tile::Status naive(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kTileM, kTileN, &blocks));
  matmul_naive<<<blocks, dim3(kTileM, kTileN), 0, static_cast<cudaStream_t>(stream)>>>(
      op_a<float>(p, buffers), op_b<float>(p, buffers), output_c<float>(p, buffers), p.m, p.n,
      terms(p));
  TILE_TRY(tile::launch_status("matmul_naive"));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
