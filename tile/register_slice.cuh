// Rows in registers: a thread's slice of a row. How many threads share one: tile/host/row_plan.hpp.
#pragma once

#include <cstdint>

#include "tile/host/row_plan.hpp"
#include "tile/reduce.cuh"
#include "tile/rows.cuh"

namespace tile {

/// A single element.
template <class T>
struct Chunk<T, 1> {
  T element;

  __device__ __forceinline__ static Chunk load(const T* address) { return {*address}; }
  __device__ __forceinline__ void store(T* address) const { *address = element; }
  __device__ __forceinline__ static Chunk filled(float value) { return {static_cast<T>(value)}; }
  __device__ __forceinline__ static Chunk from_floats(const float (&value)[1]) {
    return {static_cast<T>(value[0])};
  }
  __device__ __forceinline__ float max() const { return static_cast<float>(element); }
  __device__ __forceinline__ void to_floats(float (&value)[1]) const {
    value[0] = static_cast<float>(element);
  }
};

/// A thread's slice of a row: kElements of it, in registers.
template <class T, int kWidth, int kElements>
class RegisterSlice {
 public:
  using Chunk = tile::Chunk<T, kWidth>;
  static constexpr int kChunkWidth = kWidth, kChunks = kElements / kWidth;
  static constexpr int kUnroll = kChunks;  // registers cannot be indexed at run time

  RegisterSlice() = default;

  /// Loads the chunks that begin in the first `cols` columns; the others are filled with `fill`.
  /// `row` is aligned to a chunk.
  __device__ __forceinline__ RegisterSlice(const T* row, int cols, ChunkColumns<kWidth> columns,
                                           float fill)
      : columns_(columns) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      chunk_[i] = Chunk::filled(fill);
      if (column(i) < cols) chunk_[i] = Chunk::load(row + column(i));
    }
  }

  __device__ int column(int i) const { return columns_.column(i); }
  __device__ __forceinline__ Chunk chunk(int i) const { return chunk_[i]; }

 private:
  ChunkColumns<kWidth> columns_;
  Chunk chunk_[kChunks];
};

/// The row of this thread: a block has one row, or several, one for each threadIdx.y.
template <bool kSeveralRows>
__device__ __forceinline__ std::int64_t row_of_thread() {
  return kSeveralRows ? static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y
                      : blockIdx.x;
}

/// The reduction over the threads of a row: all threads of a block, by reduce_block(); or, if a
/// block has several rows, blockDim.x neighbouring lanes, a power of two. The compiler unrolls it
/// if it is told their number.
template <bool kSeveralRows, int kLanes = 0, class T, class Merge>
__device__ __forceinline__ T reduce_row(T value, Merge merge, T* partial) {  // [warps]
  if constexpr (kSeveralRows) {
    return reduce_lanes(value, merge, kLanes > 0 ? kLanes : static_cast<int>(blockDim.x));
  } else {
    return reduce_block(value, merge, partial);
  }
}

}  // namespace tile
