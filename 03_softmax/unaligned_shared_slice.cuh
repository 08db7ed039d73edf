// Rows in shared memory that begin anywhere.
#pragma once

#include "tile/row_edges.cuh"
#include "tile/shared_slice.cuh"

namespace softmax {

/// A thread's slice of a row that begins anywhere: a tile::SharedSlice of chunks that are aligned
/// in memory. The row fills its first and last chunk only in part: they come element by element.
template <class T, int kChunkCount>
class UnalignedSharedSlice {
 public:
  static constexpr int kChunkWidth = 16 / sizeof(T), kChunks = kChunkCount;
  static constexpr int kUnroll = tile::SharedSlice<T, kChunks>::kUnroll;
  using Chunk = tile::Chunk<T, kChunkWidth>;

  /// Starts to copy the chunks of the first `cols` columns; `fill` where there is no column. Chunks
  /// begin at the columns whose addresses are multiples of 16 bytes. `row_smem` is as in a
  /// tile::SharedSlice.
  __device__ __forceinline__ UnalignedSharedSlice(const T* row, int cols,
                                                  tile::ChunkColumns<kChunkWidth> columns,
                                                  float fill, tile::ptx::SharedAddress row_smem)
      : UnalignedSharedSlice(row, cols, columns, fill, row_smem, tile::misalignment(row)) {}
  /// Chunks begin `lead` elements before the row, as those of another row do.
  __device__ __forceinline__ UnalignedSharedSlice(const T* row, int cols,
                                                  tile::ChunkColumns<kChunkWidth> columns,
                                                  float fill, tile::ptx::SharedAddress row_smem,
                                                  int lead)
      : columns_(columns),
        lead_(lead),
        first_(row_smem + columns.thread * 16),
        apart_(columns.threads * 16) {
    const bool aligned = tile::misalignment(row - lead) == 0;
    const auto is_whole = [&](int col) { return aligned && col >= 0 && col + kChunkWidth <= cols; };
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (is_whole(column(i))) tile::ptx::cp_async<16>(address(i), row + column(i));
    }
#pragma unroll 1
    for (int i = 0; i < kChunks; ++i) {
      if (is_whole(column(i))) continue;
      const Chunk some = tile::load_edge<T, kChunkWidth>(row, column(i), cols, fill);
      tile::ptx::store_shared(address(i), some.words);
    }
  }

  __device__ int lead() const { return lead_; }
  __device__ int column(int i) const { return columns_.column(i) - lead_; }
  __device__ __forceinline__ Chunk chunk(int i) const {
    return {tile::ptx::load_shared(address(i))};
  }
  __device__ __forceinline__ static void store(T* row, int col, int cols,
                                               const float (&value)[kChunkWidth]) {
    tile::store_anywhere(row, col, cols, value);
  }

 private:
  __device__ __forceinline__ tile::ptx::SharedAddress address(int i) const {
    return first_ + i * apart_;
  }

  tile::ChunkColumns<kChunkWidth> columns_;
  int lead_;
  tile::ptx::SharedAddress first_;  // of [kChunks] chunks
  int apart_;                       // bytes from one to the next
};

/// A tile::SharedSlice with the same functions.
template <class T, int kChunkCount>
class WholeSharedSlice : public tile::SharedSlice<T, kChunkCount> {
 public:
  using Base = tile::SharedSlice<T, kChunkCount>;
  using Base::Base;
  __device__ __forceinline__ WholeSharedSlice(const T* row, int cols,
                                              tile::ChunkColumns<Base::kChunkWidth> columns,
                                              float fill, tile::ptx::SharedAddress row_smem, int)
      : Base(row, cols, columns, fill, row_smem) {}

  __device__ static int lead() { return 0; }
  __device__ __forceinline__ static void store(T* row, int col, int,
                                               const float (&value)[Base::kChunkWidth]) {
    Base::Chunk::from_floats(value).store(row + col);
  }
};

/// The slice in shared memory of rows that consist of whole chunks, or of others.
template <bool kWhole, class T, int kChunks>
using SharedSliceOfRow =
    std::conditional_t<kWhole, WholeSharedSlice<T, kChunks>, UnalignedSharedSlice<T, kChunks>>;

}  // namespace softmax
