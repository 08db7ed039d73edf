// Rows that begin anywhere, in words of 4 bytes.
#pragma once

#include "tile/host/word_plan.hpp"
#include "tile/ptx/bits_once.cuh"
#include "tile/ptx/resident_threads.cuh"
#include "tile/reduce.cuh"
#include "tile/rows.cuh"

namespace tile {

/// The elements of 4 bytes: two, or one of fp32. Addresses are aligned to 4 bytes.
template <class T>
struct Word {
  static constexpr int kWidth = 4 / sizeof(T);
  unsigned bits;

  __device__ __forceinline__ void store(T* address) const {
    *reinterpret_cast<unsigned*>(address) = bits;
  }
  /// All elements the same: 0 or -infinity.
  __device__ __forceinline__ static Word filled(float value) {
    return {Chunk<T, 16 / sizeof(T)>::filled(value).words.x};
  }
  __device__ __forceinline__ static Word from_floats(const float (&value)[kWidth]) {
    if constexpr (kWidth == 1) return {__float_as_uint(value[0])};
    return {word_of<T>(value[0], value[kWidth - 1])};
  }
  __device__ __forceinline__ static Word max(Word a, Word b) {
    if constexpr (kWidth == 2) return {ptx::max2<T>(a.bits, b.bits)};
    return {__float_as_uint(fmaxf(__uint_as_float(a.bits), __uint_as_float(b.bits)))};
  }
  __device__ __forceinline__ void to_floats(float (&value)[kWidth]) const {
    if constexpr (kWidth == 1) {
      value[0] = __uint_as_float(bits);
    } else {
      const float2 two = floats_of<T>(bits);
      value[0] = two.x, value[1] = two.y;
    }
  }
};

// snippet-begin words
/// A thread's words of a row that begins anywhere: up to kWords, kThreads words apart. A row of
/// 2-byte elements begins at a word or one element before one, and ends with a word or one element
/// after one. So all but two elements at most lie in words, and two threads have one of these two
/// each. The compiler knows kThreads, so the distance between words is part of an instruction.
template <class T, int kThreads, int kWords>
class RowWords {
 public:
  using Word = tile::Word<T>;
  static constexpr int kWidth = Word::kWidth;
  static constexpr bool kSeveralRows = kThreads <= kWarp;                         // in a block
  static constexpr int kBlock = kSeveralRows ? kThreadsOfSeveralRows : kThreads;  // threads
  static constexpr int blocks_with(int threads) {
    return resident_blocks(threads / kBlock, kBlock);
  }

  __device__ static std::int64_t row() {
    return kSeveralRows ? std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y : blockIdx.x;
  }
  /// The reduction over the threads of a row. `partial` is that of reduce_block().
  template <class Value, class Merge>
  __device__ __forceinline__ static Value reduce(Value value, Merge merge, Value* partial) {
    if constexpr (kSeveralRows) return reduce_lanes(value, merge, kThreads);
    return reduce_block(value, merge, partial);
  }

  /// This thread's words of the first `cols` elements of `row`.
  __device__ __forceinline__ RowWords(const T* row, int cols) {
    const int thread = static_cast<int>(threadIdx.x);
    const int lead =
        min(static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 4 / sizeof(T)), cols);
    const int words = (cols - lead) / kWidth;
    left_ = words - thread, first_ = lead + thread * kWidth, end_ = -1;
    if (thread == 0 && lead == 1) end_ = 0;
    if (thread == kThreads - 1 && lead + words * kWidth < cols) end_ = cols - 1;
  }

  /// Whether this thread has word i.
  __device__ bool has(int i) const { return left_ > i * kThreads; }
  /// Where word i begins in a row.
  template <class Element>
  __device__ Element* at(Element* row, int i) const {
    return row + first_ + i * kThreads * kWidth;
  }
  /// The column of the single element that this thread has; below 0 if it has none.
  __device__ int end() const { return end_; }

  /// `fill` where there is no word.
  __device__ __forceinline__ void load(const T* row, float fill, Word (&word)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      word[i] = Word::filled(fill);
      if (has(i)) word[i].bits = *reinterpret_cast<const unsigned*>(at(row, i));
    }
  }

  /// Keeps results computed from these words out of registers: the next pass computes them again.
  __device__ __forceinline__ static void hide(Word (&word)[kWords]) {
#pragma unroll
    for (Word& each : word) each.bits = ptx::bits_once(each.bits);
  }

 private:
  int first_;  // the column of this thread's first word
  int left_;   // words from there on
  int end_;
};
// snippet-end words

}  // namespace tile
