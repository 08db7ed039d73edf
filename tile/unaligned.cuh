// Rows that begin anywhere: chunks of 16 bytes whose address is no multiple of 16.
#pragma once

#include "tile/register_slice.cuh"
#include "tile/row_edges.cuh"

namespace tile {

// snippet-begin shift
/// The 16 bytes that begin `elements` elements after the first of `low`. `high` follows `low`.
template <class T>
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, int elements) {
  unsigned word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const int halves = elements * static_cast<int>(sizeof(T)) / 2;
  // 4 and 2 halves are whole words. ptxas makes selections of these, as registers have no index.
#pragma unroll
  for (int i = 0; i < 6; ++i) word[i] = halves & 4 ? word[i + 2] : word[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) word[i] = halves & 2 ? word[i + 1] : word[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (halves & 1) word[i] = word[i] >> 16 | word[i + 1] << 16;
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}
// snippet-end shift

/// Loads kChunks chunks of a row, `apart` columns from one to the next, the first at column `col`;
/// `fill` where there is no column. Neither the row nor the column is a multiple of anything: two
/// aligned chunks have what an unaligned one needs.
template <class T, int kWidth, int kChunks>
__device__ __forceinline__ void load_anywhere(const T* row, std::int64_t col, int apart,
                                              std::int64_t cols, float fill,
                                              Chunk<T, kWidth> (&chunk)[kChunks]) {
  using Chunk = tile::Chunk<T, kWidth>;
  const int shift = misalignment(row + col);
  const std::int64_t end = col + (kChunks - 1) * apart + (shift == 0 ? kWidth : 2 * kWidth - shift);
  if (col - shift < 0 || end > cols) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
      chunk[i] = load_edge<T, kWidth>(row, col + i * apart, cols, fill);
    return;
  }
  const T* from = row + (col - shift);
  if (shift == 0) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) chunk[i] = Chunk::load(from + i * apart);
    return;
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const T* low = from + i * apart;
    chunk[i] = {shifted<T>(Chunk::load(low).words, Chunk::load(low + kWidth).words, shift)};
  }
}

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
