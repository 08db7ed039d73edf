// Tiles in shared memory: rows of elements of 16 bits, for tensor cores.
#pragma once

#include "tile/basics.cuh"
#include "tile/ptx/cp_async.cuh"
#include "tile/ptx/swizzle.hpp"

namespace tile {

// snippet-begin tile
/// kRows rows of kCols elements. Their chunks of 16 bytes are swizzled, so that ldmatrix finds
/// those of one column in different banks (chapter 02, step 9).
template <class T, int kRows_, int kCols_>
class SharedTile {
 public:
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kChunk = 8;  // elements of 16 bytes
  static constexpr int kRowChunks = kCols / kChunk, kRowBytes = kCols * 2;
  static constexpr int kBytes = kRows * kRowBytes;

  /// `begin` is a multiple of a row's bytes, or at(row, chunk) ^ 16 would leave the row.
  __device__ explicit SharedTile(ptx::SharedAddress begin) : begin_(begin) {}

  /// Where a chunk lies. at(row, chunk ^ n) is at(row, chunk) ^ n * 16, and at(row + 8, chunk) is
  /// at(row, chunk) + 8 * kRowBytes.
  __device__ ptx::SharedAddress at(int row, int chunk) const { return begin_ + offset(row, chunk); }
  // snippet-end tile

  /// The same tile `bytes` further on.
  __device__ SharedTile after(int bytes) const { return SharedTile(begin_ + bytes); }

  // snippet-begin copy
  /// Copies rows, with all kThreads threads of the block: neighbours take neighbouring chunks. Rows
  /// from `rows_left` on become zeros.
  template <int kThreads>
  __device__ void copy(Rows<const T> from, int rows_left) const {
#pragma unroll
    for (int i = 0; i < kTurns<kThreads>; ++i) {
      const int row = row_of_thread<kThreads>(i), chunk = threadIdx.x % kRowChunks;
      if (kRows % kStep<kThreads> != 0 && row >= kRows) break;
      uint4 words{};
      if (row < rows_left) words = *reinterpret_cast<const uint4*>(from[row] + chunk * kChunk);
      ptx::store_shared(at(row, chunk), words);
    }
  }
  // snippet-end copy

  // snippet-begin copy_async
  /// The same in the background: the copies are under way when this returns.
  template <int kThreads>
  __device__ void copy_async(Rows<const T> from, int rows_left) const {
    const T* chunk_of_row = from.data + threadIdx.x % kRowChunks * kChunk;
#pragma unroll
    for (int i = 0; i < kTurns<kThreads>; ++i) {
      const int row = row_of_thread<kThreads>(i), chunk = threadIdx.x % kRowChunks;
      if (kRows % kStep<kThreads> != 0 && row >= kRows) break;
      ptx::cp_async<16>(at(row, chunk), chunk_of_row + row * from.ld, row < rows_left ? 16 : 0);
    }
  }
  // snippet-end copy_async

  /// The same with fewer instructions: both addresses of a thread's first chunk are computed once,
  /// and those of the next ones by additions. Chapter 05's forward steps 5 and 6 would spill.
  template <int kThreads>
  __device__ void copy_async_in_steps(Rows<const T> from, int rows_left) const {
    const int first = static_cast<int>(threadIdx.x / kRowChunks), chunk = threadIdx.x % kRowChunks;
    const ptx::SharedAddress to = at(first, chunk);
    const T* source = ptx::address_once(from[first] + chunk * kChunk);
#pragma unroll
    for (int i = 0; i < kTurns<kThreads>; ++i) {
      const int row = first + i * kStep<kThreads>;
      if (kRows % kStep<kThreads> != 0 && row >= kRows) break;
      // Rows eight apart have the same swizzle.
      const bool is_alike = kStep<kThreads> % 8 == 0;
      ptx::cp_async<16>(is_alike ? to + i * kStep<kThreads> * kRowBytes : at(row, chunk),
                        source + i * (from.ld * kStep<kThreads>), row < rows_left ? 16 : 0);
    }
  }

 private:
  // Rows that the threads reach at one time, and how many times they do.
  template <int kThreads>
  static constexpr int kStep = kThreads / kRowChunks;
  template <int kThreads>
  static constexpr int kTurns = (kRows + kStep<kThreads> - 1) / kStep<kThreads>;
  template <int kThreads>
  static __device__ int row_of_thread(int turn) {
    static_assert(kThreads % kRowChunks == 0, "whole rows");
    return static_cast<int>(threadIdx.x) / kRowChunks + turn * kStep<kThreads>;
  }
  static __device__ int offset(int row, int chunk) {
    const int column = kRowChunks == 2   ? swizzle_32B(row, chunk)
                       : kRowChunks == 4 ? swizzle_64B(row, chunk)
                                         : swizzle_128B(row, chunk);
    return row * kRowBytes + column * 16;
  }

  ptx::SharedAddress begin_;
};

}  // namespace tile
