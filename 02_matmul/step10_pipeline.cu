// Step 10: copies in the background.
// Idea: cp.async copies from global to shared memory past the registers, and the thread goes on. So
//       a block can have several tiles under way while it multiplies one.
// Change: a ring of four stages: three are on their way or waiting, one is multiplied. While mma
//         works on one part of k, ldmatrix loads the fragments of the next.
// Limit: a warp loads 64 + 32 rows and columns of each operand for 64 x 32 elements of C: shared
//        memory is read too often.
#include "matmul_launch.hpp"
#include "tensor_tiles.cuh"

namespace matmul {
namespace {

constexpr int kStages = 4;

// snippet-begin kernel
template <class T, bool kAAlongK, bool kBAlongK, bool kWhole>
__global__ void __launch_bounds__(kTensorThreads, 2)
    matmul_pipeline(Operand<T> a,  // [m][k]
                    Operand<T> b,  // [k][n]
                    Output<T> c,   // [m][n]
                    std::int64_t m, std::int64_t n, std::int64_t k) {
  using ATile = OperandTile<Swizzled, kAAlongK, kBlockM, kBlockK>;
  using BTile = OperandTile<Swizzled, kBAlongK, kBlockN, kBlockK>;
  using Chunk = tile::Vector<T>;
  constexpr int kStageChunks = ATile::kChunks + BTile::kChunks;
  constexpr int kStageBytes = kStageChunks * static_cast<int>(sizeof(Chunk));
  extern __shared__ __align__(128) unsigned char smem[];  // [stage]{A's tile, B's tile}
  auto* a_tile = reinterpret_cast<Chunk*>(smem);
  auto* b_tile = a_tile + ATile::kChunks;
  const Corner corner = corner_of_block(n, kBlockM, kBlockN);
  const auto warp = corner_of_warp<kBlockN, kTensorWarpM, kTensorWarpN>();
  ChunkLoader<T, ATile, kAAlongK, kWhole, kTensorThreads> a_loader(a, m, k, a_tile);
  ChunkLoader<T, BTile, kBAlongK, kWhole, kTensorThreads> b_loader(b, n, k, b_tile);
  a_loader.begin(corner.row);
  b_loader.begin(corner.col);
  const FragmentReader<ATile, true, kAAlongK, kTensorWarpM> a_reader(a_tile, warp.row);
  const FragmentReader<BTile, false, kBAlongK, kTensorWarpN> b_reader(b_tile, warp.col);

  int to = 0;  // the stage that is filled next
  auto copy = [&] {
    if (a_loader.tiles_left() > 0) {
      a_loader.copy(to * kStageBytes);
      b_loader.copy(to * kStageBytes);
    }
    tile::ptx::cp_async_commit();  // even without copies, so that waits can count
    to = (to + 1) % kStages;
  };
  const int turns = a_loader.tiles_left();
  for (int i = 0; i < kStages - 1; ++i) copy();

  WarpSums<kTensorWarpM, kTensorWarpN> sums;
  WarpFragments<kTensorWarpM, kTensorWarpN> fragments[2];  // of this part of k and of the next
  for (int turn = 0; turn < turns; ++turn) {
    // This thread's copies to the oldest of the kStages - 1 stages under way have landed.
    tile::ptx::cp_async_wait<kStages - 2>();
    // All threads' copies to it have, and all warps are done with the stage that is filled next.
    __syncthreads();
    copy();
    const int stage_bytes = turn % kStages * kStageBytes;
    fragments[0].load(a_reader, b_reader, stage_bytes, 0);
#pragma unroll
    for (int part = 0; part < kBlockK / kMmaK; ++part) {
      if (part + 1 < kBlockK / kMmaK) {
        fragments[(part + 1) % 2].load(a_reader, b_reader, stage_bytes, part + 1);
      }
      sums.template add_products<T>(fragments[part % 2]);
    }
  }
  sums.store(c, corner.row + warp.row, corner.col + warp.col, m, n);
}
// snippet-end kernel

}  // namespace

tile::Status pipeline(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(p, kBlockM, kBlockN, &blocks));
  const bool are_whole = are_whole_tiles(p, buffers, kBlockM, kBlockN, kBlockK);
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k, auto whole) {
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value, kWhole = whole.value;
    using T = decltype(element);
    constexpr int kBytes = kStages * (kBlockM + kBlockN) * kBlockK * static_cast<int>(sizeof(T));
    return tile::launch(matmul_pipeline<T, kAAlongK, kBAlongK, kWhole>, "matmul_pipeline", blocks,
                        kTensorThreads, kBytes, stream, op_a<T>(p, buffers), op_b<T>(p, buffers),
                        output_c<T>(p, buffers), p.m, p.n, terms(p));
  };
  TILE_TRY(with_16_bits(p, launch, are_whole));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
