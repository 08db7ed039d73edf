// Exercise 02.4: a swizzle
//
// C = A * B on tensor cores, as in steps 8 and 9. Tiles are made of chunks of 16 bytes. Shared
// memory has 32 banks of 4 bytes, so the chunk in place p lies in the banks 4 (p % 8) to
// 4 (p % 8) + 3: there are eight groups of four. Eight lanes that want 16 bytes each are served
// together, in one wavefront, if their chunks lie in eight different groups.
// ldmatrix.x4 reads four times the same chunk of eight rows that follow one another. A row of A's
// tile has 4 chunks, one of B's has 16. Here each row begins where the one before ends. The kernel
// is right, but it waits. Padding would help, but costs memory.
// Change place() so that no read waits and no memory is added. The kernel can stay as it is.
// tile/ptx/swizzle.hpp has one answer for each of the two tiles. Find your own before you look:
// with which rows does row 0 of A share its banks, and with which does row 0 of B?
// Check it with: ./tour exercise 02.4
#include "exercises/exercises.hpp"
#include "matmul_launch.hpp"
#include "tensor_tiles.cuh"

namespace matmul {
namespace {

// Where chunk `chunk` of row `row` lies, if rows have `row_chunks` chunks, 4 or 16.
__host__ __device__ constexpr int place(int row_chunks, int row, int chunk) {
  // Two rows of 4 chunks fill the banks, so rows of one parity collide: row / 2 tells them apart.
  // Rows of 16 chunks all begin at bank 0.
  const int mixed = row_chunks == 4 ? chunk ^ row / 2 % 4 : chunk ^ row % 8;
  return row * row_chunks + mixed;
}

template <int kRows_, int kCols>
struct Placed {
  static constexpr int kRows = kRows_, kRowChunks = kCols / 8, kPitch = kRowChunks;
  static constexpr int kChunks = kRows * kPitch;
  static __device__ int place(int row, int chunk) { return matmul::place(kRowChunks, row, chunk); }
};

__global__ void __launch_bounds__(kTensorThreads)
    matmul_swizzled_tiles(Operand<__half> a,  // [m][k]
                          Operand<__half> b,  // [k][n]
                          Output<__half> c,   // [m][n]
                          std::int64_t m, std::int64_t n, std::int64_t k) {
  using ATile = OperandTile<Placed, true, kBlockM, kBlockK>;   // 128 rows of 4 chunks
  using BTile = OperandTile<Placed, false, kBlockN, kBlockK>;  // 32 rows of 16 chunks
  __shared__ tile::Vector<__half> a_smem[ATile::kChunks];
  __shared__ tile::Vector<__half> b_smem[BTile::kChunks];
  const Corner corner = corner_of_block(n, kBlockM, kBlockN);
  const auto warp = corner_of_warp<kBlockN, kTensorWarpM, kTensorWarpN>();
  ChunkLoader<__half, ATile, true, false, kTensorThreads> a_loader(a, m, k, a_smem);
  ChunkLoader<__half, BTile, false, false, kTensorThreads> b_loader(b, n, k, b_smem);
  a_loader.begin(corner.row);
  b_loader.begin(corner.col);
  const FragmentReader<ATile, true, true, kTensorWarpM> a_reader(a_smem, warp.row);
  const FragmentReader<BTile, false, false, kTensorWarpN> b_reader(b_smem, warp.col);

  WarpSums<kTensorWarpM, kTensorWarpN> sums;
  WarpFragments<kTensorWarpM, kTensorWarpN> fragments;
  for (std::int64_t k0 = 0; k0 < k; k0 += kBlockK) {
    a_loader.load();
    b_loader.load();
    __syncthreads();  // both tiles are complete before a thread reads them
#pragma unroll
    for (int part = 0; part < kBlockK / kMmaK; ++part) {
      fragments.load(a_reader, b_reader, 0, part);
      sums.add_products<__half>(fragments);
    }
    __syncthreads();  // every thread has read them before one loads the next
  }
  sums.store(c, corner.row + warp.row, corner.col + warp.col, m, n);
}

}  // namespace

tile::Status swizzled_tiles(const Problem& problem, const Buffers& buffers) {
  TILE_TRY(validate(problem, buffers));
  if (is_empty(problem)) return {};
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(problem, kBlockM, kBlockN, &blocks));
  matmul_swizzled_tiles<<<blocks, kTensorThreads>>>(
      op_a<__half>(problem, buffers), op_b<__half>(problem, buffers),
      output_c<__half>(problem, buffers), problem.m, problem.n, terms(problem));
  return tile::launch_status("matmul_swizzled_tiles");
}

// The check asks here where the chunks lie.
int chunk_place(int row_chunks, int row, int chunk) { return place(row_chunks, row, chunk); }

}  // namespace matmul
