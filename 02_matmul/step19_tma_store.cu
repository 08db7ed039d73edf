// Step 19: C is stored by TMA.
// Idea: rounded, a tile of C takes half of the registers of its sums. Consumers keep it there,
//       begin with the next one, and store it while the tensor cores multiply.
// Change: sums are scaled, activated and rounded in registers. In each of the next tile's first
//         turns 64 columns go to shared memory by stmatrix, and TMA stores them. Where tiles of
//         192 x 192, of three consumers, need fewer rounds, they are taken.
// Limit: the tensor cores, and the power that they may take.
#include "hopper_output.cuh"
#include "hopper_tiles.cuh"
#include "tile/host/launch.hpp"
#include "tile/ptx/cluster.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ring.cuh"

namespace matmul {
namespace {

constexpr int kRows = 64;       // of a consumer: those of one wgmma
constexpr int kCluster = 2;     // blocks, one above the other
constexpr unsigned kGroup = 8;  // pairs of tiles below one another that are taken together
constexpr int kStages = 4;      // of 48 KiB: 192 of the 227 KiB of a block

/// The tile of a block: 128 x 256 by two consumers, one above the other, or 192 x 192 by three.
template <int kOfConsumers, int kColumns>
struct TileOf {
  static constexpr int kConsumers = kOfConsumers;
  static constexpr int kM = kConsumers * kRows, kN = kColumns;
  static constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
  // 65,536 registers are 168 for each of 384 threads, or 128 of 512, in steps of 8. 128 of a
  // consumer's are sums, or 96.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = kConsumers == 2 ? 232 : 152;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (1 + kConsumers) * (65536 / kThreads / 8 * 8));
  static constexpr int kBoxes = kConsumers == 2 ? 2 : 1;  // of each warp: 32 KiB in all, or 24
  // Beside a consumer's sums there are registers for a rounded tile: 64 of 104, but not 48 of 56.
  static constexpr bool kMeanwhile = kConsumers == 2;

  /// The tile of the block of this rank in a pair.
  static __device__ Corner corner_of_pair(unsigned pair, unsigned rank, std::int64_t m,
                                          std::int64_t n) {
    Corner corner = corner_in_groups<kCluster * kM, kN, kGroup>(pair, m, n);
    corner.row += rank * kM;  // may lie below C: such a tile is zeros, and is not stored
    return corner;
  }
};
using Wide = TileOf<2, 256>;
using Square = TileOf<3, 192>;

// snippet-begin kernel
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
  constexpr int kConsumers = Tile::kConsumers, kTileN = Tile::kN, kBoxes = Tile::kBoxes;
  using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
  using BTile = OperandBoxes<T, kBAlongK, kTileN, kCluster>;
  constexpr int kStageBytes = ATile::kBytes + BTile::kBytes;
  // 1,024 bytes: where the pattern of the swizzle begins.
  extern __shared__ __align__(
      1024) unsigned char smem[];  // [stage]{A's tile, B's tile}, [warp][kBoxes]{part of C}
  __shared__ Mbarrier full[kStages], empty[kStages];
  const SharedAddress stages(smem);
  const int warpgroup = tile::warpgroup_in_block();
  if (threadIdx.x == 0) {
    prefetch_tensor_map(a_map), prefetch_tensor_map(b_map);  // the first copies wait for them
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&full[stage], 1);  // the producer, and the bytes it expects
      mbarrier_init(&empty[stage], kCluster * kConsumers);  // a thread of each
    }
  }
  cluster_sync();  // all are initialised before a thread of either block uses them
  const unsigned rank = cluster_rank();
  tile::RingPlace<kStages> place;

  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    // One thread copies; the others go on to the cluster's last barrier.
    for (unsigned pair = blockIdx.x / kCluster; threadIdx.x == 0 && pair < pairs;
         pair += gridDim.x / kCluster) {
      const Corner corner = Tile::corner_of_pair(pair, rank, m, n);
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
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    const int first_row = (warpgroup - 1) * kRows;
    const int warp = tile::warp_in_block() - 4;  // of the consumers; four have 64 rows
    StoredTile<T, kTileN, kBoxes, Tile::kMeanwhile> stored(
        c_map, stages + (kStages * kStageBytes + warp * kBoxes * OutputBox::kBytes));
    const bool is_leader = threadIdx.x % tile::kWarpgroup == 0;  // for its warpgroup
    for (unsigned pair = blockIdx.x / kCluster; pair < pairs; pair += gridDim.x / kCluster) {
      const Corner corner = Tile::corner_of_pair(pair, rank, m, n);
      float sums[kTileN / 2];  // of C, as element_of_wgmma says
      // Releases the stage in both blocks: each has half of B from the other.
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
        stored.store_next();  // of the tile before, meanwhile
        wgmma_wait<1>(sums);  // the stage before has been read
        if (is_leader && read >= 0) release(read);
        read = place.stage;
      }
      stored.store_all();  // if there were fewer turns than parts
      wgmma_wait<0>(sums);
      if (is_leader) release(read);

      const std::int64_t row = corner.row + first_row;
      finish(sums, c, bias, activation, row, corner.col, m, n);
      store_rest(sums, c, row, corner.col, m, n);
      stored.take(sums, row + warp % 4 * OutputBox::kRows, corner.col);
    }
    stored.store_all();
  }
  bulk_wait_read<0>();  // shared memory stays until TMA has read it
  __syncwarp();         // the next is for whole warps, and one thread of the first has copied
  cluster_sync();       // the other block still copies into this one's memory, and arrives there
}
// snippet-end kernel

