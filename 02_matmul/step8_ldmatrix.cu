// Step 8: fragments by one instruction.
// Idea: ldmatrix loads four times 8 x 8 elements and hands them to the lanes in the order that mma
//       needs, transposed if necessary. A lane names an address; it does not gather.
// Change: tiles are made of chunks of 16 bytes, eight elements. A chunk of padding after each row
//         keeps the chunks of a column out of each other's banks.
// Limit: the padding is memory that holds nothing; and no warp multiplies while the block loads.
#include "matmul_launch.hpp"
#include "tensor_tiles.cuh"

namespace matmul {
namespace {

// snippet-begin padded
/// A chunk more to each row. A tile's rows have four chunks or sixteen, so that from row to row it
/// is an odd number; the 32 banks hold eight chunks, and eight steps of an odd number meet all
/// eight.
template <int kRows_, int kCols>
struct Padded {
  static constexpr int kRows = kRows_, kRowChunks = kCols / 8, kPitch = kRowChunks + 1;
  static constexpr int kChunks = kRows * kPitch;
  static_assert(kPitch % 2 == 1);
  static __device__ int place(int row, int chunk) { return row * kPitch + chunk; }
};
// snippet-end padded

// snippet-begin kernel
template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kTensorThreads)
    matmul_ldmatrix(Operand<T> a,  // [m][k]
                    Operand<T> b,  // [k][n]
                    Output<T> c,   // [m][n]
                    std::int64_t m, std::int64_t n, std::int64_t k) {
  using ATile = OperandTile<Padded, kAAlongK, kBlockM, kBlockK>;
  using BTile = OperandTile<Padded, kBAlongK, kBlockN, kBlockK>;
  __shared__ tile::Vector<T> a_smem[ATile::kChunks];  // 128 rows of C by 32 of k
  __shared__ tile::Vector<T> b_smem[BTile::kChunks];  // 32 of k by 128 columns of C
  const Corner corner = corner_of_block(n, kBlockM, kBlockN);
  const auto warp = corner_of_warp<kBlockN, kTensorWarpM, kTensorWarpN>();
  ChunkLoader<T, ATile, kAAlongK, false, kTensorThreads> a_loader(a, m, k, a_smem);
  ChunkLoader<T, BTile, kBAlongK, false, kTensorThreads> b_loader(b, n, k, b_smem);
  a_loader.begin(corner.row);
  b_loader.begin(corner.col);
  const FragmentReader<ATile, true, kAAlongK, kTensorWarpM> a_reader(a_smem, warp.row);
  const FragmentReader<BTile, false, kBAlongK, kTensorWarpN> b_reader(b_smem, warp.col);

  WarpSums<kTensorWarpM, kTensorWarpN> sums;
  WarpFragments<kTensorWarpM, kTensorWarpN> fragments;
  for (std::int64_t k0 = 0; k0 < k; k0 += kBlockK) {
    a_loader.load();
    b_loader.load();
    __syncthreads();  // both tiles are complete before a thread reads them
#pragma unroll
    for (int part = 0; part < kBlockK / kMmaK; ++part) {
      fragments.load(a_reader, b_reader, 0, part);
      sums.template add_products<T>(fragments);
    }
    __syncthreads();  // every thread has read them before one loads the next
  }
  sums.store(c, corner.row + warp.row, corner.col + warp.col, m, n);
}
// snippet-end kernel

}  // namespace

tile::Status ldmatrix(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kBlockM, kBlockN, &blocks));
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    return tile::launch(matmul_ldmatrix<T, a_along_k.value, b_along_k.value>, "matmul_ldmatrix",
                        blocks, kTensorThreads, 0, stream, op_a<T>(p, buffers), op_b<T>(p, buffers),
                        output_c<T>(p, buffers), p.m, p.n, terms(p));
  };
  TILE_TRY(with_16_bits(p, launch));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
