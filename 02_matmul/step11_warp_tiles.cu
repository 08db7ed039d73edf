// Step 11: larger warp tiles, and copies that never stop.
// Idea: what a warp loads from shared memory it uses as often as its registers allow: 64 x 64
//       elements of C to a warp. And while a block finishes one tile of C, the first parts of its
//       next one are already on their way.
// Change: a block lives as long as the kernel and takes tile after tile, and the ring of stages
//         goes on from one to the next. Bias and activation are applied to the sums, without a
//         kernel of their own. C is stored 16 bytes at a time. How large a tile is depends on C.
// Limit: the rate of mma itself, which on Hopper is below that of its tensor cores, and shared
//        memory, from which a warp reads 4 KiB for 32 of them.
#include <algorithm>
#include <cmath>

#include "activation.cuh"
#include "tensor_tiles.cuh"
#include "tile/ptx/convert.cuh"

namespace matmul {
namespace {

/// How blocks and warps divide C.
template <int kM_, int kN_, int kWarpM_, int kWarpN_, int kBlocks_>
struct Shape {
  static constexpr int kM = kM_, kN = kN_, kK = 32;
  static constexpr int kWarpM = kWarpM_, kWarpN = kWarpN_;
  static constexpr int kBlocks = kBlocks_;  // on a multiprocessor at one time
  static constexpr int kStages = 4;
  static constexpr int kThreads = kM / kWarpM * (kN / kWarpN) * 32;
  static constexpr int kBytes = kStages * (kM + kN) * kK * 2;
};
// 96 KiB of shared memory and 255 registers a thread: a multiprocessor holds one such block.
using Large = Shape<128, 256, 64, 64, 1>;
// Where not all tiles are whole, the questions at the edges need registers that 64 x 64 sums leave
// none of.
using Edges = Shape<128, 128, 64, 32, 1>;
// Of a small C there must be enough tiles for all multiprocessors.
using Small = Shape<64, 64, 32, 32, 4>;

/// Tiles are taken in columns of eight, see step 6. There are fewer than 2^31.
template <class Shape>
__device__ Corner corner_of_tile(unsigned tile, std::int64_t m, std::int64_t n) {
  const auto down = static_cast<unsigned>((m + Shape::kM - 1) / Shape::kM);
  const auto across = static_cast<unsigned>((n + Shape::kN - 1) / Shape::kN);
  const unsigned height = min(8u, down);
  const unsigned group = tile / (height * across), in_group = tile % (height * across);
  const unsigned rows = min(height, down - group * height);  // the last group may be lower
  return {std::int64_t{group * height + in_group % rows} * Shape::kM,
          std::int64_t{in_group / rows} * Shape::kN};
}

/// What becomes of the sums: C = activation(alpha sum + beta C + bias).
template <class T>
struct Epilogue {
  Output<T> c;    // [m][n]
  const T* bias;  // [n], or null
  Activation activation;
  std::int64_t m, n;
};

// snippet-begin exchange
/// Four neighbouring lanes hold four values each: value i of lane l is place l of row i. Afterwards
/// lane l has row l. First neighbours exchange two values, then pairs of lanes do.
__device__ void transpose_quad(std::uint32_t (&v)[4]) {
#pragma unroll
  for (int distance = 1; distance <= 2; ++distance) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      std::uint32_t &low = v[i], &high = v[i + distance];
      const std::uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? low : high, distance);
      (upper ? low : high) = other;
    }
  }
}
// snippet-end exchange

// snippet-begin fuse
/// Applies alpha, beta, bias and activation to a warp's part of C, which begins at (row, col). Each
/// has a loop of its own, so that what is not asked for costs one branch.
template <class T, class Sums>
__device__ void finish(Sums& sums, const Epilogue<T>& e, std::int64_t row, std::int64_t col) {
  if (e.c.alpha != 1 || e.c.beta != 0) {
    sums.for_each([&](int i, int j, float& x) {
      const bool inside = row + i < e.m && col + j < e.n;
      if (inside) x = e.c.scaled(x, e.c.data + (row + i) * e.c.ld + col + j);
    });
    // store_chunks stores what other lanes have read here. Its shuffles exchange values, but they
    // order no memory.
    __syncwarp();
  }
  if (e.bias) {
    sums.for_each([&](int, int j, float& x) {
      if (col + j < e.n) x += static_cast<float>(e.bias[col + j]);
    });
  }
  if (e.activation == Activation::relu) {
    sums.for_each([](int, int, float& x) { x = activate(Activation::relu, x); });
  } else if (e.activation == Activation::gelu) {
    sums.for_each([](int, int, float& x) { x = activate(Activation::gelu, x); });
  }
}
// snippet-end fuse

