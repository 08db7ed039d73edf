// Step 25: few rows: A and B exchange their roles.
// Idea: wgmma always has 64 rows, but as few as 8 columns. So if C has few rows, compute the
//       transposed product, C^T = B^T A^T: the rows of wgmma run along n, its columns along m.
//       Far fewer zeros are copied and multiplied then, and only memory limits the speed.
// Change: from step 21: op(B) is wgmma's first operand, and op(A) its second. A tile has 64
//         columns of C and 16, 32 or 64 rows, two blocks fit on a multiprocessor, and k is split
//         only if C has too few columns for 96 blocks.
// Limit: the memory that B comes from.
#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

static_assert(kSwapColumns == 64, "of one wgmma, by one consumer");
constexpr int kThreads = 2 * tile::kWarpgroup;
constexpr int kBlocks = 2;  // on a multiprocessor
/// As many stages as fit in half of 224 KiB: a multiprocessor has 228, and a block takes 1 more.
template <class ATile, class BTile>
constexpr int kStagesOf = 224 * 1024 / kBlocks / (ATile::kBytes + BTile::kBytes);
constexpr int kTogether = 4;                      // columns of C that a thread gathers: 16 bytes
constexpr int kInRow = kSwapColumns / kTogether;  // threads that gather a row
static_assert(kThreads % kInRow == 0 && kBlockK == kSwapBlockK);
// Floats from one row of sums to the next, four of them padding. A warp stores eight columns of
// each of four rows, two apart, at a time, and with the padding these lie in different banks.
constexpr int kPartLd = kSwapColumns + 4;

template <class T, int kM, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kThreads, kBlocks)
    matmul_swap_ab(const __grid_constant__ tile::TensorMap a_map,  // op(A) [m][k]
                   const __grid_constant__ tile::TensorMap b_map,  // op(B) [k][n]
                   Output<T> c,                                    // [m][n], m <= kM
                   const T* bias,                                  // [n], or null
                   Activation activation,                          // of the sum and the bias
                   int m, std::int64_t n,
                   unsigned turns) {  // iterations over all of k: k / kBlockK, rounded up
  using namespace tile::ptx;
  using ATile = OperandBoxes<T, kAAlongK, kM>;
  using BTile = OperandBoxes<T, kBAlongK, kSwapColumns>;
  constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  constexpr int kStages = kStagesOf<ATile, BTile>;
  static_assert(kM * kPartLd * int{sizeof(float)} <= kStages * kStageBytes);
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // [stage]{A's tile, B's tile}
  auto* const part_smem = reinterpret_cast<float*>(smem);  // later: [kM][kPartLd] sums
  __shared__ Mbarrier full[kStages], empty[kStages];
  const SharedAddress stages(smem);
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    prefetch_tensor_map(a_map), prefetch_tensor_map(b_map);  // the first copies need them
    tile::init_ring(full, empty, 1);                         // a thread of the consumer
  }
  __syncthreads();  // they are initialised before a thread waits
  tile::RingPlace<kStages> place;

  // The blocks of a cluster share a tile of C. Each has its share of k, as in step 21.
  const unsigned blocks = cluster_size(), rank = cluster_rank();
  const std::int64_t first_col = std::int64_t{blockIdx.x / blocks} * kSwapColumns;
  const auto first = static_cast<int>(turns * rank / blocks);
  const auto last = static_cast<int>(turns * (rank + 1) / blocks);

  if (warpgroup == 0) {
    // One thread copies; the others go to the cluster's barrier.
    for (int turn = first; threadIdx.x == 0 && turn < last; ++turn, place.advance()) {
      const SharedAddress a_smem = stages + place.stage * kStageBytes;
      mbarrier_wait(&empty[place.stage], place.parity ^ 1);
      mbarrier_arrive_expect(&full[place.stage], kStageBytes);
      ATile::load(a_smem, a_map, 0, turn * kBlockK, &full[place.stage]);
      BTile::load(a_smem + ATile::kBytes, b_map, static_cast<int>(first_col), turn * kBlockK,
                  &full[place.stage]);
    }
    __syncwarp();  // the cluster's barrier is for whole warps
  } else {
    const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
    float sums[kM / 2];  // of this share of k, transposed, as element_of_wgmma says
    // snippet-begin loop
    for (int turn = first; turn < last; ++turn, place.advance()) {
      mbarrier_wait(&full[place.stage], place.parity);
      const SharedAddress a_smem = stages + place.stage * kStageBytes;
      const WgmmaDescriptor a = ATile::descriptor(a_smem, 0);
      const WgmmaDescriptor b = BTile::descriptor(a_smem + ATile::kBytes, 0);
      // C^T += B^T A^T: four times 16 of k
      start_products<T, BTile, ATile>(sums, b, a, turn != first);
      wgmma_wait<0>(sums);  // the tensor cores have time to spare, and the stage is free sooner
      if (is_leader) mbarrier_arrive(&empty[place.stage]);
    }
    // snippet-end loop
    // The sums overwrite the ring. All copies have been waited for, so none is under way any more,
    // and after this barrier all warps have read all stages. TMA and wgmma are done with the
    // ring, so no fence is needed between their proxy and these stores.
    barrier_sync(1, tile::kWarpgroup);
#pragma unroll
    for (int i = 0; i < kM / 2; ++i) {
      const Element at = element_of_wgmma(static_cast<int>(threadIdx.x) % tile::kWarpgroup, i);
      part_smem[at.col * kPartLd + at.row] = sums[i];  // D's columns are rows of C
    }
  }

  cluster_arrive_shared();
  cluster_wait();  // the sums of all blocks lie in their shared memory
  // C's tile is their sum. Each block gathers some of the rows, and kInRow threads gather one.
  const int x_in_tile = static_cast<int>(threadIdx.x) % kInRow * kTogether;
  const std::int64_t x = first_col + x_in_tile;
  const bool aligned = reinterpret_cast<std::uintptr_t>(c.data) % 8 == 0 && c.ld % kTogether == 0;
  const int end = m * static_cast<int>(rank + 1) / static_cast<int>(blocks);
  for (int y = m * static_cast<int>(rank) / static_cast<int>(blocks) +
               static_cast<int>(threadIdx.x) / kInRow;
       y < end && x < n; y += kThreads / kInRow) {
    float sum[kTogether] = {};
    for (unsigned i = 0; i < blocks; ++i) {  // its own first, in an order that is always the same
      const float* part = in_block_of_cluster(part_smem, (rank + i) % blocks);
      const auto four = *reinterpret_cast<const float4*>(part + y * kPartLd + x_in_tile);
      sum[0] += four.x, sum[1] += four.y, sum[2] += four.z, sum[3] += four.w;
    }
    T* to = c.data + y * c.ld + x;
#pragma unroll
    for (int e = 0; e < kTogether; ++e) {
      if (x + e >= n) continue;
      sum[e] = c.scaled(sum[e], to + e);
      if (bias) sum[e] += static_cast<float>(bias[x + e]);
      sum[e] = activate(activation, sum[e]);
      if (!aligned || x + kTogether > n) to[e] = static_cast<T>(sum[e]);
    }
    if (aligned && x + kTogether <= n) {  // 8 bytes a thread, 128 contiguous bytes a row
      *reinterpret_cast<uint2*>(to) = {pack<T>(sum[0], sum[1]), pack<T>(sum[2], sum[3])};
    }
  }
  __syncwarp();    // the next barrier is for whole warps, and some lanes had no columns
  cluster_sync();  // no block ends, and its shared memory with it, while another reads there
}

}  // namespace

