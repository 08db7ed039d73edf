// Step 21: k is split among the blocks of a cluster.
// Idea: a C of few tiles leaves most multiprocessors without work, however long its sums are. So up
//       to eight blocks share a tile: each adds the products of its share of k, and then all of
//       them add up their sums, through distributed shared memory.
// Change: from step 16: tiles of 128 x 128, a share of k instead of all of it, and at the end
//         each block gathers some rows of the tile, in an order that is always the same, and
//         finishes them as step 20 does. No workspace, no atomics.
// Limit: L2. An iteration loads 32 KiB, as step 20 does with tiles of 128 x 256, for half as many
//        products.
#include "hopper_launch.hpp"
#include "hopper_tiles.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

using Tile = TileOf<2, 128>;  // 128 x 128, by two consumers
static_assert(Tile::kM == kSplitTile && Tile::kN == kSplitTile && kBlockK == kSplitBlockK);
constexpr int kStages = 7;  // of 32 KiB: 224 of the 227 KiB of a block
// 168 registers for each thread, and 64 of a consumer's are sums: setmaxnreg would gain nothing.
constexpr int kWarps = Tile::kThreads / 32;
constexpr int kTogether = 4;  // columns of C that a lane gathers: 16 bytes of sums
static_assert(Tile::kN == 32 * kTogether, "a warp gathers a row");
constexpr int kRowsTogether = 3;  // rows that a warp loads at one time: 12 warps have 36 rows
// Floats from one row of sums to the next, eight of them padding. Half a warp stores 32 bytes of
// each of four rows at a time, and with the padding these lie in different banks.
constexpr int kPartLd = Tile::kN + 8;