/// Stores a warp's part of C. A lane holds two neighbouring elements of every eight columns; four
/// lanes exchange them, so that each has eight, 16 bytes.
template <class T, int kWarpM, int kWarpN>
__device__ void store_chunks(const WarpSums<kWarpM, kWarpN>& sums, const Epilogue<T>& e,
                             std::int64_t row, std::int64_t col) {
  static_assert(kWarpN % 32 == 0, "four lanes share four times eight columns");
  const int lane = threadIdx.x % 32;
  const bool aligned = reinterpret_cast<std::uintptr_t>(e.c.data) % 16 == 0 && e.c.ld % 8 == 0;
  row += lane / 4;
  col += lane % 4 * 8;
  T* to = e.c.data + row * e.c.ld + col;
  const std::int64_t rows_left = e.m - row, cols_left = e.n - col;
#pragma unroll
  for (int i = 0; i < kWarpM / 8; ++i) {  // eight rows at a time
#pragma unroll
    for (int j = 0; j < kWarpN; j += 32) {
      std::uint32_t chunk[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float(&sum)[4] = sums.sum[i / 2][j / 8 + p];
        chunk[p] = tile::ptx::pack<T>(sum[i % 2 * 2], sum[i % 2 * 2 + 1]);
      }
      transpose_quad(chunk);
      if (i * 8 >= rows_left) continue;
      if (aligned && j + 8 <= cols_left) {
        *reinterpret_cast<uint4*>(to + j) = {chunk[0], chunk[1], chunk[2], chunk[3]};
      } else {
#pragma unroll
        for (int element = 0; element < 8; ++element) {
          if (j + element >= cols_left) continue;
          const auto bits = static_cast<std::uint16_t>(chunk[element / 2] >> element % 2 * 16);
          memcpy(to + j + element, &bits, sizeof bits);
        }
      }
    }
    to += 8 * e.c.ld;
  }
}

// snippet-begin kernel
template <class T, class Shape, bool kAAlongK, bool kBAlongK, bool kWhole>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    matmul_warp_tiles(Operand<T> a,          // [m][k]
                      Operand<T> b,          // [k][n]
                      Epilogue<T> epilogue,  // of C, [m][n]
                      std::int64_t k, unsigned tiles) {
  using ATile = OperandTile<Swizzled, kAAlongK, Shape::kM, Shape::kK>;
  using BTile = OperandTile<Swizzled, kBAlongK, Shape::kN, Shape::kK>;
  using Chunk = tile::Vector<T>;
  constexpr int kStageBytes = Shape::kBytes / Shape::kStages, kParts = Shape::kK / kMmaK;
  static_assert(kParts % 2 == 0, "the first part of every stage is in fragments[0]");
  extern __shared__ __align__(128) unsigned char smem[];  // [stage]{A's tile, B's tile}
  auto* a_tile = reinterpret_cast<Chunk*>(smem);
  auto* b_tile = a_tile + ATile::kChunks;
  // Stages are counted in bytes, because each access adds them to an address.
  auto next_stage = [](int stage) {
    return stage + kStageBytes == Shape::kBytes ? 0 : stage + kStageBytes;
  };

  // The copies run ahead of the products, and so have a place of their own in the block's tiles.
  ChunkLoader<T, ATile, kAAlongK, kWhole, Shape::kThreads> a_loader(a, epilogue.m, k, a_tile);
  ChunkLoader<T, BTile, kBAlongK, kWhole, Shape::kThreads> b_loader(b, epilogue.n, k, b_tile);
  unsigned loading = blockIdx.x;
  int to = 0;  // the stage that is filled next
  auto begin_to_load = [&] {
    const Corner corner = corner_of_tile<Shape>(loading, epilogue.m, epilogue.n);
    a_loader.begin(corner.row);
    b_loader.begin(corner.col);
  };
  auto go_on_to_next_tile = [&] {
    if (a_loader.tiles_left() > 0) return;
    loading += gridDim.x;
    // After its last tile a block copies from its first again. Nobody will read it, but no branch
    // is needed around the copies, and the number of groups under way stays what waits count on.
    if (loading >= tiles) loading = blockIdx.x;
    begin_to_load();
  };
  auto copy = [&] {
    a_loader.copy(to);
    b_loader.copy(to);
    tile::ptx::cp_async_commit();
    to = next_stage(to);
  };

  const auto warp = corner_of_warp<Shape::kN, Shape::kWarpM, Shape::kWarpN>();
  const FragmentReader<ATile, true, kAAlongK, Shape::kWarpM> a_reader(a_tile, warp.row);
  const FragmentReader<BTile, false, kBAlongK, Shape::kWarpN> b_reader(b_tile, warp.col);
  WarpFragments<Shape::kWarpM, Shape::kWarpN> fragments[2];  // of this part of k and of the next
  int stage = 0;
  auto load_part = [&](int part) { fragments[part % 2].load(a_reader, b_reader, stage, part); };
  auto await_stage = [&] {
    tile::ptx::cp_async_wait<Shape::kStages - 2>();
    // Everybody's copies have landed before anybody reads them; and everybody has read the stage
    // before, which is filled next.
    __syncthreads();
  };

  begin_to_load();
  const int turns = a_loader.tiles_left();  // of each tile of C
  if (turns > 0) {
    for (int i = 0; i < Shape::kStages - 1; ++i) {
      copy();
      go_on_to_next_tile();
    }
    await_stage();
    load_part(0);
  }
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    WarpSums<Shape::kWarpM, Shape::kWarpN> sums;
    for (int left = turns; left > 0;) {
      // As far as the copies stay in their tile there is no branch in a turn.
      int until = min(left, a_loader.tiles_left());
      left -= until;
      for (; until > 0; --until) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          if (part == kParts - 1) {  // the next part is in the next stage
            stage = next_stage(stage);
            await_stage();
          }
          load_part((part + 1) % kParts);
          if (part == 0) copy();
          sums.template add_products<T>(fragments[part % 2]);
        }
      }
      go_on_to_next_tile();
    }
    const Corner corner = corner_of_tile<Shape>(tile, epilogue.m, epilogue.n);
    finish(sums, epilogue, corner.row + warp.row, corner.col + warp.col);
    store_chunks(sums, epilogue, corner.row + warp.row, corner.col + warp.col);
  }
}
// snippet-end kernel

