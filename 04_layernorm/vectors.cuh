// What a thread does with its part of a row, which was read once: a tile::RegisterPart or a
// tile::SharedPart, whose missing chunks are full of zeros.
#pragma once

#include "layernorm.cuh"

namespace layernorm {

/// Whether every chunk of 16 bytes of every row, and of gamma and beta, can be moved with one
/// instruction.
inline bool vectors_fit(const Problem& p, const Buffers& b) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  auto fit = [element](const void* data, std::int64_t ld) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && ld * element % 16 == 0;
  };
  if (p.cols * element % 16 != 0 || !fit(b.x, p.ldx) || !fit(b.gamma, 0)) return false;
  if (p.direction == tile::Direction::forward) return fit(b.beta, 0) && fit(b.y, p.ldy);
  return fit(b.dy, p.lddy) && fit(b.dx, p.lddx);
}

/// A chunk of gamma or beta; all `otherwise` if there is none.
template <class Chunk, class T, int kWidth>
__device__ __forceinline__ void load_parameters(const T* parameters, std::int64_t col,
                                                float otherwise, float (&value)[kWidth]) {
  if (parameters) {
    Chunk::load(parameters + col).to_floats(value);
  } else {
#pragma unroll
    for (float& v : value) v = otherwise;
  }
}

template <class Part>
__device__ __forceinline__ float sum_of_part(const Part& x) {
  float sum = 0;
#pragma unroll Part::kUnroll
  for (int i = 0; i < Part::kChunks; ++i) {
    float value[Part::kChunkWidth];
    x.chunk(i).to_floats(value);
#pragma unroll
    for (const float v : value) sum += v;
  }
  return sum;
}

/// The squares of the distances from the mean, of the chunks that begin in the first `cols`
/// columns.
template <class Part>
__device__ __forceinline__ float squares_of_part(const Part& x, int cols, float mean) {
  float squares = 0;
#pragma unroll Part::kUnroll
  for (int i = 0; i < Part::kChunks; ++i) {
    if (x.column(i) >= cols) continue;
    float value[Part::kChunkWidth];
    x.chunk(i).to_floats(value);
#pragma unroll
    for (const float v : value) squares += (v - mean) * (v - mean);
  }
  return squares;
}

/// Writes `cols` columns of y, the first of which is the row's column `first`.
template <class Part, class T>
__device__ __forceinline__ void store_part(const Part& x, const Arguments<T>& a, T* y,
                                           std::int64_t first, int cols, float mean, float rstd) {
#pragma unroll Part::kUnroll
  for (int i = 0; i < Part::kChunks; ++i) {
    const int col = x.column(i);
    if (col >= cols) continue;
    float value[Part::kChunkWidth], gamma[Part::kChunkWidth], beta[Part::kChunkWidth];
    x.chunk(i).to_floats(value);
    load_parameters<typename Part::Chunk>(a.gamma, first + col, 1, gamma);
    load_parameters<typename Part::Chunk>(a.beta, first + col, 0, beta);
#pragma unroll
    for (int e = 0; e < Part::kChunkWidth; ++e) {
      value[e] = gamma[e] * ((value[e] - mean) * rstd) + beta[e];
    }
    Part::Chunk::from_floats(value).store(y + first + col);
  }
}

}  // namespace layernorm
