// Exercise 02.3: bias and ReLU
//
// D = max(0, A * B + bias), a layer of a neural network. bias has one element for each column, and
// max(0, x), called ReLU, replaces what is negative by 0. Two kernels more would read and write the
// whole matrix twice more. "Fused" into the product they cost almost nothing: a thread has its
// sum in a register anyway before it stores it. Fuse them.
// A NaN must stay one: where A * B + bias is NaN, D is NaN, so that an error does not disappear.
// What does fmaxf(0, NaN) return?
// Check it with: ./tour exercise 02.3
#include "exercises/exercises.hpp"
#include "matmul.cuh"
#include "matmul_launch.hpp"

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
    __syncthreads();  // both tiles are complete before a thread reads them

    for (int l = 0; l < kTile; ++l) sum += a_smem[y][l] * b_smem[l][x];
    __syncthreads();  // every thread has read them before one loads the next
  }
  if (row < m && col < n) {
    const float value = sum + bias[col];
    // No comparison with NaN is true, so it is stored as it is.
    d.store(row, col, value < 0 ? 0 : value);
  }
}

}  // namespace

tile::Status bias_relu(const Problem& problem, const Buffers& buffers, const float* bias) {
  if (!bias) return tile::invalid_argument("bias", "is null");
  TILE_TRY(validate(problem, buffers));
  if (is_empty(problem)) return {};
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(problem, kTile, kTile, &blocks));
  matmul_bias_relu<<<blocks, dim3(kTile, kTile)>>>(
      op_a<float>(problem, buffers), op_b<float>(problem, buffers), bias,
      output_c<float>(problem, buffers), problem.m, problem.n, terms(problem));
  return tile::launch_status("matmul_bias_relu");
}

}  // namespace matmul
