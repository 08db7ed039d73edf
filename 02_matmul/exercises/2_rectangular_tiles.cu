// Exercise 02.2: rectangular tiles
//
// C = A * B. In step 3 every tile has 32 x 32 elements, one for each thread. Here the tile of C has
// 16 x 64, the part of k is 32, and the block has 256 threads: each has 4 elements of C, and
// several of either tile to load. Load the tiles. What multiplies and stores is there already.
// Which elements should neighbouring threads load, so that they read neighbours in memory?
// Check it with: ./tour exercise 02.2
#include "exercises/exercises.hpp"
#include "matmul.cuh"
#include "matmul_launch.hpp"

namespace matmul {
namespace {

constexpr int kTileM = 16, kTileN = 64, kTileK = 32;
constexpr int kThreads = 256;
constexpr int kThreadsM = kThreads / kTileN;  // rows of C that the block covers at a time
constexpr int kThreadM = kTileM / kThreadsM;  // elements of a column of C that a thread has
static_assert(kThreadsM * kTileN == kThreads && kThreadM * kThreadsM == kTileM);

__global__ void matmul_rectangular_tiles(Operand<float> a,  // [m][k]
                                         Operand<float> b,  // [k][n]
                                         Output<float> c,   // [m][n]
                                         std::int64_t m, std::int64_t n, std::int64_t k) {
  __shared__ float a_smem[kTileM][kTileK];  // [rows of C][part of k]
  __shared__ float b_smem[kTileK][kTileN];  // [part of k][columns of C]
  const Corner corner = corner_of_block(n, kTileM, kTileN);
  // This thread's elements of C lie in one column, kThreadsM rows apart.
  const int first_row = threadIdx.x / kTileN, own_col = threadIdx.x % kTileN;

  float sum[kThreadM] = {};
  for (std::int64_t k0 = 0; k0 < k; k0 += kTileK) {
    // TODO: Load a_smem from a(corner.row + …, k0 + …), and b_smem from b(k0 + …, corner.col + …).
    // All 256 threads take part. What belongs into the places for which there is no element?
    // Where must the threads wait for each other?

    for (int l = 0; l < kTileK; ++l) {
      for (int i = 0; i < kThreadM; ++i) {
        sum[i] += a_smem[first_row + i * kThreadsM][l] * b_smem[l][own_col];
      }
    }
  }

  for (int i = 0; i < kThreadM; ++i) {
    const std::int64_t row = corner.row + first_row + i * kThreadsM, col = corner.col + own_col;
    if (row < m && col < n) c.store(row, col, sum[i]);
  }
}

}  // namespace

tile::Status rectangular_tiles(const Problem& problem, const Buffers& buffers) {
  TILE_TRY(validate(problem, buffers));
  if (is_empty(problem)) return {};
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(problem, kTileM, kTileN, &blocks));
  matmul_rectangular_tiles<<<blocks, kThreads>>>(
      op_a<float>(problem, buffers), op_b<float>(problem, buffers),
      output_c<float>(problem, buffers), problem.m, problem.n, terms(problem));
  return tile::launch_status("matmul_rectangular_tiles");
}

}  // namespace matmul
