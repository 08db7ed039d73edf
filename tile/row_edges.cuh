// Rows that begin anywhere: unaligned chunks of 16 bytes, each across two aligned ones, and the
// ends of a row, which fill only a part of a chunk.
#pragma once

#include "tile/rows.cuh"

namespace tile {

/// How many elements `address` lies after a multiple of 16 bytes.
template <class T>
__device__ __forceinline__ int misalignment(const T* address) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(address) % 16 / sizeof(T));
}

/// kWidth elements of a row from column `col` on, one by one; `fill` where there is no column.
template <class T, int kWidth>
__device__ __forceinline__ Chunk<T, kWidth> load_edge(const T* row, std::int64_t col,
                                                      std::int64_t cols, float fill) {
  float value[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    value[e] = col + e >= 0 && col + e < cols ? static_cast<float>(row[col + e]) : fill;
  }
  return Chunk<T, kWidth>::from_floats(value);
}

/// Stores the last `count` elements of a chunk, or the first ones, but never the whole chunk, which
/// is aligned to 16 bytes. Stores of 8, 4 and 2 bytes, in this order from the chunk's border
/// inwards, each if the number of bytes has its bit, are all aligned.
template <class T, int kWidth>
__device__ __forceinline__ void store_end(T* chunk, Chunk<T, kWidth> of, int count, bool last) {
  const unsigned word[4] = {of.words.x, of.words.y, of.words.z, of.words.w};
  const int bytes = count * static_cast<int>(sizeof(T));
  auto* const memory = reinterpret_cast<unsigned char*>(chunk);
  // The chunk's words, from its beginning or from its end inwards.
  const unsigned border = last ? word[3] : word[0], second = last ? word[2] : word[1];
  const unsigned third = last ? word[1] : word[2], inner = last ? word[0] : word[3];
  if (bytes & 8) {
    *reinterpret_cast<uint2*>(memory + (last ? 8 : 0)) =
        make_uint2(last ? second : border, last ? border : second);
  }
  const int eight = bytes & 8, twelve = bytes & 12;
  if (bytes & 4) {
    *reinterpret_cast<unsigned*>(memory + (last ? 12 - eight : eight)) = eight ? third : border;
  }
  if constexpr (sizeof(T) == 2) {
    const unsigned odd = twelve == 0 ? border : twelve == 4 ? second : twelve == 8 ? third : inner;
    if (bytes & 2) {
      *reinterpret_cast<unsigned short*>(memory + (last ? 14 - twelve : twelve)) =
          static_cast<unsigned short>(last ? odd >> 16 : odd);
    }
  }
}

/// Of kWidth elements from column `col` on, stores those that the row has.
template <class T, int kWidth>
__device__ __forceinline__ void store_anywhere(T* row, std::int64_t col, std::int64_t cols,
                                               const float (&value)[kWidth]) {
  if (col >= cols || col + kWidth <= 0) return;
  const bool aligned = misalignment(row + col) == 0;
  const Chunk<T, kWidth> chunk = Chunk<T, kWidth>::from_floats(value);
  if (aligned && col >= 0 && col + kWidth <= cols) {
    chunk.store(row + col);
    return;
  }
  if (aligned && (col >= 0 || col + kWidth <= cols)) {
    const bool last = col < 0;  // the row begins here; otherwise it ends here
    store_end(row + col, chunk, static_cast<int>(last ? col + kWidth : cols - col), last);
    return;
  }
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    if (col + e >= 0 && col + e < cols) row[col + e] = static_cast<T>(value[e]);
  }
}

// snippet-begin shift
/// The 16 bytes that begin `elements` elements after the first of `low`. `high` follows `low`.
template <class T>
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, int elements) {
  unsigned word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const int halves = elements * static_cast<int>(sizeof(T)) / 2;
  // 4 and 2 halves are whole words. ptxas makes selections of these: registers cannot be indexed.
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
/// `fill` where there is no column. Neither the row nor the column need be aligned: two aligned
/// chunks contain an unaligned one.
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

}  // namespace tile
