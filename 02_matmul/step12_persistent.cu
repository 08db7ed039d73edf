// Step 12: a block takes tile after tile.
// Idea: a block of step 10 ends with nothing under way, and the next begins with an empty ring. A
//       block that takes the next tile itself copies its first parts while it finishes this one.
// Change: as many blocks as the card holds at one time. The copies run ahead of the products, and
//         so keep count of their own tile. The tiles are taken in columns of eight, as in step 6.
// Limit: two blocks on a multiprocessor already hid each other's gaps, so this step alone gains
//        nothing (see the page). C goes to memory in pieces of two bytes.
#include "matmul_launch.hpp"
#include "tensor_tiles.cuh"

namespace matmul {
namespace {

constexpr int kTileM = 128, kTileN = 128, kWarpM = 64, kWarpN = 32;  // of C to a block, to a warp
constexpr int kThreads = kTileM / kWarpM * (kTileN / kWarpN) * 32, kStages = 4;
constexpr int kBlocks = 2;  // on a multiprocessor at one time

// snippet-begin kernel
template <class T, bool kAAlongK, bool kBAlongK, bool kWhole>
__global__ void __launch_bounds__(kThreads, kBlocks)
    matmul_persistent(Operand<T> a,  // [m][k]
                      Operand<T> b,  // [k][n]
                      Output<T> c,   // [m][n]
                      std::int64_t m, std::int64_t n, std::int64_t k, unsigned tiles) {
  using ATile = OperandTile<Swizzled, kAAlongK, kTileM, kBlockK>;
  using BTile = OperandTile<Swizzled, kBAlongK, kTileN, kBlockK>;
  using Chunk = tile::Vector<T>;
  constexpr int kStageChunks = ATile::kChunks + BTile::kChunks;
  constexpr int kStageBytes = kStageChunks * static_cast<int>(sizeof(Chunk));
  extern __shared__ __align__(128) unsigned char smem[];  // [stage]{A's tile, B's tile}
  auto* a_tile = reinterpret_cast<Chunk*>(smem);
  auto* b_tile = a_tile + ATile::kChunks;
  const auto warp = corner_of_warp<kTileN, kWarpM, kWarpN>();
  ChunkLoader<T, ATile, kAAlongK, kWhole, kThreads> a_loader(a, m, k, a_tile);
  ChunkLoader<T, BTile, kBAlongK, kWhole, kThreads> b_loader(b, n, k, b_tile);
  const FragmentReader<ATile, true, kAAlongK, kWarpM> a_reader(a_tile, warp.row);
  const FragmentReader<BTile, false, kBAlongK, kWarpN> b_reader(b_tile, warp.col);

  // Stages count in bytes, because each access adds them to an address.
  const auto next_stage = [](int stage) {
    return stage + kStageBytes == kStages * kStageBytes ? 0 : stage + kStageBytes;
  };
  unsigned loading = blockIdx.x;  // the tile that is being copied
  int to = 0;                     // the stage that is filled next
  auto begin_to_load = [&] {
    const Corner corner = corner_in_groups<kTileM, kTileN>(loading, m, n);
    a_loader.begin(corner.row);
    b_loader.begin(corner.col);
  };
  auto go_on_to_next_tile = [&] {
    if (a_loader.tiles_left() > 0) return;
    // After its last tile a block copies from its first again. That is never read, but the number
    // of groups under way stays what the waits count on.
    loading = loading + gridDim.x < tiles ? loading + gridDim.x : blockIdx.x;
    begin_to_load();
  };
  auto copy = [&] {
    a_loader.copy(to);
    b_loader.copy(to);
    tile::ptx::cp_async_commit();
    to = next_stage(to);
    go_on_to_next_tile();
  };
  begin_to_load();
  const int turns = a_loader.tiles_left();  // of each tile of C
  for (int i = 0; turns > 0 && i < kStages - 1; ++i) copy();

  WarpFragments<kWarpM, kWarpN> fragments[2];  // of this part of k and of the next
  int stage = 0;                               // that is multiplied next
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    WarpSums<kWarpM, kWarpN> sums;
    for (int turn = 0; turn < turns; ++turn) {
      // This thread's copies to the oldest of the kStages - 1 stages under way have landed.
      tile::ptx::cp_async_wait<kStages - 2>();
      // All threads' copies to it have, and all warps are done with the stage that is filled next.
      __syncthreads();
      copy();
      fragments[0].load(a_reader, b_reader, stage, 0);
#pragma unroll
      for (int part = 0; part < kBlockK / kMmaK; ++part) {
        if (part + 1 < kBlockK / kMmaK) {
          fragments[(part + 1) % 2].load(a_reader, b_reader, stage, part + 1);
        }
        sums.template add_products<T>(fragments[part % 2]);
      }
      stage = next_stage(stage);
    }
    const Corner corner = corner_in_groups<kTileM, kTileN>(tile, m, n);
    const std::int64_t row = corner.row + warp.row, col = corner.col + warp.col;
    sums.store(c, row, col, m, n);
  }
}
// snippet-end kernel

}  // namespace

tile::Status persistent(const Problem& p, const Buffers& buffers, void* stream) {
  unsigned tiles = 0;
  int multiprocessors = 0;
  TILE_TRY(blocks_for_tiles(p, kTileM, kTileN, &tiles));
  TILE_TRY(tile::count_multiprocessors(&multiprocessors));
  const unsigned blocks = std::min(tiles, static_cast<unsigned>(multiprocessors * kBlocks));
  const bool are_whole = are_whole_tiles(p, buffers, kTileM, kTileN, kBlockK);
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k, auto whole) {
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value, kWhole = whole.value;
    using T = decltype(element);
    constexpr int kBytes = kStages * (kTileM + kTileN) * kBlockK * static_cast<int>(sizeof(T));
    return tile::launch(matmul_persistent<T, kAAlongK, kBAlongK, kWhole>, "matmul_persistent",
                        blocks, kThreads, kBytes, stream, op_a<T>(p, buffers), op_b<T>(p, buffers),
                        output_c<T>(p, buffers), p.m, p.n, terms(p), tiles);
  };
  TILE_TRY(with_16_bits(p, launch, are_whole));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
