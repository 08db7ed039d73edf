// The rows of a matrix, and a thread's chunks of a row in registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "tile/ptx/address_once.cuh"

namespace tile {

/// Rows in global memory, `ld` elements from one to the next.
template <class T>
struct Rows {
  T* data;
  std::int64_t ld;

  __device__ __forceinline__ T* operator[](std::int64_t row) const {
    return ptx::address_once(data + row * ld);
  }
};

/// The row of this thread: one for each block, or with several rows in a block one for each y.
template <bool kSeveralRows>
__device__ __forceinline__ std::int64_t row_of_thread() {
  return kSeveralRows ? static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y
                      : blockIdx.x;
}

/// kWidth elements that one instruction moves: a single one, or as many as fill 16 bytes. Those are
/// kept as words and never as an array of elements: as soon as the compiler copies such an array
/// element by element, it may store it so too, eight instructions of 2 bytes instead of one.
///
/// Loads and stores are plain. Hints that the data is used once (no place in L1, evict first) cost
/// 3 to 5 % on an H200 where a kernel reads as much as it writes.
template <class T, int kWidth>
struct Chunk {
  static_assert(kWidth * sizeof(T) == 16);
  uint4 words;

  /// `address` is aligned to 16 bytes.
  __device__ __forceinline__ static Chunk load(const T* address) {
    return {*reinterpret_cast<const uint4*>(address)};
  }
  __device__ __forceinline__ void store(T* address) const {
    *reinterpret_cast<uint4*>(address) = words;
  }

  /// All elements the same: 0, 1 or -infinity. The words are constants to the compiler, which a
  /// conversion to a type of 16 bits is not.
  __device__ __forceinline__ static Chunk filled(float value) {
    unsigned word = __float_as_uint(value);
    if constexpr (std::is_same_v<T, __half>)
      word = value == 0 ? 0 : value == 1 ? 0x3c000000 : 0xfc000000;
    if constexpr (sizeof(T) == 2) word = (word >> 16) * 0x10001;
    return {make_uint4(word, word, word, word)};
  }

  /// Each rounded to T.
  __device__ __forceinline__ static Chunk from_floats(const float (&value)[kWidth]) {
    if constexpr (std::is_same_v<T, float>) {
      return {make_uint4(__float_as_uint(value[0]), __float_as_uint(value[1]),
                         __float_as_uint(value[2]), __float_as_uint(value[3]))};
    } else {
      return {make_uint4(pair(value[0], value[1]), pair(value[2], value[3]),
                         pair(value[4], value[5]), pair(value[6], value[7]))};
    }
  }

  /// The greatest element, as fmaxf finds it: a NaN is passed over. Two at a time where a word has
  /// two.
  __device__ __forceinline__ float max() const {
    if constexpr (std::is_same_v<T, float>) {
      return fmaxf(fmaxf(__uint_as_float(words.x), __uint_as_float(words.y)),
                   fmaxf(__uint_as_float(words.z), __uint_as_float(words.w)));
    } else {
      using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
      auto pair_of = [](const unsigned& word) { return reinterpret_cast<const Pair&>(word); };
      const Pair greatest = __hmax2(__hmax2(pair_of(words.x), pair_of(words.y)),
                                    __hmax2(pair_of(words.z), pair_of(words.w)));
      return fmaxf(static_cast<float>(greatest.x), static_cast<float>(greatest.y));
    }
  }

  __device__ __forceinline__ void to_floats(float (&value)[kWidth]) const {
    const unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        value[i] = __uint_as_float(word[i]);
      } else {
        const float2 two = floats_of(word[i], T());
        value[2 * i] = two.x;
        value[2 * i + 1] = two.y;
      }
    }
  }

 private:
  __device__ __forceinline__ static unsigned pair(float low, float high) {
    if constexpr (std::is_same_v<T, __half>) {
      const __half2 two = __floats2half2_rn(low, high);
      return reinterpret_cast<const unsigned&>(two);
    } else {
      const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
      return reinterpret_cast<const unsigned&>(two);
    }
  }
  __device__ __forceinline__ static float2 floats_of(unsigned word, __half) {
    return __half22float2(reinterpret_cast<const __half2&>(word));
  }
  // bf16 is the upper half of fp32. __bfloat1622float2() takes the upper element in two
  // instructions, shifted down and up again.
  __device__ __forceinline__ static float2 floats_of(unsigned word, __nv_bfloat16) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  }
};

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

/// Where the chunks of a row belong that `threads` threads share, of a block or of a cluster: chunk
/// i of thread t is chunk i * threads + t of the row, so that neighbouring threads move
/// neighbouring chunks.
template <int kWidth>
struct ChunkColumns {
  int thread, threads;

  __device__ int column(int i) const { return (i * threads + thread) * kWidth; }
};

/// A thread's part of a row, kElements of it, in registers.
template <class T, int kWidth, int kElements>
class RegisterSlice {
 public:
  using Chunk = tile::Chunk<T, kWidth>;
  static constexpr int kChunkWidth = kWidth, kChunks = kElements / kWidth;
  static constexpr int kUnroll = kChunks;  // registers have no index at run time

  RegisterSlice() = default;

  /// Loads the chunks that begin in the first `cols` columns; the others become full of `fill`.
  /// `row` is aligned to a chunk.
  __device__ __forceinline__ RegisterSlice(const T* row, int cols, ChunkColumns<kWidth> place,
                                           float fill)
      : place_(place) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      chunk_[i] = Chunk::filled(fill);
      if (column(i) < cols) chunk_[i] = Chunk::load(row + column(i));
    }
  }

  __device__ ChunkColumns<kWidth> place() const { return place_; }
  __device__ int column(int i) const { return place_.column(i); }
  __device__ __forceinline__ Chunk chunk(int i) const { return chunk_[i]; }

 private:
  ChunkColumns<kWidth> place_;
  Chunk chunk_[kChunks];
};

}  // namespace tile
