// Step 11: fp32 matrices on tensor cores.
// Idea: tensor cores multiply fp32 numbers if they may round them to 11 bits first, tf32, and add
//       the products in fp32: faster than step 6, with errors of 2^-11 instead of 2^-24.
// Change: step 10's ring holds floats. ldmatrix transposes 16-bit elements only, so each lane loads
//         its own, and rounds them: the instruction itself would cut the lower bits off.
// Limit: four times as many loads from shared memory for a product as with ldmatrix and 16 bits.
#include "matmul_launch.hpp"
#include "tensor_tiles.cuh"

namespace matmul {
namespace {

constexpr int kStages = 4, kTileK = 16, kMmaKTf32 = 8;

// snippet-begin padded
/// A lane loads the element at row lane / 4 and column lane % 4 of 8 x 4 if the rows are x, and at
/// row lane % 4 and column lane / 4 if they are k. With rows of 20 floats in one case, of 136 in
/// the other, it meets a bank of its own: 20 g + s, or g + 136 s, for g < 8 and s < 4.
template <int kRows_, int kCols>
struct PaddedFloats {
  static constexpr int kRows = kRows_, kRowChunks = kCols / 4;
  static constexpr int kPitch = kRowChunks + (kCols == kTileK ? 1 : 2);
  static constexpr int kChunks = kRows * kPitch;
  static __device__ int place(int row, int chunk) { return row * kPitch + chunk; }
};
// snippet-end padded

template <class Tile, bool kAlongK>
__device__ std::uint32_t load_rounded(const tile::Vector<float>* tile, int x, int k) {
  const float* values = tile->element;
  return tile::ptx::to_tf32(values[(kAlongK ? x : k) * Tile::kPitch * 4 + (kAlongK ? k : x)]);
}

template <bool kAAlongK, bool kBAlongK, bool kWhole>
__global__ void __launch_bounds__(kTensorThreads, 2)
    matmul_tf32(Operand<float> a,       // [m][k]
                Operand<float> b,       // [k][n]
                Output<float, true> c,  // [m][n]
                std::int64_t m, std::int64_t n, std::int64_t k) {
  using ATile = OperandTile<PaddedFloats, kAAlongK, kBlockM, kTileK>;
  using BTile = OperandTile<PaddedFloats, kBAlongK, kBlockN, kTileK>;
  constexpr int kStageChunks = ATile::kChunks + BTile::kChunks;
  extern __shared__ __align__(128) unsigned char smem[];  // [stage]{A's tile, B's tile}
  auto* a_tile = reinterpret_cast<tile::Vector<float>*>(smem);
  auto* b_tile = a_tile + ATile::kChunks;
  const Corner corner = corner_of_block(n, kBlockM, kBlockN);
  const auto warp = corner_of_warp<kBlockN, kTensorWarpM, kTensorWarpN>();
  ChunkLoader<float, ATile, kAAlongK, kWhole, kTensorThreads> a_loader(a, m, k, a_tile);
  ChunkLoader<float, BTile, kBAlongK, kWhole, kTensorThreads> b_loader(b, n, k, b_tile);
  a_loader.begin(corner.row);
  b_loader.begin(corner.col);

  int to = 0;  // the stage that is filled next
  auto copy = [&] {
    if (a_loader.tiles_left() > 0) {
      a_loader.copy(to * kStageChunks * 16);
      b_loader.copy(to * kStageChunks * 16);
    }
    tile::ptx::cp_async_commit();  // even without copies, so that waits can count
    to = (to + 1) % kStages;
  };
  const int turns = a_loader.tiles_left();
  for (int i = 0; i < kStages - 1; ++i) copy();

  WarpSums<kTensorWarpM, kTensorWarpN> sums;
  for (int turn = 0; turn < turns; ++turn) {
    // This thread's copies to the oldest of the kStages - 1 stages under way have landed.
    tile::ptx::cp_async_wait<kStages - 2>();
    // All threads' copies to it have, and all warps are done with the stage that is filled next.
    __syncthreads();
    copy();
    const int stage = turn % kStages * kStageChunks;
#pragma unroll
    for (int part = 0; part < kTileK; part += kMmaKTf32) {
      std::uint32_t a_frag[sums.kM][4], b_frag[sums.kN][2];
#pragma unroll
      for (int r = 0; r < sums.kM * 4; ++r) {  // all rows of op(A) for this part of k
        const tile::ptx::Element at = tile::ptx::element_of_a<32>(threadIdx.x % 32, r % 4);
        a_frag[r / 4][r % 4] = load_rounded<ATile, kAAlongK>(
            a_tile + stage, warp.row + r / 4 * kMmaM + at.row, part + at.col);
      }
#pragma unroll
      for (int r = 0; r < sums.kN * 2; ++r) {  // and all columns of op(B)
        const tile::ptx::Element at = tile::ptx::element_of_b<32>(threadIdx.x % 32, r % 2);
        b_frag[r / 2][r % 2] = load_rounded<BTile, kBAlongK>(
            b_tile + stage, warp.col + r / 2 * kMmaN + at.col, part + at.row);
      }
#pragma unroll
      for (int i = 0; i < sums.kM * sums.kN; ++i) {
        const int row = i / sums.kN, col = i % sums.kN;
        tile::ptx::mma_m16n8k8_tf32(sums.sum[row][col], a_frag[row], b_frag[col]);
      }
    }
  }
  sums.store(c, corner.row + warp.row, corner.col + warp.col, m, n);
}

}  // namespace

tile::Status tf32(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kBlockM, kBlockN, &blocks));
  const bool are_whole = are_whole_tiles(p, buffers, kBlockM, kBlockN, kTileK);
  const auto launch = [&](auto a_along_k, auto b_along_k, auto whole) {
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value, kWhole = whole.value;
    using ATile = OperandTile<PaddedFloats, kAAlongK, kBlockM, kTileK>;
    using BTile = OperandTile<PaddedFloats, kBAlongK, kBlockN, kTileK>;
    constexpr int kBytes = kStages * (ATile::kChunks + BTile::kChunks) * 16;
    return tile::launch(matmul_tf32<kAAlongK, kBAlongK, kWhole>, "matmul_tf32", blocks,
                        kTensorThreads, kBytes, stream, op_a<float>(p, buffers),
                        op_b<float>(p, buffers), output_c<float, true>(p, buffers), p.m, p.n,
                        terms(p));
  };
  return with_directions(p, launch, are_whole);
}

}  // namespace matmul
