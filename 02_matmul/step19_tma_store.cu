// Step 19: C is stored by TMA.
// Idea: consumers leave their tile of C in shared memory and begin with the next one; TMA stores it
//       meanwhile.
// Change: sums are scaled, activated and rounded in registers, go to shared memory by stmatrix, and
//         from there in boxes. The ring has three stages, as C's tile takes the room of one and
//         more. Where tiles of 192 columns leave fewer blocks idle in the last round, they are
//         taken.
// Limit: the tensor cores, and the power that they may take.
#include "hopper_output.cuh"
#include "hopper_tiles.cuh"
#include "tile/host/cluster_launch.hpp"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

constexpr int kConsumers = 2;  // warpgroups, one above the other
constexpr int kRows = 64;      // of each: those of one wgmma
constexpr int kTileM = kConsumers * kRows;
constexpr int kCluster = 2;     // blocks, one above the other
constexpr unsigned kGroup = 8;  // pairs of tiles below one another that are taken together
constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
// 65,536 registers are 168 for each of 384 threads, in steps of 8. The producer keeps 40 of them;
// 128 of a consumer's are sums.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * 168);

/// Tiles have 256 columns or 192. Three stages of 48 KiB lie beside 64 KiB for C, or four of 40 KiB
/// beside 48.
template <int kTileN>
constexpr int kStages = kTileN == 256 ? 3 : 4;

/// The tile of the block of this rank in a pair.
template <int kTileN>
__device__ Corner corner_of_pair(unsigned pair, unsigned rank, std::int64_t m, std::int64_t n) {
  Corner corner = corner_in_groups<kCluster * kTileM, kTileN, kGroup>(pair, m, n);
  corner.row += rank * kTileM;  // may lie below C: such a tile is zeros, and is not stored
  return corner;
}

// snippet-begin kernel
template <class T, bool kAAlongK, bool kBAlongK, int kTileN>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_tma_store(const __grid_constant__ tile::TensorMap a_map,  // op(A) [m][k]
                     const __grid_constant__ tile::TensorMap b_map,  // op(B) [k][n]
                     const __grid_constant__ tile::TensorMap c_map,  // C [m][n]
                     Output<T> c,                                    // the same
                     const T* bias,                                  // [n], or null
                     Activation activation,                          // of the sum and the bias
                     std::int64_t m, std::int64_t n, int k, unsigned pairs) {
  using namespace tile::ptx;
  using ATile = OperandBoxes<T, kAAlongK, kTileM>;
  using BTile = OperandBoxes<T, kBAlongK, kTileN, kCluster>;
  constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(1024) unsigned char smem[];  // [stage]{A's tile, B's tile}, C's tile
  __shared__ Mbarrier full[kStages<kTileN>], empty[kStages<kTileN>];
  const SharedAddress stages(smem);
  const int warpgroup = static_cast<int>(threadIdx.x) / tile::kWarpgroup;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages<kTileN>; ++stage) {
      mbarrier_init(&full[stage], 1);  // the producer, and the bytes it expects
      mbarrier_init(&empty[stage], kCluster * kConsumers);  // a thread of each
    }
  }
  cluster_sync();  // both blocks see all of them before they wait or arrive there
  const unsigned rank = cluster_rank();
  tile::RingPlace<kStages<kTileN>> place;

  if (warpgroup == 0) {
    setmaxnreg_dec<kProducerRegisters>();
    // One thread copies; the others go to the cluster's last barrier.
    for (unsigned pair = blockIdx.x / kCluster; threadIdx.x == 0 && pair < pairs;
         pair += gridDim.x / kCluster) {
      const Corner corner = corner_of_pair<kTileN>(pair, rank, m, n);
      for (int k0 = 0; k0 < k; k0 += kBlockK, place.advance()) {
        const SharedAddress a_smem = stages + place.stage * kStageBytes;
        mbarrier_wait(&empty[place.stage], place.parity ^ 1);
        mbarrier_arrive_expect(&full[place.stage], kStageBytes);
        ATile::load(a_smem, a_map, static_cast<int>(corner.row), k0, &full[place.stage]);
        // This block's half of the rows of B's tile, into both.
        BTile::load(a_smem + ATile::kBytes, b_map, static_cast<int>(corner.col), k0,
                    &full[place.stage], rank);
      }
    }
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    const int first_row = (warpgroup - 1) * kRows;
    const SharedAddress staging =
        stages + (kStages<kTileN> * kStageBytes + (warpgroup - 1) * OutputBoxes<kTileN>::kBytes);
    const bool speaks = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
    for (unsigned pair = blockIdx.x / kCluster; pair < pairs; pair += gridDim.x / kCluster) {
      const Corner corner = corner_of_pair<kTileN>(pair, rank, m, n);
      float sums[kTileN / 2];  // of C, as element_of_wgmma says
      // The stage of both blocks: each has half of B from the other.
      const auto release = [&](int stage) {
        for (unsigned block = 0; block < kCluster; ++block) mbarrier_arrive(&empty[stage], block);
      };
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
        if (speaks && read >= 0) release(read);
        read = place.stage;
      }
      wgmma_wait<0>(sums);
      if (speaks) release(read);

      // snippet-begin store
      const std::int64_t row = corner.row + first_row;
      finish(sums, c, bias, activation, row, corner.col, m, n);
      // The thread that speaks has started the store of the tile before, and knows when TMA has
      // read it. The others learn it here.
      if (speaks) bulk_wait_read<0>();
      barrier_sync(warpgroup, tile::kWarpgroup);
      leave_in_shared_memory<T>(sums, staging);
      fence_async_proxy();                        // TMA sees what this thread has stored
      barrier_sync(warpgroup, tile::kWarpgroup);  // and all have
      if (speaks) {
        for (int x = 0; x < kTileN; x += kBoxElements) {
          tma_store(c_map, BoxAt{static_cast<int>(corner.col) + x, static_cast<int>(row)},
                    staging + x / kBoxElements * OutputBoxes<kTileN>::kBoxBytes);
        }
        bulk_commit();
      }
      store_rest(sums, c, row, corner.col, m, n);
      // snippet-end store
    }
  }
  bulk_wait_read<0>();  // shared memory stays until TMA has read it
  __syncwarp();         // the next is for whole warps, and one thread of the first has copied
  cluster_sync();       // the other block still copies into this one's memory, and arrives there
}
// snippet-end kernel

