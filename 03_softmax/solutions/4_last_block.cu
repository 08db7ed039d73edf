// Exercise 03.4: the last block merges
//
// A row of millions of columns is too much for one block: blocks share it, a piece each. Each finds
// the maximum of its piece and sum exp(x - maximum), as in step 4, and publishes this pair in
// global memory. The kernel below does so. No block may wait for another here, for it may not have
// begun. So the block that comes last merges the pairs of its row, and writes log(sum exp(x)).
// `arrived` has a counter for each row, 0 at first. atomicAdd returns its value before the
// addition. What a thread writes before __threadfence() is seen by all who see what it writes after
// it, if they have a __threadfence() between reading the one and the other. Write the rest of the
// body. The order of the merges must not depend on which block is the last. Check it with: ./tour
// exercise 03.4
#include "exercises/exercises.hpp"
#include "softmax.cuh"

namespace softmax {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / tile::kWarp;

__global__ void last_block_kernel(tile::Rows<const float> x,  // [rows][cols]
                                  float* result,              // [rows]
                                  unsigned* arrived,          // [rows], zeros
                                  MaxSum* pairs,              // [rows][pieces]
                                  std::int64_t cols, int pieces) {
  __shared__ MaxSum seen_smem[2][kWarps];
  __shared__ bool is_last_smem;
  const std::int64_t row = blockIdx.x / pieces;
  const int piece = static_cast<int>(blockIdx.x) % pieces;
  const MergeMaxSum merge{kLog2E};
  MaxSum seen = merge.identity();
  for (int i = static_cast<int>(threadIdx.x); i < kPieceCols; i += kThreads) {
    const std::int64_t col = std::int64_t{piece} * kPieceCols + i;
    if (col < cols) seen = merge(seen, {x[row][col], 1});
  }
  seen = tile::reduce_block(seen, merge, seen_smem[0]);
  MaxSum* of_row = pairs + row * pieces;
  if (threadIdx.x == 0) {
    of_row[piece] = seen;
    __threadfence();  // the pair, and then that it has arrived
    is_last_smem = atomicAdd(&arrived[row], 1u) + 1 == static_cast<unsigned>(pieces);
    __threadfence();  // that all have arrived, and then their pairs
  }
  __syncthreads();  // whether this block is the last
  if (!is_last_smem) return;
  seen = merge.identity();
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) {
    seen = merge(seen, of_row[i]);
  }
  seen = tile::reduce_block(seen, merge, seen_smem[1]);
  if (threadIdx.x == 0) result[row] = seen.max + logf(seen.sum);
}

}  // namespace

tile::Status last_block(const float* x, float* result, unsigned* arrived, void* pairs,
                        std::int64_t rows, std::int64_t cols) {
  const std::int64_t pieces = (cols + kPieceCols - 1) / kPieceCols;
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", rows * pieces, 1, &blocks));
  last_block_kernel<<<blocks, kThreads>>>(tile::Rows<const float>{x, cols}, result, arrived,
                                          static_cast<MaxSum*>(pairs), cols,
                                          static_cast<int>(pieces));
  return tile::launch_status("last_block_kernel");
}

}  // namespace softmax
