// Tiles of op(A) and op(B) in shared memory, as TMA writes them and wgmma reads them.
#pragma once

#include <algorithm>

#include "matmul.cuh"
#include "tile/host/grid.hpp"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/fragments.hpp"
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

  /// The map of a matrix with `extent` of m or n and k of k, `ld` elements from row to row.
  static tile::Status make_map(const char* name, tile::DType type, const void* data,
                               std::int64_t extent, std::int64_t k, std::int64_t ld,
                               tile::TensorMap* map) {
    const tile::BoxedTensor boxed{.type = type,
                                  .data = data,
                                  .rank = 2,
                                  .extents = {kAlongK ? k : extent, kAlongK ? extent : k},
                                  .strides = {ld},
                                  .box = {kBoxElements * 2 / int{sizeof(T)}, kCopied},
                                  .swizzle_bytes = 128};
    return tile::make_tensor_map(name, boxed, map);
  }
};
// snippet-end operand

/// The maps of op(A) and op(B) for tiles of these kinds.
template <class ATile, class BTile>
tile::Status make_maps(const Problem& p, const Buffers& buffers, tile::TensorMap* a_map,
                       tile::TensorMap* b_map) {
  TILE_TRY(ATile::make_map("a", p.type, buffers.a, p.m, p.k, p.lda, a_map));
  return BTile::make_map("b", p.type, buffers.b, p.n, p.k, p.ldb, b_map);
}

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

// snippet-begin pair
/// Where the first of a thread's sums lies in C, if its warpgroup's part begins at (part_row,
/// part_col), and how much of C there is from there on. Its i-th sum lies element_of_wgmma(0, i)
/// from there.
struct FirstSum {
  std::int64_t row, col, rows_left, cols_left;

  __device__ FirstSum(std::int64_t part_row, std::int64_t part_col, std::int64_t m,
                      std::int64_t n) {
    const auto at =
        tile::ptx::element_of_wgmma(static_cast<int>(threadIdx.x) % tile::kWarpgroup, 0);
    row = part_row + at.row, col = part_col + at.col;
    rows_left = m - row, cols_left = n - col;
  }
};

/// Applies alpha and beta to a warpgroup's sums. Those outside of C may stay as they are.
template <class T, int kSums>
__device__ void scale_sums(float (&sums)[kSums], const Output<T>& c, const FirstSum& first) {
  if (c.beta != 0) {
    const T* old = c.data + first.row * c.ld + first.col;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const tile::ptx::Element at = tile::ptx::element_of_wgmma(0, i);
      if (at.row >= first.rows_left || at.col >= first.cols_left) continue;
      sums[i] = c.scaled(sums[i], old + at.row * c.ld + at.col);
    }
  } else if (c.alpha != 1) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] *= c.alpha;
  }
}

/// Stores a warpgroup's sums in C from (row, col) on. A thread has pairs of neighbouring columns,
/// and stores a pair with one instruction if a word begins at every pair.
template <class T, int kSums>
__device__ void store_sums(float (&sums)[kSums], const Output<T>& c, std::int64_t row,
                           std::int64_t col, std::int64_t m, std::int64_t n) {
  const FirstSum first(row, col, m, n);
  scale_sums(sums, c, first);
  const bool words = reinterpret_cast<std::uintptr_t>(c.data) % 4 == 0 && c.ld % 2 == 0;
  T* corner = c.data + first.row * c.ld + first.col;
#pragma unroll
  for (int i = 0; i < kSums; i += 2) {
    const tile::ptx::Element at = tile::ptx::element_of_wgmma(0, i);
    if (at.row >= first.rows_left) continue;
    T* pair = corner + at.row * c.ld + at.col;
    if (words && at.col + 1 < first.cols_left) {
      *reinterpret_cast<std::uint32_t*>(pair) = tile::ptx::pack<T>(sums[i], sums[i + 1]);
    } else {
      if (at.col < first.cols_left) pair[0] = static_cast<T>(sums[i]);
      if (at.col + 1 < first.cols_left) pair[1] = static_cast<T>(sums[i + 1]);
    }
  }
}
// snippet-end pair

// snippet-begin idlers
/// The smallest number of blocks that needs no more rounds for `tiles` tiles than `most` blocks do:
/// another block would idle in the last round, and take power from the others until then.
inline unsigned blocks_without_idlers(unsigned tiles, unsigned most) {
  const unsigned rounds = (tiles + most - 1) / most;
  return (tiles + rounds - 1) / rounds;
}
// snippet-end idlers

/// How many clusters of so many blocks run at the same time, with one block on a multiprocessor.
inline tile::Status count_clusters(int blocks, unsigned* clusters) {
  int sms = 0;  // multiprocessors
  TILE_TRY(tile::count_multiprocessors(&sms));
  *clusters = static_cast<unsigned>(std::max(1, sms / blocks));
  return {};
}

}  // namespace matmul