template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    matmul_split_k(const __grid_constant__ tile::TensorMap a_map,  // op(A) [m][k]
                   const __grid_constant__ tile::TensorMap b_map,  // op(B) [k][n]
                   Output<T> c,                                    // [m][n]
                   const T* bias,                                  // [n], or null
                   Activation activation,                          // of the sum and the bias
                   std::int64_t m, std::int64_t n,
                   unsigned turns) {  // iterations over all of k: k / kBlockK, rounded up
  using namespace tile::ptx;
  using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
  using BTile = OperandBoxes<T, kBAlongK, Tile::kN>;
  constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  static_assert(Tile::kM * kPartLd * int{sizeof(float)} <= kStages * kStageBytes);
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // [stage]{A's tile, B's tile}
  auto* const part_smem = reinterpret_cast<float*>(smem);  // later: [Tile::kM][kPartLd] sums
  __shared__ Mbarrier full[kStages], empty[kStages];
  const SharedAddress stages(smem);
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    prefetch_tensor_map(a_map), prefetch_tensor_map(b_map);  // the first copies need them
    tile::init_ring(full, empty, Tile::kConsumers);          // a thread of each consumer
  }
  __syncthreads();  // they are initialised before a thread waits
  tile::RingPlace<kStages> place;

  // The blocks of a cluster share a tile of C. Each has its share of k, a whole number of
  // iterations, the same for all or one more. No share is empty, see k_splits().
  const unsigned blocks = cluster_size(), rank = cluster_rank();
  const Corner corner = corner_in_groups<Tile::kM, Tile::kN>(blockIdx.x / blocks, m, n);
  const auto first = static_cast<int>(turns * rank / blocks);
  const auto last = static_cast<int>(turns * (rank + 1) / blocks);

  if (warpgroup == 0) {
    // One thread copies; the others go to the cluster's barrier.
    for (int turn = first; threadIdx.x == 0 && turn < last; ++turn, place.advance()) {
      const SharedAddress a_smem = stages + place.stage * kStageBytes;
      mbarrier_wait(&empty[place.stage], place.parity ^ 1);
      mbarrier_arrive_expect(&full[place.stage], kStageBytes);
      ATile::load(a_smem, a_map, static_cast<int>(corner.row), turn * kBlockK, &full[place.stage]);
      BTile::load(a_smem + ATile::kBytes, b_map, static_cast<int>(corner.col), turn * kBlockK,
                  &full[place.stage]);
    }
    __syncwarp();  // the cluster's barrier is for whole warps
  } else {
    const int first_row = (warpgroup - 1) * Tile::kRows;
    const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
    float sums[Tile::kN / 2];  // of this share of k, as element_of_wgmma says
    int read = -1;             // the stage that is multiplied
    for (int turn = first; turn < last; ++turn, place.advance()) {
      mbarrier_wait(&full[place.stage], place.parity);
      const SharedAddress a_smem = stages + place.stage * kStageBytes;
      const WgmmaDescriptor a = ATile::descriptor(a_smem, first_row);
      const WgmmaDescriptor b = BTile::descriptor(a_smem + ATile::kBytes, 0);
      // C += A B: four times 16 of k
      start_products<T, ATile, BTile>(sums, a, b, turn != first);
      wgmma_wait<1>(sums);  // the stage before has been read
      if (is_leader && read >= 0) mbarrier_arrive(&empty[read]);
      read = place.stage;
    }
    wgmma_wait<0>(sums);
    // The sums overwrite the ring. All copies have been waited for, so none is under way any more,
    // and after this barrier both consumers have read all stages. TMA and wgmma are done with the
    // ring, so no fence is needed between their proxy and these stores.
    barrier_sync(1, Tile::kConsumers * tile::kWarpgroup);
#pragma unroll
    for (int i = 0; i < Tile::kN / 2; i += 2) {
      const Element at = element_of_wgmma(static_cast<int>(threadIdx.x) % tile::kWarpgroup, i);
      *reinterpret_cast<float2*>(part_smem + (first_row + at.row) * kPartLd + at.col) = {
          sums[i], sums[i + 1]};
    }
  }

  // snippet-begin gather
  cluster_arrive_shared();
  cluster_wait();  // the sums of all blocks lie in their shared memory
  // C's tile is their sum. Each block gathers some of the rows, each warp every 12th of these.
  const int end = Tile::kM * static_cast<int>(rank + 1) / static_cast<int>(blocks);
  const int x_in_tile = static_cast<int>(threadIdx.x) % 32 * kTogether;
  const std::int64_t x = corner.col + x_in_tile;
  const bool aligned = reinterpret_cast<std::uintptr_t>(c.data) % 8 == 0 && c.ld % kTogether == 0;
  for (int y0 = Tile::kM * static_cast<int>(rank) / static_cast<int>(blocks) +
                static_cast<int>(threadIdx.x) / 32;
       y0 < end && x < n; y0 += kWarps * kRowsTogether) {
    float sum[kRowsTogether][kTogether] = {};
    // Adds the blocks' sums in an order that depends on the rank alone, its own first: the same in
    // each run. Blocks that keep pace read from different blocks.
    for (unsigned i = 0; i < blocks; ++i) {
      const float* part = in_block_of_cluster(part_smem, (rank + i) % blocks) + x_in_tile;
#pragma unroll
      for (int r = 0; r < kRowsTogether; ++r) {
        if (y0 + r * kWarps >= end) continue;
        const auto four = *reinterpret_cast<const float4*>(part + (y0 + r * kWarps) * kPartLd);
        sum[r][0] += four.x, sum[r][1] += four.y, sum[r][2] += four.z, sum[r][3] += four.w;
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsTogether; ++r) {
      const std::int64_t y = corner.row + y0 + r * kWarps;
      if (y0 + r * kWarps >= end || y >= m) continue;
      T* to = c.data + y * c.ld + x;
#pragma unroll
      for (int e = 0; e < kTogether; ++e) {
        if (x + e >= n) continue;
        sum[r][e] = c.scaled(sum[r][e], to + e);
        if (bias) sum[r][e] += static_cast<float>(bias[x + e]);
        sum[r][e] = activate(activation, sum[r][e]);
        if (!aligned || x + kTogether > n) to[e] = static_cast<T>(sum[r][e]);
      }
      if (aligned && x + kTogether <= n) {  // 8 bytes a lane, 256 contiguous bytes a warp
        *reinterpret_cast<uint2*>(to) = {pack<T>(sum[r][0], sum[r][1]),
                                         pack<T>(sum[r][2], sum[r][3])};
      }
    }
  }
  __syncwarp();    // the next barrier is for whole warps, and some lanes had no columns
  cluster_sync();  // no block ends, and its shared memory with it, while another reads there
  // snippet-end gather
}

}  // namespace

tile::Status split_k(const Problem& problem, const Buffers& given, void* stream) {
  Problem p = problem;
  Buffers buffers = given;
  TILE_TRY(pad_rows(&p, &buffers, stream));
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
    const unsigned splits = k_splits(p);
    return tile::launch_in_clusters(
        matmul_split_k<T, kAAlongK, kBAlongK>, "matmul_split_k", dim3(tiles * splits),
        Tile::kThreads, splits, kBytes, stream, a_map, b_map, output_c<T>(p, buffers),
        static_cast<const T*>(buffers.bias), p.activation, p.m, p.n, (p.k - 1) / kBlockK + 1);
  };
  return with_16_bits(p, launch);
}

}  // namespace matmul
