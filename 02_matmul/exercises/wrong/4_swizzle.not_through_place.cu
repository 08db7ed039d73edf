// Refused: so the kernel must have been changed
#include "exercises/exercises.hpp"
#include "tensor_single_stage.cuh"

namespace matmul {
namespace {

// Where chunk `chunk` of row `row` lies, if rows have `row_chunks` chunks, 4 or 16.
__host__ __device__ constexpr int place(int row_chunks, int row, int chunk) {
  return row * row_chunks + (chunk ^ (row_chunks == 4 ? row / 2 % 4 : row % 8));
}

template <int kRows_, int kCols>
struct Placed {
  static constexpr int kRows = kRows_, kRowChunks = kCols / 8, kPitch = kRowChunks;
  static constexpr int kChunks = kRows * kPitch;
  static __device__ int place(int row, int chunk) {
    return matmul::place(kRowChunks, row, chunk & ~1);
  }
};

__global__ void __launch_bounds__(kTensorThreads) matmul_swizzled_tiles(Product<__half> p) {
  using ATile = OperandTile<Placed, true, kBlockM, kBlockK>;   // 128 rows of 4 chunks
  using BTile = OperandTile<Placed, false, kBlockN, kBlockK>;  // 32 rows of 16 chunks
  __shared__ tile::Vector<__half> a_smem[ATile::kChunks];
  __shared__ tile::Vector<__half> b_smem[BTile::kChunks];
  multiply_single_stage<ATile, BTile, true, false>(p, a_smem, b_smem);
}

}  // namespace

tile::Status swizzled_tiles(const Problem& problem, const Buffers& buffers) {
  unsigned blocks = 0;
  tile::Status status = blocks_for_tiles(problem, buffers, k16Bits, kBlockM, kBlockN, &blocks);
  if (!status.ok() || blocks == 0) return status;
  matmul_swizzled_tiles<<<blocks, kTensorThreads>>>(Product<__half>(problem, buffers));
  return tile::launch_status("matmul_swizzled_tiles");
}

// The check asks here where the chunks lie.
int chunk_place(int row_chunks, int row, int chunk) { return place(row_chunks, row, chunk); }

}  // namespace matmul
