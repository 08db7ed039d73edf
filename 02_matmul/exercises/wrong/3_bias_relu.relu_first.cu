// Refused: bias comes before ReLU
#include "exercises/exercises.hpp"
#include "matrices.cuh"

namespace matmul {
namespace {

constexpr int kTile = 32;  // rows and columns of every tile, and of the block's threads

__global__ void matmul_bias_relu(Operand<float> a,   // [m][k]
                                 Operand<float> b,   // [k][n]
                                 const float* bias,  // [n]
                                 Output<float> d,    // [m][n]
                                 std::int64_t m, std::int64_t n, std::int64_t k) {
  __shared__ float a_smem[kTile][kTile];  // [rows of D][part of k]
  __shared__ float b_smem[kTile][kTile];  // [part of k][columns of D]
  const Corner corner = corner_of_block(n, kTile, kTile);
  const int x = threadIdx.x, y = threadIdx.y;
  const std::int64_t row = corner.row + y, col = corner.col + x;

  float sum = 0;
  for (std::int64_t k0 = 0; k0 < k; k0 += kTile) {
    a_smem[y][x] = row < m && k0 + x < k ? a(row, k0 + x) : 0;
    b_smem[y][x] = k0 + y < k && col < n ? b(k0 + y, col) : 0;
    __syncthreads();  // the tiles are complete before anybody reads them

    for (int l = 0; l < kTile; ++l) sum += a_smem[y][l] * b_smem[l][x];
    __syncthreads();  // everybody has read them before anybody loads the next
  }
  if (row < m && col < n) d.store(row, col, (sum < 0 ? 0 : sum) + bias[col]);
}

}  // namespace

tile::Status bias_relu(const Problem& problem, const Buffers& buffers, const float* bias) {
  if (!bias) return tile::invalid_argument("bias", "is null");
  unsigned blocks = 0;
  tile::Status status = blocks_for_tiles(problem, buffers, kFp32, kTile, kTile, &blocks);
  if (!status.ok() || blocks == 0) return status;
  const Product<float> p(problem, buffers);
  matmul_bias_relu<<<blocks, dim3(kTile, kTile)>>>(p.a, p.b, bias, p.c, p.m, p.n, p.k);
  return tile::launch_status("matmul_bias_relu");
}

}  // namespace matmul