tile::Status swap_ab(const Problem& problem, const Buffers& given, void* stream) {
  Problem p = problem;
  Buffers buffers = given;
  TILE_TRY(pad_rows(&p, &buffers, stream));
  const auto launch_rows = [&](auto rows, auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value;
    using ATile = OperandBoxes<T, kAAlongK, rows.value>;
    using BTile = OperandBoxes<T, kBAlongK, kSwapColumns>;
    tile::TensorMap a_map, b_map;
    TILE_TRY(make_maps<ATile, BTile>(p, buffers, &a_map, &b_map));
    unsigned tiles = 0;
    TILE_TRY(blocks_for_tiles(p, kSwapRows, kSwapColumns, &tiles));
    constexpr int kBytes = kStagesOf<ATile, BTile> * (ATile::kBytes + BTile::kBytes);
    const unsigned splits = swap_splits(p);
    return tile::launch_in_clusters(
        matmul_swap_ab<T, rows.value, kAAlongK, kBAlongK>, "matmul_swap_ab", dim3(tiles * splits),
        kThreads, splits, kBytes, stream, a_map, b_map, output_c<T>(p, buffers),
        static_cast<const T*>(buffers.bias), p.activation, p.m, p.n, (p.k - 1) / kBlockK + 1);
  };
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using std::integral_constant;
    if constexpr (a_along_k.value) {  // along m a box has 64 rows of C, and no fewer
      if (p.m <= 16)
        return launch_rows(integral_constant<int, 16>{}, element, a_along_k, b_along_k);
      if (p.m <= 32)
        return launch_rows(integral_constant<int, 32>{}, element, a_along_k, b_along_k);
    }
    return launch_rows(integral_constant<int, kSwapRows>{}, element, a_along_k, b_along_k);
  };
  return with_16_bits(p, launch);
}

}  // namespace matmul
