// A warpgroup's part of C, as wgmma leaves it in registers: finished, and stored by way of shared
// memory.
#pragma once

#include "hopper_tiles.cuh"
#include "tile/ptx/async_proxy.cuh"
#include "tile/ptx/convert.cuh"
#include "tile/ptx/fragments.hpp"
#include "tile/ptx/stmatrix.cuh"
#include "tile/ptx/swizzle.hpp"

namespace matmul {

inline constexpr int kTogether = 8;  // elements in 16 bytes

// snippet-begin fastest
/// Calls `launch` with the tile whose rounds take the least time, a TileOf.
template <std::size_t kShape = 0, class Launch>
tile::Status with_fastest_tile(const Problem& p, unsigned most, Launch launch) {
  if constexpr (kShape + 1 < std::size(kTileShapes)) {
    if (fastest_tile(p, most) != kShape) return with_fastest_tile<kShape + 1>(p, most, launch);
  }
  return launch(TileOf<kTileShapes[kShape].rows / 64, kTileShapes[kShape].cols>{});
}
// snippet-end fastest

/// A warp's part of C in shared memory, 64 columns at a time, swizzled.
struct OutputBox {
  static constexpr int kRows = 16;  // of the 64 of a wgmma, those whose sums a warp has
  static constexpr int kBytes = kRows * kBoxElements * 2;

  /// TMA stores 16 bytes at a time, and at the end of a row an H200 writes beyond the last column.
  /// So the map ends with the last whole 16 bytes.
  static tile::Status make_map(const Problem& p, const Buffers& buffers, tile::TensorMap* map) {
    const tile::BoxedTensor boxed{
        .type = type_of_c(p),
        .data = buffers.c,
        .rank = 2,
        // The map is unused below that width.
        .extents = {std::max<std::int64_t>(kTogether, p.n - p.n % kTogether), p.m},
        .strides = {p.ldc},
        .box = {kBoxElements, kRows},
        .swizzle_bytes = 128};
    return tile::make_tensor_map("c", boxed, map);
  }

  /// Stores a lane's pairs of neighbouring columns in a box, in the order of element_of_wgmma.
  static __device__ __forceinline__ void put(tile::ptx::SharedAddress box,
                                             const std::uint32_t* pairs) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int x = 0; x < kBoxElements; x += 16) {  // the four tiles of an stmatrix
      std::uint32_t tiles[4];
#pragma unroll
      // Of each 8 columns first the tile of rows 0 to 7, then that of rows 8 to 15.
      for (int t = 0; t < 4; ++t) tiles[t] = pairs[x / 4 + t];
      const int y = lane % 16, chunk = x / 8 + lane / 16;  // of the row whose address it passes
      tile::ptx::stmatrix_x4(box + (y * 128 + tile::swizzle_128B(y, chunk) * 16), tiles);
    }
  }
};

/// Applies alpha, beta, bias and activation to a consumer's part of C, which begins at (row, col),
/// each in a loop of its own, as in step 13. Elements outside C get arbitrary values.
template <class T, int kSums>
__device__ void finish(float (&sums)[kSums], const Output<T>& c, const T* bias,
                       Activation activation, std::int64_t row, std::int64_t col, std::int64_t m,
                       std::int64_t n) {
  const FirstSum first(row, col, m, n);
  scale_sums(sums, c, first);
  if (bias) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int x = tile::ptx::element_of_wgmma(0, i).col;
      if (x < first.cols_left) sums[i] += static_cast<float>(bias[first.col + x]);
    }
  }
  if (activation == Activation::relu) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = activate(Activation::relu, sums[i]);
  } else if (activation == Activation::gelu) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = activate(Activation::gelu, sums[i]);
  }
}

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

/// Stores a warp's part of C, 16 rows from (row, col) on, whose rows may begin anywhere. The sums
/// go through a box in shared memory, so that 32 lanes store 32 neighbouring words, 128 bytes.
/// Straight from registers an instruction would store 8 or 16 bytes of each of eight rows, and L2
/// takes as long for a part of a sector as for all of it.
template <class T, int kSums>
__device__ void store_words(const float (&sums)[kSums], const Output<T>& c,
                            unsigned char* box_smem,  // OutputBox::kBytes of this warp
                            std::int64_t row, std::int64_t col, std::int64_t m, std::int64_t n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto rows = static_cast<int>(min(m - row, std::int64_t{OutputBox::kRows}));
#pragma unroll
  for (int part = 0; part < 2 * kSums / kBoxElements; ++part, col += kBoxElements) {
    std::uint32_t pairs[kBoxElements / 4];
#pragma unroll
    for (int i = 0; i < kBoxElements / 4; ++i) {
      const float* sum = sums + part * kBoxElements / 2 + 2 * i;
      pairs[i] = tile::ptx::pack<T>(sum[0], sum[1]);
    }
    OutputBox::put(tile::ptx::SharedAddress(box_smem), pairs);
    __syncwarp();  // all lanes have stored theirs
    const auto cols = static_cast<int>(min(n - col, std::int64_t{kBoxElements}));
#pragma unroll 4
    for (int y = 0; y < rows; ++y) {
      auto* const to = reinterpret_cast<std::uint16_t*>(c.data + (row + y) * c.ld + col);
      const int place = y * 128 + tile::swizzle_128B(y, lane / 4) * 16 + lane % 4 * 4;
      auto word = *reinterpret_cast<const std::uint32_t*>(box_smem + place);  // columns x and x + 1
      const std::uint32_t next = __shfl_down_sync(~0u, word, 1);
      int x = 2 * lane;
      if (reinterpret_cast<std::uintptr_t>(to) % 4 != 0) {  // words begin at odd columns
        if (x == 0 && cols > 0) to[0] = static_cast<std::uint16_t>(word);
        word = word >> 16 | next << 16, ++x;
      }
      if (x + 1 < cols) {
        *reinterpret_cast<std::uint32_t*>(to + x) = word;
      } else if (x < cols) {
        to[x] = static_cast<std::uint16_t>(word);
      }
    }
    __syncwarp();  // all lanes have read them
  }
}

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