// snippet-begin rounds
/// How long a product takes with tiles of so many columns, in columns: the rounds that `most` pairs
/// of blocks need, times the width of a tile. Narrow ones load more for each product: 5 % are
/// counted.
double cost(const Problem& p, int columns, unsigned most) {
  const std::int64_t pairs = ((p.m - 1) / (kCluster * kTileM) + 1) * ((p.n - 1) / columns + 1);
  const std::int64_t rounds = (pairs - 1) / most + 1;
  return static_cast<double>(rounds * columns) * (columns == 256 ? 1 : 1.05);
}
// snippet-end rounds

template <int kTileN>
tile::Status launch_tiles(const Problem& p, const Buffers& buffers, unsigned most, void* stream) {
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value;
    using ATile = OperandBoxes<T, kAAlongK, kTileM>;
    using BTile = OperandBoxes<T, kBAlongK, kTileN, kCluster>;
    tile::TensorMap a_map, b_map, c_map;
    if (tile::Status s = make_maps<ATile, BTile>(p, buffers, &a_map, &b_map); !s.ok()) return s;
    if (tile::Status s = OutputBoxes<kTileN>::make_map(p, buffers, &c_map); !s.ok()) return s;
    unsigned pairs = 0;
    if (tile::Status s = blocks_for_tiles(p, kCluster * kTileM, kTileN, &pairs); !s.ok()) return s;
    constexpr int kBytes = kStages<kTileN> * (ATile::kBytes + BTile::kBytes) +
                           kConsumers * OutputBoxes<kTileN>::kBytes;
    return tile::launch_in_clusters(
        matmul_tma_store<T, kAAlongK, kBAlongK, kTileN>, "matmul_tma_store",
        dim3(kCluster * blocks_without_idlers(pairs, most)), kThreads, kCluster, kBytes, stream,
        a_map, b_map, c_map, output_c<T>(p, buffers), static_cast<const T*>(buffers.bias),
        p.activation, p.m, p.n, static_cast<int>(p.k), pairs);
  };
  return with_16_bits(p, launch);
}

}  // namespace

tile::Status tma_store(const Problem& p, const Buffers& buffers, void* stream) {
  int sms = 0;  // multiprocessors
  if (tile::Status s = tile::count_multiprocessors(&sms); !s.ok()) return s;
  const auto most = std::max(1u, static_cast<unsigned>(sms) / kCluster);
  return cost(p, 192, most) < cost(p, 256, most) ? launch_tiles<192>(p, buffers, most, stream)
                                                 : launch_tiles<256>(p, buffers, most, stream);
}

}  // namespace matmul
