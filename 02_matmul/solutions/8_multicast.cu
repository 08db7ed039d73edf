// Exercise 02.8: multicast
//
// C = A * B as in step 18, but the two blocks of a cluster have tiles of C that lie side by side.
// Both need the same tile of A, 128 x 64, and each has a tile of B of its own. The product below is
// right, but each block loads all of A's tile: L2 delivers it twice.
// Let each block load half of it, 64 rows, into both blocks, with tma_load_multicast().
// Then two blocks fill a stage. How many bytes does full[stage] of each of them count? Who must
// have read a stage before a block copies into both? And what may a block no longer take for
// granted of the other's memory, when it begins and when it ends?
// The check counts on the CPU device what TMA reads from global memory: a multicast counts once.
// A GPU waits for ever for a phase that never completes. The CPU device says who waits, for what,
// and what is missing: --device cpu.
// Check it with: ./tour exercise 02.8
#include "exercises/exercises.hpp"
#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

constexpr int kConsumers = 2, kRows = 64;  // warpgroups, one above the other, and the rows of each
constexpr int kTileM = kConsumers * kRows, kTileN = 64;  // of C, for a block
constexpr int kCluster = 2;                              // blocks, side by side
constexpr int kHalf = kTileM / kCluster;                 // rows of A's tile
constexpr int kStages = 3;
constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;

using ATile = OperandBoxes<__half, true, kTileM>;   // kTileM x kBlockK
using AHalf = OperandBoxes<__half, true, kHalf>;    // kHalf x kBlockK, one box of a_map
using BTile = OperandBoxes<__half, false, kTileN>;  // kBlockK x kTileN
constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;

__global__ void __launch_bounds__(kThreads)
    matmul_multicast(const __grid_constant__ tile::TensorMap a_map,  // A [m][k]
                     const __grid_constant__ tile::TensorMap b_map,  // B [k][n]
                     Output<__half> c,                               // [m][n]
                     std::int64_t m, std::int64_t n, int k) {
  using namespace tile::ptx;
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // [stage]{A's tile, B's tile}
  __shared__ Mbarrier full[kStages];   // a phase is complete when the stage has been filled
  __shared__ Mbarrier empty[kStages];  // and here when it has been read
  const SharedAddress stages(smem);
  constexpr int kPair = kCluster * kTileN;  // in a row of C there are whole pairs of tiles
  const Corner corner = corner_of_block((n + kPair - 1) / kPair * kPair, kTileM, kTileN);
  const int row = static_cast<int>(corner.row), col = static_cast<int>(corner.col);
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&full[stage], 1);  // the producer, and the bytes it expects
      mbarrier_init(&empty[stage], kCluster * kConsumers);  // a thread of each, in both blocks
    }
  }
  cluster_sync();  // both blocks see all of them before they copy, wait or arrive there
  const unsigned rank = cluster_rank();
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {  // the producer
    if (threadIdx.x != 0) return;
    for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
      const SharedAddress a_smem = stages + place.stage * kStageBytes;
      Mbarrier* const filled = &full[place.stage];
      mbarrier_wait_cluster(&empty[place.stage], place.parity ^ 1);
      mbarrier_arrive_expect(filled, kStageBytes);
      // This block's half of A's rows, into both. The other half comes from the other block.
      tma_load_multicast(a_smem + rank * AHalf::kBytes, a_map,
                         BoxAt{k0, row + static_cast<int>(rank) * kHalf}, filled,
                         (1 << kCluster) - 1);
      BTile::load(a_smem + ATile::kBytes, b_map, col, k0, filled);
    }
    return;
  }

  const int first_row = (warpgroup - 1) * kRows;
  float sums[kTileN / 2];  // of C, as element_of_wgmma says
  for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
    mbarrier_wait_cluster(&full[place.stage], place.parity);
    const SharedAddress a_smem = stages + place.stage * kStageBytes;
    const WgmmaDescriptor a = ATile::descriptor(a_smem, first_row);
    const WgmmaDescriptor b = BTile::descriptor(a_smem + ATile::kBytes, 0);
    // C += A B: four times 16 of k
    wgmma_fence();
#pragma unroll
    for (int part = 0; part < kBlockK / kWgmmaK; ++part) {
      wgmma<__half, kTileN, ATile::kMajor, BTile::kMajor>(
          sums, a + part * ATile::kPartBytes, b + part * BTile::kPartBytes, k0 != 0 || part != 0);
    }
    wgmma_commit();
    wgmma_wait<0>(sums);  // the stage has been read
    // Both producers wait for it: each has filled half of its A.
    for (unsigned block = 0; threadIdx.x % tile::kWarpgroup == 0 && block < kCluster; ++block) {
      mbarrier_arrive(&empty[place.stage], block);
    }
  }

#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) {
    const Element at = element_of_wgmma(static_cast<int>(threadIdx.x) % tile::kWarpgroup, i);
    const std::int64_t r = corner.row + first_row + at.row, l = corner.col + at.col;
    if (r < m && l < n) c.store(r, l, sums[i]);
  }
  cluster_sync();  // the other block still copies into this one's memory, and arrives there
}

}  // namespace

tile::Status multicast(const Problem& problem, const Buffers& buffers) {
  TILE_TRY(validate(problem, buffers));
  if (is_empty(problem)) return {};
  tile::TensorMap a_map, b_map;
  TILE_TRY(make_maps<AHalf, BTile>(problem, buffers, &a_map, &b_map));
  unsigned pairs = 0;
  TILE_TRY(blocks_for_tiles(problem, kTileM, kCluster * kTileN, &pairs));
  return tile::launch_in_clusters(matmul_multicast, "matmul_multicast", dim3(kCluster * pairs),
                                  kThreads, kCluster, kStages * kStageBytes, nullptr, a_map, b_map,
                                  output_c<__half>(problem, buffers), problem.m, problem.n,
                                  problem.k);
}

}  // namespace matmul
