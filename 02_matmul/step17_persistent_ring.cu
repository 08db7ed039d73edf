// Step 17: persistent blocks with a ring.
// Idea: a block takes tile after tile, and its producer copies the next one's first stages while
//       the consumers still store this one.
// Change: a loop over tiles around both sides; the ring goes on from tile to tile. Tiles are taken
//         in columns of 16, so that blocks that run together share A and B in the L2 cache. The
//         mbarriers' initialisation and a stage's four wgmma are functions from here on.
// Limit: every block reads all of its A and B from L2.
#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "store_sums.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

using Tile = TileOf<2, 256>;     // 128 x 256, by two consumers
constexpr int kStages = 4;       // of 48 KiB: as many as the 227 KiB of a block hold
constexpr unsigned kGroup = 16;  // tiles below one another that are taken together

template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    matmul_persistent_ring(const __grid_constant__ tile::TensorMap a_map,  // op(A) [m][k]
                           const __grid_constant__ tile::TensorMap b_map,  // op(B) [k][n]
                           Output<T> c,                                    // [m][n]
                           std::int64_t m, std::int64_t n, int k, unsigned tiles) {
  using namespace tile::ptx;
  using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
  using BTile = OperandBoxes<T, kBAlongK, Tile::kN>;
  constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // [stage]{A's tile, B's tile}
  __shared__ Mbarrier full[kStages], empty[kStages];
  const SharedAddress stages(smem);
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) tile::init_ring(full, empty, Tile::kConsumers);  // a thread of each
  __syncthreads();  // they are initialised before a thread waits
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    if (threadIdx.x != 0) return;
    // snippet-begin producer
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const Corner corner = corner_in_groups<Tile::kM, Tile::kN, kGroup>(tile, m, n);
      for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
        const SharedAddress a_smem = stages + place.stage * kStageBytes;
        mbarrier_wait(&empty[place.stage], place.parity ^ 1);
        mbarrier_arrive_expect(&full[place.stage], kStageBytes);
        ATile::load(a_smem, a_map, static_cast<int>(corner.row), k0, &full[place.stage]);
        BTile::load(a_smem + ATile::kBytes, b_map, static_cast<int>(corner.col), k0,
                    &full[place.stage]);
      }
    }
    // snippet-end producer
    return;
  }

  setmaxnreg_inc<Tile::kConsumerRegisters>();
  const int first_row = (warpgroup - 1) * Tile::kRows;
  const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const Corner corner = corner_in_groups<Tile::kM, Tile::kN, kGroup>(tile, m, n);
    float sums[Tile::kN / 2];  // of C, as element_of_wgmma says
    int read = -1;             // the stage that is multiplied
    for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
      mbarrier_wait(&full[place.stage], place.parity);
      const SharedAddress a_smem = stages + place.stage * kStageBytes;
      const WgmmaDescriptor a = ATile::descriptor(a_smem, first_row);
      const WgmmaDescriptor b = BTile::descriptor(a_smem + ATile::kBytes, 0);
      // C += A B: four times 16 of k
      start_products<T, ATile, BTile>(sums, a, b, k0 != 0);
      wgmma_wait<1>(sums);  // the stage before has been read
      if (is_leader && read >= 0) mbarrier_arrive(&empty[read]);
      read = place.stage;
    }
    wgmma_wait<0>(sums);
    if (is_leader) mbarrier_arrive(&empty[read]);

    store_sums(sums, c, corner.row + first_row, corner.col, m, n);
  }
}

}  // namespace

tile::Status persistent_ring(const Problem& p, const Buffers& buffers, void* stream) {
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value;
    using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
    using BTile = OperandBoxes<T, kBAlongK, Tile::kN>;
    tile::TensorMap a_map, b_map;
    TILE_TRY(make_maps<ATile, BTile>(p, buffers, &a_map, &b_map));
    unsigned tiles = 0;
    int sms = 0;  // multiprocessors
    TILE_TRY(tile::count_multiprocessors(&sms));
    TILE_TRY(blocks_for_tiles(p, Tile::kM, Tile::kN, &tiles));
    constexpr int kBytes = kStages * (ATile::kBytes + BTile::kBytes);
    return tile::launch(matmul_persistent_ring<T, kAAlongK, kBAlongK>, "matmul_persistent_ring",
                        blocks_without_idlers(tiles, static_cast<unsigned>(sms)), Tile::kThreads,
                        kBytes, stream, a_map, b_map, output_c<T>(p, buffers), p.m, p.n, p.k,
                        tiles);
  };
  TILE_TRY(with_16_bits(p, launch));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
