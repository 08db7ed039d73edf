// Step 18: a cluster shares B.
// Idea: two blocks, one above the other in C, need the same tile of B. Each copies half of it into
//       both blocks' shared memory: L2 delivers B once for two.
// Change: the copies of B are multicast, and a stage is empty when the consumers of both blocks
//         have read it. Tiles of C come in pairs of 256 x 256.
// Limit: the tensor cores wait while a tile of C is stored element by element.
#include "hopper_tiles.cuh"
#include "tile/host/launch.hpp"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

constexpr int kConsumers = 2;  // warpgroups, one above the other
constexpr int kRows = 64;      // of each: those of one wgmma
constexpr int kTileM = kConsumers * kRows;
constexpr int kTileN = 256;
constexpr int kCluster = 2;     // blocks, one above the other
constexpr int kStages = 4;      // of 48 KiB: as many as the 227 KiB of a block hold
constexpr unsigned kGroup = 8;  // pairs of tiles below one another that are taken together
constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
// 65,536 registers are 168 for each of 384 threads, in steps of 8. The producer keeps 40 of them;
// 128 of a consumer's are sums.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * 168);

/// The tile of the block of this rank in a pair.
__device__ Corner corner_of_pair(unsigned pair, unsigned rank, std::int64_t m, std::int64_t n) {
  Corner corner = corner_in_groups<kCluster * kTileM, kTileN, kGroup>(pair, m, n);
  corner.row += rank * kTileM;  // may lie below C: such a tile is zeros, and is not stored
  return corner;
}

// snippet-begin kernel
template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_cluster_ring(const __grid_constant__ tile::TensorMap a_map,  // op(A) [m][k]
                        const __grid_constant__ tile::TensorMap b_map,  // op(B) [k][n]
                        Output<T> c,                                    // [m][n]
                        std::int64_t m, std::int64_t n, int k, unsigned pairs) {
  using namespace tile::ptx;
  using ATile = OperandBoxes<T, kAAlongK, kTileM>;
  using BTile = OperandBoxes<T, kBAlongK, kTileN, kCluster>;
  constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // [stage]{A's tile, B's tile}
  __shared__ Mbarrier full[kStages], empty[kStages];
  const SharedAddress stages(smem);
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&full[stage], 1);  // the producer, and the bytes it expects
      mbarrier_init(&empty[stage], kCluster * kConsumers);  // a thread of each
    }
  }
  cluster_sync();  // all are initialised before a thread of either block uses them
  const unsigned rank = cluster_rank();
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    // One thread copies; the others go on to the cluster's last barrier.
    for (unsigned pair = blockIdx.x / kCluster; threadIdx.x == 0 && pair < pairs;
         pair += gridDim.x / kCluster) {
      const Corner corner = corner_of_pair(pair, rank, m, n);
      for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
        // snippet-begin multicast
        const SharedAddress a_smem = stages + place.stage * kStageBytes;
        mbarrier_wait(&empty[place.stage], place.parity ^ 1);
        mbarrier_arrive_expect(&full[place.stage], kStageBytes);
        ATile::load(a_smem, a_map, static_cast<int>(corner.row), k0, &full[place.stage]);
        // This block's half of the rows of B's tile, into both.
        BTile::load(a_smem + ATile::kBytes, b_map, static_cast<int>(corner.col), k0,
                    &full[place.stage], rank);
        // snippet-end multicast
      }
    }
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    const int first_row = (warpgroup - 1) * kRows;
    const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
    for (unsigned pair = blockIdx.x / kCluster; pair < pairs; pair += gridDim.x / kCluster) {
      const Corner corner = corner_of_pair(pair, rank, m, n);
      float sums[kTileN / 2];  // of C, as element_of_wgmma says
      // snippet-begin release
      // Releases the stage in both blocks: each has half of B from the other.
      const auto release = [&](int stage) {
        for (unsigned block = 0; block < kCluster; ++block) mbarrier_arrive(&empty[stage], block);
      };
      // snippet-end release
      int read = -1;  // the stage that is multiplied
      for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
        mbarrier_wait(&full[place.stage], place.parity);
        const SharedAddress a_smem = stages + place.stage * kStageBytes;
        const WgmmaDescriptor a = ATile::descriptor(a_smem, first_row);
        const WgmmaDescriptor b = BTile::descriptor(a_smem + ATile::kBytes, 0);
        // C += A B: four times 16 of k
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < kBlockK / kWgmmaK; ++part) {
          wgmma<T, kTileN, ATile::kMajor, BTile::kMajor>(sums, a + part * ATile::kPartBytes,
                                                         b + part * BTile::kPartBytes,
                                                         k0 != 0 || part != 0);
        }
        wgmma_commit();
        wgmma_wait<1>(sums);  // the stage before has been read
        if (is_leader && read >= 0) release(read);
        read = place.stage;
      }
      wgmma_wait<0>(sums);
      if (is_leader) release(read);

      store_sums(sums, c, corner.row + first_row, corner.col, m, n);
    }
  }
  __syncwarp();    // the next is for whole warps, and one thread of the first has copied
  cluster_sync();  // the other block still copies into this one's memory, and arrives there
}
// snippet-end kernel

}  // namespace

tile::Status cluster_ring(const Problem& p, const Buffers& buffers, void* stream) {
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value;
    using ATile = OperandBoxes<T, kAAlongK, kTileM>;
    using BTile = OperandBoxes<T, kBAlongK, kTileN, kCluster>;
    tile::TensorMap a_map, b_map;
    TILE_TRY(make_maps<ATile, BTile>(p, buffers, &a_map, &b_map));
    unsigned pairs = 0;
    int sms = 0;  // multiprocessors
    TILE_TRY(tile::count_multiprocessors(&sms));
    TILE_TRY(blocks_for_tiles(p, kCluster * kTileM, kTileN, &pairs));
    constexpr int kBytes = kStages * (ATile::kBytes + BTile::kBytes);
    const auto most = std::max(1u, static_cast<unsigned>(sms) / kCluster);
    return tile::launch_in_clusters(
        matmul_cluster_ring<T, kAAlongK, kBAlongK>, "matmul_cluster_ring",
        dim3(kCluster * blocks_without_idlers(pairs, most)), kThreads, kCluster, kBytes, stream,
        a_map, b_map, output_c<T>(p, buffers), p.m, p.n, p.k, pairs);
  };
  TILE_TRY(with_16_bits(p, launch));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace matmul
