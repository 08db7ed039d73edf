// Step 19: tiles of six shapes.
// Idea: in the last round some blocks may have no tile. Another shape may need fewer rounds, and a
//       small C needs small tiles to have one for each multiprocessor.
// Change: a kernel for each shape. The launcher counts the cycles of each shape's rounds. Bias and
//         activation come before C is rounded. A and B are copied first if TMA refuses their rows;
//         C is stored in words, wherever its rows begin.
// Limit: the tensor cores wait while a tile of C is stored.
#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "store_words.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

constexpr int kCluster = 2;  // blocks, one above the other
// Four stages of 48 KiB to twelve of 16: 192 of the 227 KiB of a block.
constexpr int kRingBytes = 192 * 1024;
constexpr unsigned kGroup = 8;  // pairs of tiles below one another that are taken together

template <class T, bool kAAlongK, bool kBAlongK, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    matmul_tile_shapes(const __grid_constant__ tile::TensorMap a_map,  // op(A) [m][k]
                       const __grid_constant__ tile::TensorMap b_map,  // op(B) [k][n]
                       Output<T> c,                                    // [m][n]
                       std::int64_t m, std::int64_t n, int k, unsigned pairs) {
  using namespace tile::ptx;
  using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
  using BTile = OperandBoxes<T, kBAlongK, Tile::kN, kCluster>;
  constexpr int kStageBytes = ATile::kBytes + BTile::kBytes, kStages = kRingBytes / kStageBytes;
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // [stage]{A, B}, [warp]{box of C}
  __shared__ Mbarrier full[kStages], empty[kStages];
  const SharedAddress stages(smem);
  const int warpgroup = tile::warpgroup_in_block();
  // A stage is empty when a thread of each consumer of both blocks has arrived.
  if (threadIdx.x == 0) tile::init_ring(full, empty, kCluster * Tile::kConsumers);
  cluster_sync();  // all are initialised before a thread of either block uses them
  const unsigned rank = cluster_rank();
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {
    if constexpr (Tile::kConsumers > 1) setmaxnreg_dec<Tile::kProducerRegisters>();
    // One thread copies; the others go on to the cluster's last barrier.
    for (unsigned pair = blockIdx.x / kCluster; threadIdx.x == 0 && pair < pairs;
         pair += gridDim.x / kCluster) {
      const Corner corner = corner_in_cluster<Tile, kCluster, kGroup>(pair, rank, m, n);
      for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
        const SharedAddress a_smem = stages + place.stage * kStageBytes;
        mbarrier_wait_cluster(&empty[place.stage], place.parity ^ 1);
        mbarrier_arrive_expect(&full[place.stage], kStageBytes);
        ATile::load(a_smem, a_map, static_cast<int>(corner.row), k0, &full[place.stage]);
        // This block's half of the rows of B's tile, into both.
        BTile::load(a_smem + ATile::kBytes, b_map, static_cast<int>(corner.col), k0,
                    &full[place.stage], rank);
      }
    }
  } else {
    if constexpr (Tile::kConsumers > 1) setmaxnreg_inc<Tile::kConsumerRegisters>();
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

      finish(sums, c, c.bias, c.activation, corner.row + first_row, corner.col, m, n);
      __syncwarp();                                // all lanes have read C
      const int warp = tile::warp_in_block() - 4;  // among the consumers; four have 64 rows
      store_words(sums, c, smem + kStages * kStageBytes + warp * OutputBox::kBytes,
                  corner.row + warp * OutputBox::kRows, corner.col, m, n);
    }
  }
  __syncwarp();    // the next is for whole warps, and one thread of the first has copied
  cluster_sync();  // the other block still copies into this one's memory, and arrives there
}

template <class Tile>
tile::Status launch_tiles(const Problem& p, const Buffers& buffers, unsigned most, void* stream) {
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value;
    using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
    using BTile = OperandBoxes<T, kBAlongK, Tile::kN, kCluster>;
    tile::TensorMap a_map, b_map;
    TILE_TRY(make_maps<ATile, BTile>(p, buffers, &a_map, &b_map));
    unsigned pairs = 0;
    TILE_TRY(blocks_for_tiles(p, kCluster * Tile::kM, Tile::kN, &pairs));
    constexpr int kBytes = kRingBytes + Tile::kConsumers * 4 * OutputBox::kBytes;
    return tile::launch_in_clusters(
        matmul_tile_shapes<T, kAAlongK, kBAlongK, Tile>, "matmul_tile_shapes",
        dim3(kCluster * blocks_without_idlers(pairs, most)), Tile::kThreads, kCluster, kBytes,
        stream, a_map, b_map, output_c<T>(p, buffers), p.m, p.n, p.k, pairs);
  };
  return with_16_bits(p, launch);
}

}  // namespace

tile::Status tile_shapes(const Problem& problem, const Buffers& given, void* stream) {
  Problem p = problem;
  Buffers buffers = given;
  TILE_TRY(pad_rows(&p, &buffers, stream));  // A and B, if TMA refuses their rows
  unsigned most = 0;                         // pairs of blocks that run at one time
  TILE_TRY(count_clusters(kCluster, &most));
  return with_fastest_tile(
      p, most, [&](auto tile) { return launch_tiles<decltype(tile)>(p, buffers, most, stream); });
}

}  // namespace matmul
