// Exercise 02.7: a ring of mbarriers
//
// C = A * B by TMA and wgmma, as in step 16: one warpgroup, the producer, only copies, and another,
// the consumer, only multiplies. Between them lies a ring of kStages stages, each with a tile of A
// and one of B. Turn t of either side works on 64 of k, in stage t % kStages.
// Copies and products are here. What the two sides tell each other is missing: neither waits or
// says when a stage is full or empty. Step 16 carries a stage and a parity along; here both follow
// from the number of the turn. Work it out on paper for eight turns of three stages: which phase of
// full[0] has the bytes of turn 6, and which phase of empty[0] must be complete before turn 6
// copies?
// The check wants the right product, and on the CPU device a producer that is kStages turns ahead.
// A GPU waits for ever for a phase that never completes. The CPU device says who waits, for what,
// and what is missing: --device cpu.
// Check it with: ./tour exercise 02.7
#include "exercises/exercises.hpp"
#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/warpgroup.cuh"

namespace matmul {
namespace {

constexpr int kTileM = 64, kTileN = 64;  // of C, for a block
constexpr int kStages = 3;
constexpr int kThreads = 2 * tile::kWarpgroup;

using ATile = OperandBoxes<__half, true, kTileM>;   // kTileM x kBlockK
using BTile = OperandBoxes<__half, false, kTileN>;  // kBlockK x kTileN
constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;

__global__ void __launch_bounds__(kThreads)
    matmul_ring_of_mbarriers(const __grid_constant__ tile::TensorMap a_map,  // A [m][k]
                             const __grid_constant__ tile::TensorMap b_map,  // B [k][n]
                             Output<__half> c,                               // [m][n]
                             std::int64_t m, std::int64_t n, int k) {
  using namespace tile::ptx;
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // [stage]{A's tile, B's tile}
  __shared__ Mbarrier full[kStages];   // a phase is complete when the stage has been filled
  __shared__ Mbarrier empty[kStages];  // and here when it has been read
  const SharedAddress stages(smem);
  const Corner corner = corner_of_block(n, kTileM, kTileN);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&full[stage], 1);   // the producer arrives, and says how many bytes will come
      mbarrier_init(&empty[stage], 1);  // one thread of the consumer arrives
    }
  }
  __syncthreads();  // all see them before they wait there
  const int turns = (k + kBlockK - 1) / kBlockK;

  if (threadIdx.x < tile::kWarpgroup) {  // the producer
    if (threadIdx.x != 0) return;
    for (int turn = 0; turn < turns; ++turn) {
      const int stage = turn % kStages;
      const SharedAddress a_smem = stages + stage * kStageBytes;
      // TODO 1: When may this stage be filled? And what does full[stage] have to know about the two
      // copies? In the first round there is nothing to wait for.
      ATile::load(a_smem, a_map, static_cast<int>(corner.row), turn * kBlockK, &full[stage]);
      BTile::load(a_smem + ATile::kBytes, b_map, static_cast<int>(corner.col), turn * kBlockK,
                  &full[stage]);
    }
    return;
  }

  float sums[kTileN / 2];  // of C, as element_of_wgmma says
  for (int turn = 0; turn < turns; ++turn) {
    const int stage = turn % kStages;
    // TODO 2: When may this stage be read?
    const WgmmaDescriptor a = ATile::descriptor(stages + stage * kStageBytes, 0);
    const WgmmaDescriptor b = BTile::descriptor(stages + stage * kStageBytes + ATile::kBytes, 0);
    // C += A B: four times 16 of k
    wgmma_fence();
#pragma unroll
    for (int part = 0; part < kBlockK / kWgmmaK; ++part) {
      wgmma<__half, kTileN, ATile::kMajor, BTile::kMajor>(
          sums, a + part * ATile::kPartBytes, b + part * BTile::kPartBytes, turn != 0 || part != 0);
    }
    wgmma_commit();
    // TODO 3: Which stage has been read by now, and what makes that certain? One thread says it.
  }
  wgmma_wait<0>(sums);

#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) {
    const Element at = element_of_wgmma(static_cast<int>(threadIdx.x) % tile::kWarpgroup, i);
    const std::int64_t row = corner.row + at.row, col = corner.col + at.col;
    if (row < m && col < n) c.store(row, col, sums[i]);
  }
}

}  // namespace

tile::Status ring_of_mbarriers(const Problem& problem, const Buffers& buffers) {
  TILE_TRY(validate(problem, buffers));
  if (is_empty(problem)) return {};
  tile::TensorMap a_map, b_map;
  TILE_TRY(make_maps<ATile, BTile>(problem, buffers, &a_map, &b_map));
  unsigned blocks = 0;
  TILE_TRY(blocks_for_tiles(problem, kTileM, kTileN, &blocks));
  constexpr int kBytes = kStages * kStageBytes;
  return tile::launch(matmul_ring_of_mbarriers, "matmul_ring_of_mbarriers", blocks, kThreads,
                      kBytes, nullptr, a_map, b_map, output_c<__half>(problem, buffers), problem.m,
                      problem.n, problem.k);
}

}  // namespace matmul
