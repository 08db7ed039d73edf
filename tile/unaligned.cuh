// Rows that begin anywhere: chunks of 16 bytes whose address is no multiple of 16.
#pragma once

#include "tile/register_slice.cuh"
#include "tile/row_edges.cuh"

namespace tile {

// snippet-begin slice
/// A thread's slice of a row that begins anywhere, in registers: a RegisterSlice whose chunks are
/// those of memory. The row's first and last chunk have some columns only, and move element by
/// element.
template <class T, int kElements>
class UnalignedSlice {
 public:
  static constexpr int kChunkWidth = 16 / sizeof(T), kChunks = kElements / kChunkWidth;
  static constexpr int kUnroll = kChunks;
  using Chunk = tile::Chunk<T, kChunkWidth>;

  /// Chunks begin where `row` plus so many columns is aligned to 16 bytes.
  __device__ __forceinline__ UnalignedSlice(const T* row, int cols,
                                            ChunkColumns<kChunkWidth> columns, float fill)
      : UnalignedSlice(row, cols, columns, fill, misalignment(row)) {}
  /// Chunks begin `lead` elements before the row.
  __device__ __forceinline__ UnalignedSlice(const T* row, int cols,
                                            ChunkColumns<kChunkWidth> columns, float fill, int lead)
      : columns_(columns), lead_(lead) {
    const bool aligned = misalignment(row - lead) == 0;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      chunk_[i] = Chunk::filled(fill);
      const int col = column(i);
      if (col >= cols) continue;
      if (aligned && col >= 0 && col + kChunkWidth <= cols) {
        chunk_[i] = Chunk::load(row + col);
      } else {
        chunk_[i] = load_edge<T, kChunkWidth>(row, col, cols, fill);
      }
    }
  }

  __device__ int lead() const { return lead_; }
  __device__ int column(int i) const { return columns_.column(i) - lead_; }
  /// Whether the row has element e of chunk i.
  __device__ __forceinline__ bool has(int i, int e, int cols) const {
    return column(i) + e >= 0 && column(i) + e < cols;
  }
  /// The same columns of a vector that begins anywhere, too.
  __device__ __forceinline__ static Chunk load_at(const T* values, int col, int cols) {
    Chunk chunk[1];
    load_anywhere<T, kChunkWidth>(values, col, 0, cols, 0, chunk);
    return chunk[0];
  }
  __device__ __forceinline__ Chunk chunk(int i) const { return chunk_[i]; }
  __device__ __forceinline__ static void store(T* row, int col, int cols,
                                               const float (&value)[kChunkWidth]) {
    store_anywhere(row, col, cols, value);
  }

 private:
  ChunkColumns<kChunkWidth> columns_;
  int lead_;
  Chunk chunk_[kChunks];
};
// snippet-end slice

/// The slice of rows that consist of whole chunks, or of others.
template <bool kWhole, class T, int kElements>
using SliceOfRow = std::conditional_t<kWhole, RegisterSlice<T, 16 / sizeof(T), kElements>,
                                      UnalignedSlice<T, kElements>>;

}  // namespace tile
