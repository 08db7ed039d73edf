// Tiles of op(A) and op(B) in shared memory, as TMA writes them and wgmma reads them.
#pragma once

#include "matmul.cuh"
#include "tile/host/tensor_map.hpp"
#include "tile/ptx/tma.cuh"
#include "tile/ptx/warpgroup.cuh"
#include "tile/ptx/wgmma.cuh"

namespace matmul {

inline constexpr int kBlockK = 64;       // 128 bytes along k: a row of the swizzle's pattern
inline constexpr int kWgmmaK = 16;       // 32 bytes
inline constexpr int kBoxElements = 64;  // 128 bytes, along the axis whose elements are neighbours
static_assert(kBoxElements * 2 == 128);

// snippet-begin operand
/// A tile of kExtent of m or n by kBlockK of k, or twice as many of k in 8 bits. If neighbours in
/// memory lie along k (kAlongK), it is one box of kExtent rows; if along m or n, it is a box of
/// kBlockK rows for each 64 of these. wgmma reads 8 bits along k only. If kBlocks blocks of a
/// cluster share the tile, each copies its part of the rows of every box into all of them.
template <class T, bool kAlongK, int kExtent, int kBlocks = 1>
struct OperandBoxes {
  static_assert(sizeof(T) == 2 || (sizeof(T) == 1 && kAlongK));
  static_assert(kExtent % (kAlongK ? 8 : kBoxElements) == 0 && kExtent <= 256);
  static constexpr tile::ptx::Major kMajor = kAlongK ? tile::ptx::Major::k : tile::ptx::Major::mn;
  static constexpr int kRows = kAlongK ? kExtent : kBlockK;  // of a box
  static constexpr int kCopied = kRows / kBlocks;            // of these, by one copy
  static_assert(kCopied % 8 == 0, "a copy begins where the pattern of the swizzle does");
  static constexpr int kBoxBytes = kRows * kBoxElements * 2;
  static constexpr int kBytes = kExtent * kBlockK * 2;
  /// From one wgmma's part of k to the next: within the rows, or 16 rows further.
  static constexpr int kPartBytes = kAlongK ? kWgmmaK * 2 : kWgmmaK * kBoxElements * 2;

  /// Starts the copies of the tile that begins at `first` of m or n, and at k: all of it into this
  /// block, or the part of the block of this rank into all kBlocks. Elements outside of the matrix
  /// are zeros.
  static __device__ void load(tile::ptx::SharedAddress to, const tile::TensorMap& map, int first,
                              int k, tile::ptx::Mbarrier* full, unsigned rank = 0) {
    const int row = static_cast<int>(rank) * kCopied;
#pragma unroll
    for (int box = 0; box < kBytes / kBoxBytes; ++box) {
      const tile::ptx::SharedAddress part = to + (box * kBoxBytes + row * kBoxElements * 2);
      const tile::ptx::BoxAt at = kAlongK ? tile::ptx::BoxAt{k, first + row}
                                          : tile::ptx::BoxAt{first + box * kBoxElements, k + row};
      if constexpr (kBlocks == 1) {
        tile::ptx::tma_load(part, map, at, full);
      } else {
        tile::ptx::tma_load_multicast(part, map, at, full, (1 << kBlocks) - 1);
      }
    }
  }

  /// Describes the tile to wgmma, from `first` of its m or n on, a multiple of 64.
  static __device__ tile::ptx::WgmmaDescriptor descriptor(tile::ptx::SharedAddress at, int first) {
    if constexpr (kAlongK) {
      return tile::ptx::WgmmaDescriptor::along_k(at + first * kBoxElements * 2);
    } else {
      return tile::ptx::WgmmaDescriptor::along_mn(at + first / kBoxElements * kBoxBytes, kBoxBytes);
    }
  }
};
// snippet-end operand

// snippet-begin tile
/// The tile of C of a block that has a producer and kOfConsumers consumers, one above the other,
/// and the registers of their threads.
template <int kOfConsumers, int kColumns>
struct TileOf {
  static constexpr int kConsumers = kOfConsumers;  // warpgroups
  static constexpr int kRows = 64;                 // of each: those of one wgmma
  static constexpr int kM = kConsumers * kRows, kN = kColumns;
  static constexpr int kThreads = (1 + kConsumers) * tile::kWarpgroup;
  // 65,536 registers are 168 for each of 384 threads, or 128 of 512, in steps of 8. The producer
  // keeps 40 of them. A consumer has 128 sums of 64 x 256 elements, or 96 of 64 x 192.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = kConsumers == 2 ? 232 : 152;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (1 + kConsumers) * (65536 / kThreads / 8 * 8));
};
// snippet-end tile

// snippet-begin products
/// Starts a warpgroup's products of one stage: sums += A B, or sums = A B without `add`. They are a
/// wgmma for each 16 of k, or 32 of 8 bits, and a group for wgmma_wait().
template <class T, class ATile, class BTile, int kSums>
__device__ __forceinline__ void start_products(float (&sums)[kSums], tile::ptx::WgmmaDescriptor a,
                                               tile::ptx::WgmmaDescriptor b, bool add) {
  tile::ptx::wgmma_fence();
#pragma unroll
  for (int part = 0; part < kBlockK / kWgmmaK; ++part) {
    tile::ptx::wgmma<T, 2 * kSums, ATile::kMajor, BTile::kMajor>(
        sums, a + part * ATile::kPartBytes, b + part * BTile::kPartBytes, add || part != 0);
  }
  tile::ptx::wgmma_commit();
}
// snippet-end products

/// Where the tile of the block of this rank begins, if the blocks of a cluster have tiles one above
/// the other. Clusters are taken in columns of kHeight. A tile may lie below C: then it is zeros,
/// and is not stored.
template <class Tile, int kCluster, unsigned kHeight>
__device__ Corner corner_in_cluster(unsigned cluster, unsigned rank, std::int64_t m,
                                    std::int64_t n) {
  Corner corner = corner_in_groups<kCluster * Tile::kM, Tile::kN, kHeight>(cluster, m, n);
  corner.row += rank * Tile::kM;
  return corner;
}

// snippet-begin release
/// Releases a stage in all blocks of a cluster: each has a part of the tile of B from the others.
template <int kCluster>
__device__ __forceinline__ void release_in_cluster(tile::ptx::Mbarrier* empty) {
  for (unsigned block = 0; block < kCluster; ++block) tile::ptx::mbarrier_arrive(empty, block);
}
// snippet-end release

}  // namespace matmul
