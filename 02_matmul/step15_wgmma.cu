// Step 15: TMA and wgmma. The second pass through the chapter begins: Hopper's own instructions.
// Idea: one thread asks for a whole tile, and four warps multiply it where it lies, in shared
//       memory.
// Change: no loop of copies, no fragments, no ldmatrix: 64 x 256 of C to a warpgroup, and A and B
//         are read by the tensor cores themselves.
// Limit: at any time the block either copies or multiplies, never both.
#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "store_sums.cuh"
#include "tile/ptx/warpgroup.cuh"

namespace matmul {
namespace {

constexpr int kTileM = 64;   // the rows of one wgmma
constexpr int kTileN = 256;  // and the most columns
constexpr int kThreads = tile::kWarpgroup;

// snippet-begin kernel
template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kThreads)
    matmul_wgmma(const __grid_constant__ tile::TensorMap a_map,  // op(A) [m][k]
                 const __grid_constant__ tile::TensorMap b_map,  // op(B) [k][n]
                 Output<T> c,                                    // [m][n]
                 std::int64_t m, std::int64_t n, int k) {
  using namespace tile::ptx;
  using ATile = OperandBoxes<T, kAAlongK, kTileM>;
  using BTile = OperandBoxes<T, kBAlongK, kTileN>;
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // {A's tile, B's tile}
  __shared__ Mbarrier full;
  const SharedAddress a_smem(smem), b_smem(smem + ATile::kBytes);
  const Corner corner = corner_of_block(n, kTileM, kTileN);
  if (threadIdx.x == 0) mbarrier_init(&full, 1);
  __syncthreads();  // it is initialised before a thread waits

  float sums[kTileN / 2];  // of C, as element_of_wgmma says
  unsigned parity = 0;
  for (int k0 = 0; k0 < k; k0 += kBlockK, parity ^= 1) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect(&full, ATile::kBytes + BTile::kBytes);
      ATile::load(a_smem, a_map, static_cast<int>(corner.row), k0, &full);
      BTile::load(b_smem, b_map, static_cast<int>(corner.col), k0, &full);
    }
    mbarrier_wait(&full, parity);
    // C += A B: four times 16 of k
    const WgmmaDescriptor a = ATile::descriptor(a_smem, 0), b = BTile::descriptor(b_smem, 0);
    wgmma_fence();
#pragma unroll
    for (int part = 0; part < kBlockK / kWgmmaK; ++part) {
      wgmma<T, kTileN, ATile::kMajor, BTile::kMajor>(
          sums, a + part * ATile::kPartBytes, b + part * BTile::kPartBytes, k0 != 0 || part != 0);
    }
    wgmma_commit();
    wgmma_wait<0>(sums);
    __syncthreads();  // all four warps have read the tiles before the next ones come
  }

  store_sums(sums, c, corner.row, corner.col, m, n);
}
// snippet-end kernel

}  // namespace

tile::Status wgmma(const Problem& p, const Buffers& buffers, void* stream) {
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value;
    using ATile = OperandBoxes<T, kAAlongK, kTileM>;
    using BTile = OperandBoxes<T, kBAlongK, kTileN>;
    tile::TensorMap a_map, b_map;
    TILE_TRY(make_maps<ATile, BTile>(p, buffers, &a_map, &b_map));
    unsigned tiles = 0;
    TILE_TRY(blocks_for_tiles(p, kTileM, kTileN, &tiles));
    constexpr int kBytes = ATile::kBytes + BTile::kBytes;
    return tile::launch(matmul_wgmma<T, kAAlongK, kBAlongK>, "matmul_wgmma", tiles, kThreads,
                        kBytes, stream, a_map, b_map, output_c<T>(p, buffers), p.m, p.n, p.k);
  };
  TILE_TRY(with_16_bits(p, launch));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