// snippet-begin rounds
/// How long a product takes with such tiles, in elements of C: the rounds that `most` pairs of
/// blocks need, times a tile.
template <class Tile>
std::int64_t cost(const Problem& p, unsigned most) {
  const std::int64_t pairs = ((p.m - 1) / (kCluster * Tile::kM) + 1) * ((p.n - 1) / Tile::kN + 1);
  return ((pairs - 1) / most + 1) * Tile::kM * Tile::kN;
}
// snippet-end rounds

template <class Tile>
tile::Status launch_tiles(const Problem& p, const Buffers& buffers, unsigned most, void* stream) {
  const auto launch = [&](auto element, auto a_along_k, auto b_along_k) {
    using T = decltype(element);
    constexpr bool kAAlongK = a_along_k.value, kBAlongK = b_along_k.value;
    using ATile = OperandBoxes<T, kAAlongK, Tile::kM>;
    using BTile = OperandBoxes<T, kBAlongK, Tile::kN, kCluster>;
    tile::TensorMap a_map, b_map, c_map;
    TILE_TRY(make_maps<ATile, BTile>(p, buffers, &a_map, &b_map));
    TILE_TRY(OutputBox::make_map(p, buffers, &c_map));
    unsigned pairs = 0;
    TILE_TRY(blocks_for_tiles(p, kCluster * Tile::kM, Tile::kN, &pairs));
    constexpr int kBytes = kStages * (ATile::kBytes + BTile::kBytes) +
                           Tile::kConsumers * 4 * Tile::kBoxes * OutputBox::kBytes;
    return tile::launch_in_clusters(
        matmul_tma_store<T, kAAlongK, kBAlongK, Tile>, "matmul_tma_store",
        dim3(kCluster * blocks_without_idlers(pairs, most)), Tile::kThreads, kCluster, kBytes,
        stream, a_map, b_map, c_map, output_c<T>(p, buffers), static_cast<const T*>(buffers.bias),
        p.activation, p.m, p.n, p.k, pairs);
  };
  return with_16_bits(p, launch);
}

}  // namespace

tile::Status tma_store(const Problem& p, const Buffers& buffers, void* stream) {
  int sms = 0;  // multiprocessors
  TILE_TRY(tile::count_multiprocessors(&sms));
  const auto most = std::max(1u, static_cast<unsigned>(sms) / kCluster);
  return cost<Square>(p, most) < cost<Wide>(p, most)
             ? launch_tiles<Square>(p, buffers, most, stream)
             : launch_tiles<Wide>(p, buffers, most, stream);
}

}  // namespace matmul
