// Step 16: producer and consumers.
// Idea: one warpgroup only copies, and two only multiply, with a ring of stages between them.
// Change: the copies run ahead as far as the ring is long. Registers move from the producer to the
//         consumers, so that the tile has 128 x 256 elements, and each of A and B is used more
//         often.
// Limit: when a block has stored its tile of C the next one begins with an empty ring.
#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "store_sums.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

using Tile = TileOf<2, 256>;  // 128 x 256, by two consumers
constexpr int kStages = 4;    // of 48 KiB: as many as the 227 KiB of a block hold

// snippet-begin kernel
template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    matmul_warp_specialized(const __grid_constant__ tile::TensorMap a_map,  // op(A) [m][k]
                            const __grid_constant__ tile::TensorMap b_map,  // op(B) [k][n]
                            Output<T> c,                                    // [m][n]
                            std::int64_t m, std::int64_t n, int k) {
  using namespace tile::ptx;
  using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
  using BTile = OperandBoxes<T, kBAlongK, Tile::kN>;
  constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // [stage]{A's tile, B's tile}
  __shared__ Mbarrier full[kStages], empty[kStages];
  const SharedAddress stages(smem);
  const Corner corner = corner_of_block(n, Tile::kM, Tile::kN);
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&full[stage], 1);                  // the producer, and the bytes it expects
      mbarrier_init(&empty[stage], Tile::kConsumers);  // a thread of each
    }
  }
  __syncthreads();  // they are initialised before a thread waits
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
      const SharedAddress a_smem = stages + place.stage * kStageBytes;
      mbarrier_wait(&empty[place.stage], place.parity ^ 1);
      mbarrier_arrive_expect(&full[place.stage], kStageBytes);
      ATile::load(a_smem, a_map, static_cast<int>(corner.row), k0, &full[place.stage]);
      BTile::load(a_smem + ATile::kBytes, b_map, static_cast<int>(corner.col), k0,
                  &full[place.stage]);
    }
    return;
  }

  setmaxnreg_inc<Tile::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * Tile::kRows;
  const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
  float sums[Tile::kN / 2];                                    // of C, as element_of_wgmma says
  int read = -1;                                               // the stage that is multiplied
  for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
    mbarrier_wait(&full[place.stage], place.parity);
    const SharedAddress a_smem = stages + place.stage * kStageBytes;
    const WgmmaDescriptor a = ATile::descriptor(a_smem, first_row);
    const WgmmaDescriptor b = BTile::descriptor(a_smem + ATile::kBytes, 0);
    // C += A B: four times 16 of k
    wgmma_fence();
#pragma unroll
    for (int part = 0; part < kBlockK / kWgmmaK; ++part) {
      wgmma<T, Tile::kN, ATile::kMajor, BTile::kMajor>(
          sums, a + part * ATile::kPartBytes, b + part * BTile::kPartBytes, k0 != 0 || part != 0);
    }
    wgmma_commit();
    wgmma_wait<1>(sums);  // the stage before has been read
    if (is_leader && read >= 0) mbarrier_arrive(&empty[read]);
    read = place.stage;
  }
  wgmma_wait<0>(sums);

  store_sums(sums, c, corner.row + first_row, corner.col, m, n);
}
// snippet-end kernel

}  // namespace

tile::Status warp_specialized(const Problem& p, const Buffers& buffers, void* stream) {
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value;
    using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
    using BTile = OperandBoxes<T, kBAlongK, Tile::kN>;
    tile::TensorMap a_map, b_map;
    TILE_TRY(make_maps<ATile, BTile>(p, buffers, &a_map, &b_map));
    unsigned tiles = 0;
    TILE_TRY(blocks_for_tiles(p, Tile::kM, Tile::kN, &tiles));
    constexpr int kBytes = kStages * (ATile::kBytes + BTile::kBytes);
    return tile::launch(matmul_warp_specialized<T, kAAlongK, kBAlongK>, "matmul_warp_specialized",
                        tiles, Tile::kThreads, kBytes, stream, a_map, b_map,
                        output_c<T>(p, buffers), p.m, p.n, p.k);
  };
  TILE_TRY(with_16_bits(p, launch));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
