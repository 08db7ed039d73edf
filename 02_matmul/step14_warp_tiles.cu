// Step 14: larger warp tiles.
// Idea: a warp uses what it loads from shared memory as often as its registers allow: it has 64 x
//       64 elements of C. An iteration of the main loop has no branch in it.
// Change: how large a tile is depends on C. The fragments of the next stage's first part are loaded
//         before the last part of this one is multiplied.
// Limit: the rate of mma itself, which on Hopper is below that of its tensor cores, and shared
//        memory, from which a warp reads 4 KiB for 32 of them.
#include <cmath>

#include "matmul_launch.hpp"
#include "tensor_tiles.cuh"
#include "tile/ptx/quad.cuh"

namespace matmul {
namespace {

constexpr int kStages = 4;

/// How blocks and warps divide C, and how many blocks a multiprocessor holds at one time.
template <int kM_, int kN_, int kWarpM_, int kWarpN_, int kBlocks_>
struct TileShape {
  static constexpr int kM = kM_, kN = kN_, kWarpM = kWarpM_, kWarpN = kWarpN_, kBlocks = kBlocks_;
  static constexpr int kThreads = kM / kWarpM * (kN / kWarpN) * 32;
};
// 96 KiB of shared memory and 255 registers a thread: a multiprocessor holds one such block.
using Large = TileShape<128, 256, 64, 64, 1>;
// If not all tiles are whole, the tests at edges need registers, and 64 x 64 sums leave none.
using Edges = TileShape<128, 128, 64, 32, 1>;
// A small C must have enough tiles for all multiprocessors.
using Small = TileShape<64, 64, 32, 32, 4>;

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

// snippet-begin kernel
template <class T, class Shape, bool kAAlongK, bool kBAlongK, bool kWhole>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    matmul_warp_tiles(Operand<T> a,           // [m][k]
                      Operand<T> b,           // [k][n]
                      Output<T> c,            // [m][n]
                      const T* bias,          // [n], or null
                      Activation activation,  // of the sum and the bias
                      std::int64_t m, std::int64_t n, std::int64_t k, unsigned tiles) {
  constexpr int kTileM = Shape::kM, kTileN = Shape::kN, kThreads = Shape::kThreads;
  constexpr int kWarpM = Shape::kWarpM, kWarpN = Shape::kWarpN, kParts = kBlockK / kMmaK;
  using ATile = OperandTile<Swizzled, kAAlongK, kTileM, kBlockK>;
  using BTile = OperandTile<Swizzled, kBAlongK, kTileN, kBlockK>;
  using Chunk = tile::Vector<T>;
  constexpr int kStageChunks = ATile::kChunks + BTile::kChunks;
  constexpr int kStageBytes = kStageChunks * static_cast<int>(sizeof(Chunk));
  static_assert(kParts % 2 == 0, "the first part of every stage is in fragments[0]");
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
  };

  WarpFragments<kWarpM, kWarpN> fragments[2];  // of this part of k and of the next
  int stage = 0;                               // that is multiplied next
  auto await_stage = [&] {
    // This thread's copies to the oldest of the kStages - 1 stages under way have landed.
    tile::ptx::cp_async_wait<kStages - 2>();
    // All threads' copies to it have, and all warps are done with the stage that is filled next.
    __syncthreads();
  };

  begin_to_load();
  const int turns = a_loader.tiles_left();  // of each tile of C
  if (turns > 0) {
    for (int i = 0; i < kStages - 1; ++i) {
      copy();
      go_on_to_next_tile();
    }
    await_stage();
    fragments[0].load(a_reader, b_reader, stage, 0);
  }
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    WarpSums<kWarpM, kWarpN> sums;
    for (int left = turns; left > 0;) {
      // As far as the copies stay in their tile there is no branch in an iteration.
      int until = min(left, a_loader.tiles_left());
      left -= until;
      for (; until > 0; --until) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          if (part == kParts - 1) {  // the next part is in the next stage
            stage = next_stage(stage);
            await_stage();
          }
          fragments[(part + 1) % 2].load(a_reader, b_reader, stage, (part + 1) % kParts);
          if (part == 0) copy();
          sums.template add_products<T>(fragments[part % 2]);
        }
      }
      go_on_to_next_tile();
    }
    const Corner corner = corner_in_groups<kTileM, kTileN>(tile, m, n);
    const std::int64_t row = corner.row + warp.row, col = corner.col + warp.col;
    finish(sums, c, bias, activation, row, col, m, n);
    store_chunks(sums, c, row, col, m, n);
  }
}
// snippet-end kernel

// snippet-begin shapes
/// Rounds that the card needs for all tiles of a shape, times the size of what it computes in one.
template <class Shape>
double cost(const Problem& p, int sms) {
  const double tiles = std::ceil(1. * p.m / Shape::kM) * std::ceil(1. * p.n / Shape::kN);
  return std::ceil(tiles / (sms * Shape::kBlocks)) * Shape::kBlocks * Shape::kM * Shape::kN;
}
constexpr double kSmallIsSlower = 1.6;  // a warp of it loads twice as much for each product
// snippet-end shapes

template <class Whole, class Other>
tile::Status launch(const Problem& p, const Buffers& buffers, int sms, void* stream) {
  const bool are_whole = are_whole_tiles(p, buffers, Whole::kM, Whole::kN, kBlockK);
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k, auto whole) {
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value, kWhole = whole.value;
    using T = decltype(element);
    using Shape = std::conditional_t<kWhole, Whole, Other>;
    constexpr int kBytes = kStages * (Shape::kM + Shape::kN) * kBlockK * int{sizeof(T)};
    unsigned tiles = 0;
    TILE_TRY(blocks_for_tiles(p, Shape::kM, Shape::kN, &tiles));
    const unsigned blocks = std::min(tiles, static_cast<unsigned>(sms * Shape::kBlocks));
    return tile::launch(matmul_warp_tiles<T, Shape, kAAlongK, kBAlongK, kWhole>,
                        "matmul_warp_tiles", blocks, Shape::kThreads, kBytes, stream,
                        op_a<T>(p, buffers), op_b<T>(p, buffers), output_c<T>(p, buffers),
                        static_cast<const T*>(buffers.bias), p.activation, p.m, p.n, terms(p),
                        tiles);
  };
  return with_16_bits(p, launch, are_whole);
}

}  // namespace

tile::Status warp_tiles(const Problem& p, const Buffers& buffers, void* stream) {
  int sms = 0;  // multiprocessors
  TILE_TRY(tile::count_multiprocessors(&sms));
  const bool small = cost<Small>(p, sms) * kSmallIsSlower < cost<Large>(p, sms);
  return small ? launch<Small, Small>(p, buffers, sms, stream)
               : launch<Large, Edges>(p, buffers, sms, stream);
}

}  // namespace matmul
