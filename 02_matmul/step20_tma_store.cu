// Step 20: C is stored by TMA.
// Idea: rounded, a tile of C takes half as many registers as its sums. Consumers keep it there,
//       begin the next tile, and store the old one while the tensor cores multiply.
// Change: sums are scaled, activated and rounded in registers. In each of the next tile's first
//         iterations stmatrix writes 64 columns to shared memory, and TMA stores them.
// Limit: the tensor cores, and the power that they may take.
#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "stored_tile.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/elect.cuh"
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
    matmul_tma_store(const __grid_constant__ tile::TensorMap a_map,  // op(A) [m][k]
                     const __grid_constant__ tile::TensorMap b_map,  // op(B) [k][n]
                     const __grid_constant__ tile::TensorMap c_map,  // C [m][n]
                     Output<T> c,                                    // the same
                     const T* bias,                                  // [n], or null
                     Activation activation,                          // of the sum and the bias
                     std::int64_t m, std::int64_t n, int k, unsigned pairs) {
  using namespace tile::ptx;
  using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
  using BTile = OperandBoxes<T, kBAlongK, Tile::kN, kCluster>;
  constexpr int kStageBytes = ATile::kBytes + BTile::kBytes, kStages = kRingBytes / kStageBytes;
  // [stage]{A's tile, B's tile}, [warp]{boxes of C}; at 1,024 bytes the swizzle's pattern begins.
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ Mbarrier full[kStages], empty[kStages];
  const SharedAddress stages(smem);
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    prefetch_tensor_map(a_map), prefetch_tensor_map(b_map);     // the first copies need them
    tile::init_ring(full, empty, kCluster * Tile::kConsumers);  // a thread of each consumer
  }
  cluster_arrive_relaxed();
  cluster_wait();  // all are initialised before a thread of either block uses them
  const unsigned rank = cluster_rank();
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {
    if constexpr (Tile::kConsumers > 1) setmaxnreg_dec<Tile::kProducerRegisters>();
    // One thread copies. Elected, it is known to ptxas as one, and needs no loop over lanes.
    if (tile::warp_in_block() != 0 || !elect_one()) return;
    for (unsigned pair = blockIdx.x / kCluster; pair < pairs; pair += gridDim.x / kCluster) {
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
    // When all stages have been read, the other block arrives here no more, and has what came from
    // here: this one may end.
    for (int stage = 0; stage < kStages; ++stage, place.advance()) {
      mbarrier_wait_cluster(&empty[place.stage], place.parity ^ 1);
    }
  } else {
    if constexpr (Tile::kConsumers > 1) setmaxnreg_inc<Tile::kConsumerRegisters>();
    const int first_row = (warpgroup - 1) * Tile::kRows;
    const int warp = tile::warp_in_block() - 4;  // among the consumers; four have 64 rows
    StoredTile<T, Tile> stored(c_map, stages + kStages * kStageBytes, warp);
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
        stored.store_next();  // of the previous tile, meanwhile
        wgmma_wait<1>(sums);  // the stage before has been read
        if (is_leader && read >= 0) release_in_cluster<kCluster>(&empty[read]);
        read = place.stage;
      }
      stored.store_all();  // if there were fewer iterations than parts
      wgmma_wait<0>(sums);
      if (is_leader) release_in_cluster<kCluster>(&empty[read]);

      const std::int64_t row = corner.row + first_row;
      finish(sums, c, bias, activation, row, corner.col, m, n);
      store_rest(sums, c, row, corner.col, m, n);
      stored.take(sums, row + warp % 4 * OutputBox::kRows, corner.col);
    }
    stored.store_all();
    bulk_wait_read<0>();  // shared memory stays until TMA has read it
  }
}

template <class Tile>
tile::Status launch_tiles(const Problem& p, const Buffers& buffers, unsigned most, void* stream) {
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value;
    using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
    using BTile = OperandBoxes<T, kBAlongK, Tile::kN, kCluster>;
    tile::TensorMap a_map, b_map, c_map;
    TILE_TRY(make_maps<ATile, BTile>(p, buffers, &a_map, &b_map));
    TILE_TRY(map_of_output(p, buffers, &c_map));
    unsigned pairs = 0;
    TILE_TRY(blocks_for_tiles(p, kCluster * Tile::kM, Tile::kN, &pairs));
    constexpr int kBytes = kRingBytes + StoredTile<T, Tile>::kBytes;
    return tile::launch_in_clusters(
        matmul_tma_store<T, kAAlongK, kBAlongK, Tile>, "matmul_tma_store",
        dim3(kCluster * blocks_without_idlers(pairs, most)), Tile::kThreads, kCluster, kBytes,
        stream, a_map, b_map, c_map, output_c<T>(p, buffers), static_cast<const T*>(buffers.bias),
        p.activation, p.m, p.n, p.k, pairs);
  };
  return with_16_bits(p, launch);
}

}  // namespace

tile::Status tma_store(const Problem& problem, const Buffers& given, void* stream) {
  Problem p = problem;
  Buffers buffers = given;
  TILE_TRY(pad_rows(&p, &buffers, stream));
  unsigned most = 0;  // pairs of blocks that run at one time
  TILE_TRY(count_clusters(kCluster, &most));
  return with_fastest_tile(
      p, most, [&](auto tile) { return launch_tiles<decltype(tile)>(p, buffers, most, stream); });
}

}  // namespace matmul