// snippet-begin shapes
/// Rounds that the card needs for all tiles of a shape, times the size of what it computes in one.
template <class Shape>
double cost(const Problem& p, int multiprocessors) {
  const double tiles = std::ceil(static_cast<double>(p.m) / Shape::kM) *
                       std::ceil(static_cast<double>(p.n) / Shape::kN);
  return std::ceil(tiles / (multiprocessors * Shape::kBlocks)) * Shape::kBlocks * Shape::kM *
         Shape::kN;
}
// A warp of Small loads twice as much from shared memory for each product.
constexpr double kSmallIsSlower = 1.6;
// snippet-end shapes

template <class T, class Shape, bool kWhole>
tile::Status launch_shape(const Problem& problem, const Buffers& buffers, int multiprocessors,
                          void* stream) {
  const auto launch = [&](unsigned tiles, const Product<T>& p) {
    return with_directions(problem, [&](auto a_along_k, auto b_along_k) {
      const auto warp_tiles_kernel =
          matmul_warp_tiles<T, Shape, a_along_k.value, b_along_k.value, kWhole>;
      TILE_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
          warp_tiles_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kBytes));
      const unsigned blocks =
          std::min(tiles, static_cast<unsigned>(multiprocessors * Shape::kBlocks));
      warp_tiles_kernel<<<blocks, Shape::kThreads, Shape::kBytes,
                          static_cast<cudaStream_t>(stream)>>>(
          p.a, p.b, Epilogue<T>{p.c, p.bias, p.activation, p.m, p.n}, p.k, tiles);
      return tile::launch_status("matmul_warp_tiles");
    });
  };
  return launch_fused_on_tiles<T>(problem, buffers, k16Bits, Shape::kM, Shape::kN, launch);
}

}  // namespace

tile::Status warp_tiles(const Problem& problem, const Buffers& buffers, void* stream) {
  int card = 0, multiprocessors = 0;
  TILE_RETURN_IF_CUDA_ERROR(cudaGetDevice(&card));
  TILE_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, card));
  const bool small = cost<Small>(problem, multiprocessors) * kSmallIsSlower <
                     cost<Large>(problem, multiprocessors);
  return with_16_bits(problem.type, [&](auto element) {
    using T = decltype(element);
    const Product<T> p(problem, buffers);
    auto launch = [&](auto shape, auto whole) {
      return launch_shape<T, decltype(shape), whole.value>(problem, buffers, multiprocessors,
                                                           stream);
    };
    const std::true_type whole;
    const std::false_type not_whole;
    if (small) {
      return are_whole_tiles(p, Small::kM, Small::kN, Small::kK) ? launch(Small{}, whole)
                                                                 : launch(Small{}, not_whole);
    }
    return are_whole_tiles(p, Large::kM, Large::kN, Large::kK) ? launch(Large{}, whole)
                                                               : launch(Edges{}, not_whole);
  });
}

}  // namespace matmul
