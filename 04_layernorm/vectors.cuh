// What a thread does with its part of a row, which was read once: a tile::RegisterSlice or a
// tile::SharedSlice, whose missing chunks are full of zeros.
#pragma once

#include "layernorm.cuh"
#include "tile/row_plan.hpp"

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

/// Elements of a thread forward: as floats, or in long rows of 2 bytes each as they came.
constexpr int kFloats = 32, kWords = 64;

/// How threads share a row forward, if it fits into their registers: up to 32,768 elements.
inline tile::RowPlan forward_plan(const Problem& p, const Buffers& b) {
  const bool vectors = vectors_fit(p, b);
  // kWords elements of 2 bytes take no more registers than kFloats of 4. A block of twice as many
  // threads would have half of its row's bytes on their way.
  const bool long_row = p.cols > 8 * 1024 && p.cols <= 32 * 1024 && tile::size_bytes(p.type) == 2;
  return tile::plan_row(p.cols, vectors, true, vectors && long_row ? kWords : kFloats);
}

/// A chunk of gamma and one of beta.
template <class Chunk>
struct Parameters {
  Chunk gamma = Chunk::filled(1), beta = Chunk::filled(0);

  Parameters() = default;

  /// Of column `col`, where there are any.
  template <class T>
  __device__ __forceinline__ Parameters(const Arguments<T>& a, std::int64_t col) {
    if (a.gamma) gamma = Chunk::load(a.gamma + col);
    if (a.beta) beta = Chunk::load(a.beta + col);
  }
};

/// A thread's part of a row as it was read, converted to floats in every pass: for rows that leave
/// no registers for floats.
template <class Part>
class Words {
 public:
  static constexpr bool kConverted = false;

  __device__ __forceinline__ explicit Words(const Part& x) : x_(x) {}

  __device__ __forceinline__ float sum() const {
    float sum = 0;
#pragma unroll Part::kUnroll
    for (int i = 0; i < Part::kChunks; ++i) {
      float value[Part::kChunkWidth];
      x_.chunk(i).to_floats(value);
#pragma unroll
      for (const float v : value) sum += v;
    }
    return sum;
  }

  /// Subtracts the mean from each; returns the sum of their squares, of the chunks that begin in
  /// the first `cols` columns.
  __device__ __forceinline__ float centre(float mean, int cols) {
    mean_ = mean;
    float squares = 0;
#pragma unroll Part::kUnroll
    for (int i = 0; i < Part::kChunks; ++i) {
      if (x_.column(i) >= cols) continue;
      float value[Part::kChunkWidth];
      load(i, value);
#pragma unroll
      for (const float v : value) squares += v * v;
    }
    return squares;
  }

  /// Chunk i, centred.
  __device__ __forceinline__ void load(int i, float (&value)[Part::kChunkWidth]) const {
    x_.chunk(i).to_floats(value);
#pragma unroll
    for (float& v : value) v -= mean_;
  }

 private:
  Part x_;
  float mean_ = 0;
};

/// The same with its floats in registers, converted and centred once.
template <class Part>
class Floats {
 public:
  static constexpr bool kConverted = true;

  __device__ __forceinline__ explicit Floats(const Part& x) : place_(x.place()) {
#pragma unroll
    for (int i = 0; i < Part::kChunks; ++i) x.chunk(i).to_floats(value_[i]);
  }

  __device__ __forceinline__ float sum() const {
    float sum = 0;
#pragma unroll
    for (const auto& chunk : value_) {
#pragma unroll
      for (const float v : chunk) sum += v;
    }
    return sum;
  }

  __device__ __forceinline__ float centre(float mean, int cols) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < Part::kChunks; ++i) {
      if (place_.column(i) >= cols) continue;
#pragma unroll
      for (float& v : value_[i]) {
        v -= mean;
        squares += v * v;
      }
    }
    return squares;
  }

  __device__ __forceinline__ void load(int i, float (&value)[Part::kChunkWidth]) const {
#pragma unroll
    for (int e = 0; e < Part::kChunkWidth; ++e) value[e] = value_[i][e];
  }

 private:
  tile::ChunkColumns<Part::kChunkWidth> place_;
  float value_[Part::kChunks][Part::kChunkWidth];
};

/// Writes `cols` columns of y, the first of which is the row's column `first`. `values` are
/// centred.
template <class Part, class Values, class T>
__device__ __forceinline__ void store_part(const Values& values, const Arguments<T>& a, T* y,
                                           std::int64_t first, int cols, float rstd,
                                           const tile::ChunkColumns<Part::kChunkWidth>& place) {
  auto store = [&](int i) {
    const int col = place.column(i);
    float value[Part::kChunkWidth], gamma[Part::kChunkWidth], beta[Part::kChunkWidth];
    values.load(i, value);
    const Parameters<typename Part::Chunk> parameters(a, first + col);
    parameters.gamma.to_floats(gamma);
    parameters.beta.to_floats(beta);
#pragma unroll
    for (int e = 0; e < Part::kChunkWidth; ++e) value[e] = gamma[e] * (value[e] * rstd) + beta[e];
    Part::Chunk::from_floats(value).store(y + first + col);
  };
  // Asked for each chunk, the chunks wait for one another. Asked once, all loads of gamma and beta
  // are on their way together, if there are registers for them.
  if (Values::kConverted && place.column(Part::kChunks - 1) < cols) {
#pragma unroll Part::kUnroll
    for (int i = 0; i < Part::kChunks; ++i) store(i);
    return;
  }
#pragma unroll Part::kUnroll
  for (int i = 0; i < Part::kChunks; ++i) {
    if (place.column(i) < cols) store(i);
  }
}

}  // namespace layernorm
