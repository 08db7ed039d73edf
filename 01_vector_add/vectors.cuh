// How a, b and c are cut into 16-byte vectors, for the steps that load those.
#pragma once

#include <cstdint>

#include "tile/basics.cuh"
#include "vector_add.hpp"

namespace vector_add {

/// n elements as `head` single ones, then `vectors` vectors, then single ones to the end.
struct Split {
  std::int64_t head;     // elements
  std::int64_t vectors;  // of tile::Vector<T>::kCount elements
};

/// A vector must begin at a multiple of 16 bytes. If a, b and c are off by the same number of
/// bytes, skipping `head` elements puts all three right. If not, no cut suits all of them: then
/// there are no vectors, and everything is head.
template <class T>
Split split_into_vectors(const Problem& problem, const Buffers& buffers) {
  constexpr std::uintptr_t kBytes = sizeof(tile::Vector<T>);
  auto off = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kBytes; };
  const std::uintptr_t bytes = off(buffers.a);
  if (off(buffers.b) != bytes || off(buffers.c) != bytes) return {problem.n, 0};
  const auto head = static_cast<std::int64_t>((kBytes - bytes) % kBytes / sizeof(T));
  if (head >= problem.n) return {problem.n, 0};
  return {head, (problem.n - head) / tile::Vector<T>::kCount};
}

/// The sum of two vectors. They come by value: through references, nvcc would load the elements one
/// by one.
template <class T>
__device__ tile::Vector<T> add(tile::Vector<T> a, tile::Vector<T> b) {
  tile::Vector<T> sum;
#pragma unroll
  for (int e = 0; e < tile::Vector<T>::kCount; ++e) sum.element[e] = a.element[e] + b.element[e];
  return sum;
}

}  // namespace vector_add
