// Rows of a matrix, in chunks of 16 bytes.
#pragma once

#include <type_traits>

#include "tile/basics.cuh"
#include "tile/ptx/max2.cuh"

namespace tile {

/// A word of two elements of 2 bytes, and back.
template <class T>
__device__ __forceinline__ unsigned word_of(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 two = __floats2half2_rn(low, high);
    return reinterpret_cast<const unsigned&>(two);
  } else {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const unsigned&>(two);
  }
}
template <class T>
__device__ __forceinline__ float2 floats_of(unsigned word) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(reinterpret_cast<const __half2&>(word));
  }
  // bf16 is the upper half of fp32. __bfloat1622float2() would shift the upper one down and up.
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

/// kWidth elements that one instruction moves: as many as fill 16 bytes. They are four words and
/// never an array of elements: a compiler that copies such an array element by element may also
/// store it so, with eight instructions of 2 bytes instead of one.
/// Loads and stores are plain: hints (no room in L1, evict first) cost 3 to 5 % on an H200.
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

  /// All elements the same: 0, 1 or -infinity. The words are constants to the compiler; the result
  /// of a conversion to a 16-bit type is not.
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
      return {make_uint4(word_of<T>(value[0], value[1]), word_of<T>(value[2], value[3]),
                         word_of<T>(value[4], value[5]), word_of<T>(value[6], value[7]))};
    }
  }

  /// The greatest element, as fmaxf finds it: a NaN is ignored.
  __device__ __forceinline__ float max() const {
    if constexpr (std::is_same_v<T, float>) {
      return fmaxf(fmaxf(__uint_as_float(words.x), __uint_as_float(words.y)),
                   fmaxf(__uint_as_float(words.z), __uint_as_float(words.w)));
    } else {
      const float2 two = floats_of<T>(
          ptx::max2<T>(ptx::max2<T>(words.x, words.y), ptx::max2<T>(words.z, words.w)));
      return fmaxf(two.x, two.y);
    }
  }

  __device__ __forceinline__ void to_floats(float (&value)[kWidth]) const {
    const unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        value[i] = __uint_as_float(word[i]);
      } else {
        const float2 two = floats_of<T>(word[i]);
        value[2 * i] = two.x, value[2 * i + 1] = two.y;
      }
    }
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

/// Which chunks of a row are this thread's, if `threads` threads of a block or of a cluster share
/// the row: chunk i of thread t is chunk i * threads + t of the row, so that neighbouring threads
/// move neighbouring chunks.
template <int kWidth>
struct ChunkColumns {
  int thread, threads;

  /// The first column of the thread's chunk i.
  __device__ int column(int i) const { return (i * threads + thread) * kWidth; }
};

}  // namespace tile
