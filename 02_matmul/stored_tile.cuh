// C, stored by TMA, a box of shared memory at a time, while the next tile is multiplied.
#pragma once

#include "hopper_output.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/tma.cuh"

namespace matmul {

// snippet-begin store
/// A warp's 16 rows of a tile of C, rounded, on their way to memory: TMA stores 64 columns at a
/// time, from one of the warp's kBoxes boxes. Rounded, they take half as many registers as their
/// sums. With kMeanwhile the warp keeps them in registers, and stores them while the next tile is
/// multiplied.
template <class T, class Tile>
class StoredTile {
 public:
  static constexpr int kBoxes = Tile::kConsumers == 2 ? 2 : 1;
  /// Of all consumers' boxes, four warps each: 24 KiB for three consumers, 32 for two, 8 for one.
  static constexpr int kBytes = Tile::kConsumers * 4 * kBoxes * OutputBox::kBytes;

  /// `boxes` are those of the block, and `warp` is this warp's number among the consumers' warps.
  __device__ StoredTile(const tile::TensorMap& map, tile::ptx::SharedAddress boxes, int warp)
      : map_(map), boxes_(boxes + warp * kBoxes * OutputBox::kBytes) {}

  /// Takes the sums of a tile, in which this warp's part begins at (row, col). All of the previous
  /// tile must have been stored.
  __device__ __forceinline__ void take(const float (&sums)[Tile::kN / 2], std::int64_t row,
                                       std::int64_t col) {
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      pairs_[i] = tile::ptx::pack<T>(sums[2 * i], sums[2 * i + 1]);
    }
    row_ = static_cast<int>(row), col_ = static_cast<int>(col), next_ = 0;
    if (!kMeanwhile) store_left();
  }

  /// Stores the next 64 columns, if any are left: to be called while the tensor cores multiply.
  __device__ __forceinline__ void store_next() {
    if constexpr (kMeanwhile) {
      if (next_ == kParts) return;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {  // registers cannot be indexed: all are tested
        if (part == next_) store(part);
      }
      ++next_;
    }
  }

  /// Stores what is left. At the end the thread that stores must wait for TMA's reads.
  __device__ __forceinline__ void store_all() {
    if (kMeanwhile) store_left();  // otherwise take() has stored all, so pairs_ takes no registers
  }

 private:
  static constexpr int kColumns = Tile::kN, kParts = kColumns / kBoxElements;
  // Beside a consumer's sums there are registers for a rounded tile: 64 of 104, but not 48 of 56.
  static constexpr bool kMeanwhile = Tile::kConsumers == 2;

  __device__ __forceinline__ void store_left() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part >= next_) store(part);
    }
    next_ = kParts;
  }

  __device__ __forceinline__ void store(int part) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // In turn, also from one tile to the next: it may have three parts.
    const tile::ptx::SharedAddress box = boxes_ + box_ * OutputBox::kBytes;
    box_ = (box_ + 1) % kBoxes;
    // The lane that has started the stores knows when TMA has read the box; the others wait for it.
    if (lane == 0) tile::ptx::bulk_wait_read<kBoxes - 1>();
    __syncwarp();
    OutputBox::put(box, pairs_ + part * kBoxElements / 4);
    tile::ptx::fence_async_proxy();  // TMA sees what this lane has stored
    __syncwarp();                    // and what the others have
    if (lane == 0) {
      tile::ptx::tma_store(map_, tile::ptx::BoxAt{col_ + part * kBoxElements, row_}, box);
      tile::ptx::bulk_commit();
    }
  }

  const tile::TensorMap& map_;
  tile::ptx::SharedAddress boxes_;
  std::uint32_t pairs_[kColumns / 4];  // of neighbouring columns, in element_of_wgmma's order
  int row_ = 0, col_ = 0, box_ = 0;
  int next_ = kParts;  // the first part that is not stored yet; kParts if none is left
};
// snippet-end store

/// Stores the columns after the last whole 16 bytes of a row, which OutputBox leaves out: a part
/// of a group of eight columns. A thread has two of the group's columns in each of two rows.
template <class T, int kSums>
__device__ void store_rest(const float (&sums)[kSums], const Output<T>& c, std::int64_t row,
                           std::int64_t col, std::int64_t m, std::int64_t n) {
  const std::int64_t rest = n - n % kTogether;
  if (rest == n || rest < col || col + 2 * kSums <= rest) return;
  float group[4];
#pragma unroll
  for (int i = 0; i < kSums; i += 4) {  // registers cannot be indexed: all groups are tested
    if (col + 2 * i != rest) continue;
#pragma unroll
    for (int j = 0; j < 4; ++j) group[j] = sums[i + j];
  }
  const FirstSum first(row, rest, m, n);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const tile::ptx::Element at = tile::ptx::element_of_wgmma(0, j);
    if (at.row >= first.rows_left || at.col >= first.cols_left) continue;
    c.data[(first.row + at.row) * c.ld + first.col + at.col] = static_cast<T>(group[j]);
  }
}

}  // namespace matmul
