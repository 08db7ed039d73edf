// Step 13: bias and activation in registers, and C in 16 bytes.
// Idea: the sums are in registers when the last part of k has been added. What is done to them
//       there costs no memory traffic: a kernel of its own would read and write all of C.
// Change: alpha, beta, bias and activation are applied to the sums. Four lanes exchange what they
//         hold, so that each stores eight neighbours of C, 16 bytes.
// Limit: as in step 10, a warp loads 64 + 32 rows and columns for 64 x 32 elements of C.
#include "matmul_launch.hpp"
#include "tensor_tiles.cuh"
#include "tile/ptx/quad.cuh"

namespace matmul {
namespace {

constexpr int kTileM = 128, kTileN = 128, kWarpM = 64, kWarpN = 32;  // of C to a block, to a warp
constexpr int kThreads = kTileM / kWarpM * (kTileN / kWarpN) * 32, kStages = 4;
constexpr int kBlocks = 2;  // on a multiprocessor at one time

// snippet-begin fuse
/// Applies alpha, beta, bias and activation to a warp's part of C, which begins at (row, col). Each
/// has a loop of its own, so that what is not asked for costs one branch.
template <class T, class Sums>
__device__ void finish(Sums& sums, const Output<T>& c, const T* bias, Activation activation,
                       std::int64_t row, std::int64_t col, std::int64_t m, std::int64_t n) {
  if (c.alpha != 1 || c.beta != 0) {
    sums.scale(c, row, col, m, n);
    // store_chunks stores where other lanes have read here. Its shuffles exchange values, but they
    // order no memory.
    __syncwarp();
  }
  if (bias) {
#pragma unroll
    for (int j = 0; j < Sums::kN * 2; ++j) {
      const std::int64_t x = col + sums.col(j);
      const float add = x < n ? static_cast<float>(bias[x]) : 0.f;
#pragma unroll
      for (int i = 0; i < Sums::kM * 2; ++i) sums.at(i, j) += add;
    }
  }
  if (activation == Activation::relu) {
#pragma unroll
    for (int i = 0; i < Sums::kCount; ++i) sums[i] = activate(Activation::relu, sums[i]);
  } else if (activation == Activation::gelu) {
#pragma unroll
    for (int i = 0; i < Sums::kCount; ++i) sums[i] = activate(Activation::gelu, sums[i]);
  }
}
// snippet-end fuse

/// Stores a warp's part of C. A lane holds two neighbouring elements of every eight columns; four
/// lanes exchange them, so that each has eight, 16 bytes.
template <class T, int kWarpM, int kWarpN>
__device__ void store_chunks(const WarpSums<kWarpM, kWarpN>& sums, const Output<T>& c,
                             std::int64_t row, std::int64_t col, std::int64_t m, std::int64_t n) {
  static_assert(kWarpN % 32 == 0, "four lanes share four times eight columns");
  const bool aligned = reinterpret_cast<std::uintptr_t>(c.data) % 16 == 0 && c.ld % 8 == 0;
  row += threadIdx.x % 32 / 4, col += threadIdx.x % 4 * 8;  // of the first that this lane stores
  T* to = c.data + row * c.ld + col;
  const std::int64_t rows_left = m - row, cols_left = n - col;
#pragma unroll
  for (int i = 0; i < kWarpM / 8; ++i, to += 8 * c.ld) {  // eight rows at a time
#pragma unroll
    for (int j = 0; j < kWarpN; j += 32) {
      std::uint32_t chunk[4];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const float(&sum)[4] = sums.sum[i / 2][j / 8 + pair];
        chunk[pair] = tile::ptx::pack<T>(sum[i % 2 * 2], sum[i % 2 * 2 + 1]);
      }
      tile::ptx::transpose_quad(chunk);
      if (i * 8 >= rows_left) continue;
      if (aligned && j + 8 <= cols_left) {
        // As an intrinsic: nvcc would make of a plain store four, and share these with the loop
        // below.
        __stwb(reinterpret_cast<uint4*>(to + j),
               make_uint4(chunk[0], chunk[1], chunk[2], chunk[3]));
        continue;
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        T element;
        memcpy(&element, reinterpret_cast<const char*>(chunk) + e * sizeof element, sizeof element);
        if (j + e < cols_left) to[j + e] = element;
      }
    }
  }
}

template <class T, bool kAAlongK, bool kBAlongK, bool kWhole>
__global__ void __launch_bounds__(kThreads, kBlocks)
    matmul_fused(Operand<T> a,           // [m][k]
                 Operand<T> b,           // [k][n]
                 Output<T> c,            // [m][n]
                 const T* bias,          // [n], or null
                 Activation activation,  // of the sum and the bias
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
    finish(sums, c, bias, activation, row, col, m, n);
    store_chunks(sums, c, row, col, m, n);
  }
}

}  // namespace

tile::Status fused(const Problem& p, const Buffers& buffers, void* stream) {
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
    return tile::launch(matmul_fused<T, kAAlongK, kBAlongK, kWhole>, "matmul_fused", blocks,
                        kThreads, kBytes, stream, op_a<T>(p, buffers), op_b<T>(p, buffers),
                        output_c<T>(p, buffers), static_cast<const T*>(buffers.bias), p.activation,
                        p.m, p.n, terms(p), tiles);
  };
  return with_16_bits(p, launch, are_whole);
}

}  // namespace matmul
