// Step 22: 8 bits.
// Idea: e4m3 has half of the bytes of bf16, and tensor cores multiply twice as many at a time. A
//       scale for each matrix brings its values into the range of e4m3.
// Change: from step 20: 128 of k in a tile, 32 in a wgmma, both operands along k, as wgmma reads 8
//         bits in no other way; C and the bias are bf16; alpha is multiplied by the scales.
// Limit: the tensor cores, and the power that they may take. They keep only 14 bits of a sum of
//        such products, see sum_error() in reference.cpp.
#include <cuda_fp8.h>

#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "stored_tile.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

using T = __nv_fp8_e4m3;
using Bf16 = __nv_bfloat16;

using Tile = TileOf<2, 256>;    // 128 x 256, by two consumers
constexpr int kDepth = 128;     // of k in a tile: 128 bytes, a row of the swizzle's pattern
constexpr int kCluster = 2;     // blocks, one above the other
constexpr int kStages = 4;      // of 48 KiB: 192 of the 227 KiB of a block
constexpr unsigned kGroup = 8;  // pairs of tiles below one another that are taken together

using ATile = OperandBoxes<T, true, Tile::kM>;
using BTile = OperandBoxes<T, true, Tile::kN, kCluster>;
constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;

__global__ void __launch_bounds__(Tile::kThreads, 1)
    matmul_e4m3(const __grid_constant__ tile::TensorMap a_map,  // A [m][k]
                const __grid_constant__ tile::TensorMap b_map,  // B [n][k]
                const __grid_constant__ tile::TensorMap c_map,  // C [m][n], if n >= 8
                Output<Bf16> c,                                 // the same
                const float* a_scale, const float* b_scale,     // a number each, or null
                const Bf16* bias,                               // [n], or null
                Activation activation,                          // of the sum and the bias
                std::int64_t m, std::int64_t n, int k, unsigned pairs) {
  using namespace tile::ptx;
  // [stage]{A's tile, B's tile}, [warp]{boxes of C}; at 1,024 bytes the swizzle's pattern begins.
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ Mbarrier full[kStages], empty[kStages];
  const SharedAddress stages(smem);
  // snippet-begin scales
  if (a_scale) c.alpha *= *a_scale;
  if (b_scale) c.alpha *= *b_scale;
  // snippet-end scales
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    prefetch_tensor_map(a_map), prefetch_tensor_map(b_map);     // the first copies need them
    tile::init_ring(full, empty, kCluster * Tile::kConsumers);  // a thread of each consumer
  }
  cluster_sync();  // all are initialised before a thread of either block uses them
  const unsigned rank = cluster_rank();
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    // One thread copies; the others go on to the cluster's last barrier.
    for (unsigned pair = blockIdx.x / kCluster; threadIdx.x == 0 && pair < pairs;
         pair += gridDim.x / kCluster) {
      const Corner corner = corner_in_cluster<Tile, kCluster, kGroup>(pair, rank, m, n);
      for (int k0 = 0; k0 < k; k0 += kDepth, place.advance()) {
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
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    const int first_row = (warpgroup - 1) * Tile::kRows;
    const int warp = tile::warp_in_block() - 4;  // among the consumers; four have 64 rows
    StoredTile<Bf16, Tile> stored(c_map, stages + kStages * kStageBytes, warp);
    const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
    for (unsigned pair = blockIdx.x / kCluster; pair < pairs; pair += gridDim.x / kCluster) {
      const Corner corner = corner_in_cluster<Tile, kCluster, kGroup>(pair, rank, m, n);
      float sums[Tile::kN / 2];  // of C, as element_of_wgmma says
      int read = -1;             // the stage that is multiplied
      // snippet-begin loop
      for (int k0 = 0; k0 < k; k0 += kDepth, place.advance()) {
        mbarrier_wait_cluster(&full[place.stage], place.parity);
        const SharedAddress a_smem = stages + place.stage * kStageBytes;
        const WgmmaDescriptor a = ATile::descriptor(a_smem, first_row);
        const WgmmaDescriptor b = BTile::descriptor(a_smem + ATile::kBytes, 0);
        // C += A B: four times 32 of k
        start_products<T, ATile, BTile>(sums, a, b, k0 != 0);
        stored.store_next();  // of the previous tile, meanwhile
        wgmma_wait<1>(sums);  // the stage before has been read
        if (is_leader && read >= 0) release_in_cluster<kCluster>(&empty[read]);
        read = place.stage;
      }
      // snippet-end loop
      stored.store_all();  // if there were fewer iterations than parts
      wgmma_wait<0>(sums);
      if (is_leader) release_in_cluster<kCluster>(&empty[read]);

      const std::int64_t row = corner.row + first_row;
      finish(sums, c, bias, activation, row, corner.col, m, n);
      store_rest(sums, c, row, corner.col, m, n);
      if (n >= kTogether) stored.take(sums, row + warp % 4 * OutputBox::kRows, corner.col);
    }
    stored.store_all();
  }
  bulk_wait_read<0>();  // shared memory stays until TMA has read it
  __syncwarp();         // the next is for whole warps, and one thread of the first has copied
  cluster_sync();       // the other block still copies into this one's memory, and arrives there
}

}  // namespace

tile::Status e4m3(const Problem& p, const Buffers& buffers, void* stream) {
  if (terms(p) == 0) return without_product(p, buffers, stream);
  tile::TensorMap a_map, b_map, c_map;
  TILE_TRY(make_maps<ATile, BTile>(p, buffers, &a_map, &b_map));
  TILE_TRY(map_of_output(p, buffers, &c_map));
  unsigned pairs = 0, most = 0;  // of clusters: in all, and at the same time
  TILE_TRY(count_clusters(kCluster, &most));
  TILE_TRY(blocks_for_tiles(p, kCluster * Tile::kM, Tile::kN, &pairs));
  constexpr int kBytes = kStages * kStageBytes + StoredTile<Bf16, Tile>::kBytes;
  return tile::launch_in_clusters(
      matmul_e4m3, "matmul_e4m3", dim3(kCluster * blocks_without_idlers(pairs, most)),
      Tile::kThreads, kCluster, kBytes, stream, a_map, b_map, c_map, output_c<Bf16>(p, buffers),
      buffers.a_scale, buffers.b_scale, static_cast<const Bf16*>(buffers.bias), p.activation, p.m,
      p.n, p.k, pairs);
}

}  // namespace matmul
