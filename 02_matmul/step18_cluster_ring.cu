// Step 18: a cluster shares B.
// Idea: two blocks, one above the other in C, need the same tile of B. Each copies half of it into
//       both blocks' shared memory: L2 delivers B once for two.
// Change: the copies of B are multicast, and a stage is empty when the consumers of both blocks
//         have read it. Tiles of C come in pairs of 256 x 256.
// Limit: the tensor cores wait while a tile of C is stored element by element.
#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "store_sums.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

using Tile = TileOf<2, 256>;    // 128 x 256, by two consumers
constexpr int kCluster = 2;     // blocks, one above the other
constexpr int kStages = 4;      // of 48 KiB: as many as the 227 KiB of a block hold
constexpr unsigned kGroup = 8;  // pairs of tiles below one another that are taken together

template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    matmul_cluster_ring(const __grid_constant__ tile::TensorMap a_map,  // op(A) [m][k]
                        const __grid_constant__ tile::TensorMap b_map,  // op(B) [k][n]
                        Output<T> c,                                    // [m][n]
                        std::int64_t m, std::int64_t n, int k, unsigned pairs) {
  using namespace tile::ptx;
  using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
  using BTile = OperandBoxes<T, kBAlongK, Tile::kN, kCluster>;
  constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // [stage]{A's tile, B's tile}
  __shared__ Mbarrier full[kStages], empty[kStages];
  const SharedAddress stages(smem);
  const int warpgroup = tile::warpgroup_in_block();
  // A stage is empty when a thread of each consumer of both blocks has arrived.
  if (threadIdx.x == 0) tile::init_ring(full, empty, kCluster * Tile::kConsumers);
  cluster_sync();  // all are initialised before a thread of either block uses them
  const unsigned rank = cluster_rank();
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    // One thread copies; the others go on to the cluster's last barrier.
    for (unsigned pair = blockIdx.x / kCluster; threadIdx.x == 0 && pair < pairs;
         pair += gridDim.x / kCluster) {
      const Corner corner = corner_in_cluster<Tile, kCluster, kGroup>(pair, rank, m, n);
      for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
        // snippet-begin multicast
        const SharedAddress a_smem = stages + place.stage * kStageBytes;
        mbarrier_wait_cluster(&empty[place.stage], place.parity ^ 1);
        mbarrier_arrive_expect(&full[place.stage], kStageBytes);
        ATile::load(a_smem, a_map, static_cast<int>(corner.row), k0, &full[place.stage]);
        // This block's half of the rows of B's tile, into both.
        BTile::load(a_smem + ATile::kBytes, b_map, static_cast<int>(corner.col), k0,
                    &full[place.stage], rank);
        // snippet-end multicast
      }
    }
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    const int first_row = (warpgroup - 1) * Tile::kRows;
    const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
    for (unsigned pair = blockIdx.x / kCluster; pair < pairs; pair += gridDim.x / kCluster) {
      const Corner corner = corner_in_cluster<Tile, kCluster, kGroup>(pair, rank, m, n);
      float sums[Tile::kN / 2];  // of C, as element_of_wgmma says
      int read = -1;             // the stage that is multiplied
      for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
        mbarrier_wait_cluster(&full[place.stage], place.parity);
        const SharedAddress a_smem = stages + place.stage * kStageBytes;
        const WgmmaDescriptor a = ATile::descriptor(a_smem, first_row);
        const WgmmaDescriptor b = BTile::descriptor(a_smem + ATile::kBytes, 0);
        // C += A B: four times 16 of k
        start_products<T, ATile, BTile>(sums, a, b, k0 != 0);
        wgmma_wait<1>(sums);  // the stage before has been read
        if (is_leader && read >= 0) release_in_cluster<kCluster>(&empty[read]);
        read = place.stage;
      }
      wgmma_wait<0>(sums);
      if (is_leader) release_in_cluster<kCluster>(&empty[read]);

      store_sums(sums, c, corner.row + first_row, corner.col, m, n);
    }
  }
  __syncwarp();    // the next is for whole warps, and one thread of the first has copied
  cluster_sync();  // the other block still copies into this one's memory, and arrives there
}

}  // namespace

tile::Status cluster_ring(const Problem& p, const Buffers& buffers, void* stream) {
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value;
    using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
    using BTile = OperandBoxes<T, kBAlongK, Tile::kN, kCluster>;
    tile::TensorMap a_map, b_map;
    TILE_TRY(make_maps<ATile, BTile>(p, buffers, &a_map, &b_map));
    unsigned pairs = 0, most = 0;  // of clusters: in all, and at the same time
    TILE_TRY(count_clusters(kCluster, &most));
    TILE_TRY(blocks_for_tiles(p, kCluster * Tile::kM, Tile::kN, &pairs));
    constexpr int kBytes = kStages * (ATile::kBytes + BTile::kBytes);
    return tile::launch_in_clusters(
        matmul_cluster_ring<T, kAAlongK, kBAlongK>, "matmul_cluster_ring",
        dim3(kCluster * blocks_without_idlers(pairs, most)), Tile::kThreads, kCluster, kBytes,
        stream, a_map, b_map, output_c<T>(p, buffers), p.m, p.n, p.k, pairs);
  };
  TILE_TRY(with_16_bits(p, launch));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
