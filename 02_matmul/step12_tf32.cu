// Step 12: fp32 matrices on tensor cores.
// Idea: tensor cores multiply fp32 numbers if they may round them to 11 bits first, tf32, and add
//       the products in fp32: faster than step 6, with errors of 2^-11 instead of 2^-24.
// Change: operands of 32 bits. ldmatrix can transpose elements of 16 bits only, so each lane loads
//         its own, and rounds them: the instruction itself would cut the lower bits off.
// Limit: four times as many loads from shared memory for a product as with ldmatrix and 16 bits.
#include "tensor_tiles.cuh"
#include "tile/ptx/convert.cuh"

namespace matmul {
namespace {

constexpr int kStages = 4;
constexpr int kTileK = 16, kMmaKTf32 = 8;

// snippet-begin padded
/// Rows of floats. A lane loads the element at row lane / 4 and column lane % 4 of an 8 x 4 part if
/// the rows are x, or at row lane % 4 and column lane / 4 if they are k. With a pitch of 20 floats
/// in the first case, and of 136 in the second, the 32 lanes meet 32 banks: 20 g + s and g + 136 s
/// are different modulo 32 for g < 8 and s < 4.
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
  const int row = kAlongK ? x : k, col = kAlongK ? k : x;
  const float* values = tile[0].element;
  return tile::ptx::to_tf32(values[row * Tile::kPitch * 4 + col]);
}

template <bool kAAlongK, bool kBAlongK, bool kWhole>
__global__ void __launch_bounds__(kTensorThreads)
    matmul_tf32(Operand<float> a,  // [m][k]
                Operand<float> b,  // [k][n]
                Output<float> c,   // [m][n]
                std::int64_t m, std::int64_t n, std::int64_t k) {
  using ATile = OperandTile<PaddedFloats, kAAlongK, kBlockM, kTileK>;
  using BTile = OperandTile<PaddedFloats, kBAlongK, kBlockN, kTileK>;
  using Chunk = tile::Vector<float>;
  constexpr int kStageChunks = ATile::kChunks + BTile::kChunks;
  extern __shared__ __align__(128) unsigned char smem[];  // [stage]{A's tile, B's tile}
  auto* a_tile = reinterpret_cast<Chunk*>(smem);
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
    tile::ptx::cp_async_commit();  // also where there is nothing to copy, so that waits can count
    to = (to + 1) % kStages;
  };
  const int turns = a_loader.tiles_left();
  for (int i = 0; i < kStages - 1; ++i) copy();

  WarpSums<kTensorWarpM, kTensorWarpN> sums;
  const int lane = threadIdx.x % 32;
  for (int turn = 0; turn < turns; ++turn) {
    tile::ptx::cp_async_wait<kStages - 2>();
    // Everybody's copies have landed; and everybody has read the stage before, filled next.
    __syncthreads();
    copy();
    const Chunk* a_stage = a_tile + turn % kStages * kStageChunks;
    const Chunk* b_stage = b_tile + turn % kStages * kStageChunks;
#pragma unroll
    for (int part = 0; part < kTileK; part += kMmaKTf32) {
      std::uint32_t a_frag[sums.kM][4], b_frag[sums.kN][2];
#pragma unroll
      for (int i = 0; i < sums.kM; ++i) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const tile::ptx::Element at = tile::ptx::element_of_a<32>(lane, r);
          a_frag[i][r] =
              load_rounded<ATile, kAAlongK>(a_stage, warp.row + i * kMmaM + at.row, part + at.col);
        }
      }
#pragma unroll
      for (int j = 0; j < sums.kN; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const tile::ptx::Element at = tile::ptx::element_of_b<32>(lane, r);
          b_frag[j][r] =
              load_rounded<BTile, kBAlongK>(b_stage, warp.col + j * kMmaN + at.col, part + at.row);
        }
      }
#pragma unroll
      for (int i = 0; i < sums.kM; ++i) {
#pragma unroll
        for (int j = 0; j < sums.kN; ++j) {
          tile::ptx::mma_m16n8k8_tf32(sums.sum[i][j], a_frag[i], b_frag[j]);
        }
      }
    }
  }
  sums.store(c, corner.row + warp.row, corner.col + warp.col, m, n);
}

}  // namespace

tile::Status tf32(const Problem& problem, const Buffers& buffers, void* stream) {
  const auto launch = [&](unsigned blocks, const Product<float>& p) {
    return with_directions(problem, [&](auto a_along_k, auto b_along_k) {
      const auto tf32_kernel = are_whole_tiles(p, kBlockM, kBlockN, kTileK)
                                   ? matmul_tf32<a_along_k.value, b_along_k.value, true>
                                   : matmul_tf32<a_along_k.value, b_along_k.value, false>;
      using ATile = OperandTile<PaddedFloats, a_along_k.value, kBlockM, kTileK>;
      using BTile = OperandTile<PaddedFloats, b_along_k.value, kBlockN, kTileK>;
      constexpr int kBytes = kStages * (ATile::kChunks + BTile::kChunks) * 16;
      TILE_RETURN_IF_CUDA_ERROR(
          cudaFuncSetAttribute(tf32_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
      tf32_kernel<<<blocks, kTensorThreads, kBytes, static_cast<cudaStream_t>(stream)>>>(
          p.a, p.b, p.c, p.m, p.n, p.k);
      return tile::launch_status("matmul_tf32");
    });
  };
  return launch_on_tiles<float>(problem, buffers, kTf32, kBlockM, kBlockN, stream, launch);
}

}  // namespace matmul
