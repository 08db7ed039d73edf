// A thread's slice of a row in the forward kernels that read it once (steps 3 and 5).
#pragma once

#include "layernorm.hpp"
#include "tile/host/row_plan.hpp"
#include "tile/rows.cuh"

namespace layernorm {

/// Elements of a thread that has them in registers: as floats, or in long rows of 2 bytes each as
/// they came.
constexpr int kFloats = 32, kPacked = 64;

/// How threads keep a row in registers, if they can.
inline tile::RowPlan register_plan(const ForwardProblem& p, const ForwardBuffers& b) {
  const bool vectors = check_chunks(p, b).ok();
  // kPacked elements of 2 bytes take no more registers than kFloats of 4. A block of twice as many
  // threads would have half of its row's bytes under way.
  const bool long_row = p.cols > 8 * 1024 && p.cols <= 32 * 1024 && tile::size_bytes(p.type) == 2;
  return tile::plan_row(p.cols, vectors, true, vectors && long_row ? kPacked : kFloats);
}

/// The elements of a slice as floats. Either they are converted once and stay in registers; or, in
/// slices that leave no registers for floats, they stay as they came and every pass converts them
/// (packed). Slice is a tile::RegisterSlice, or has what that has.
template <class Slice, bool kPacked>
class SliceValues {
  using Chunk = typename Slice::Chunk;
  static constexpr int kWidth = Slice::kChunkWidth, kChunks = Slice::kChunks;

 public:
  /// Subtracts origin from every x: from here on the row is the shifted one.
  __device__ __forceinline__ SliceValues(const Slice& x, float origin) : x_(x), origin_(origin) {
    if constexpr (!kPacked) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        x.chunk(i).to_floats(value_[i]);
#pragma unroll
        for (float& v : value_[i]) v -= origin;
      }
    }
  }

  /// The sum over the chunks that begin in the first `cols` columns.
  __device__ __forceinline__ float sum(int cols) const {
    float sum = 0;
#pragma unroll Slice::kUnroll
    for (int i = 0; i < kChunks; ++i) {
      if (x_.column(i) >= cols) continue;
      float value[kWidth];
      load(i, value);
#pragma unroll
      for (const float v : value) sum += v;
    }
    return sum;
  }

  // snippet-begin centre
  /// Subtracts the mean from every x as well, and returns the sum of (x - mean)^2 over the same
  /// chunks.
  __device__ __forceinline__ float centre(float mean, int cols) {
    mean_ = mean;
    float squares = 0;
#pragma unroll Slice::kUnroll
    for (int i = 0; i < kChunks; ++i) {
      if (x_.column(i) >= cols) continue;
      if constexpr (!kPacked) {
#pragma unroll
        for (float& v : value_[i]) v -= mean;
      }
      float value[kWidth];
      load(i, value);
#pragma unroll
      for (const float v : value) squares += v * v;
    }
    return squares;
  }
  // snippet-end centre

  /// y = gamma (x - mean) rstd + beta in the first `cols` columns of these rows.
  template <class T>
  __device__ __forceinline__ void store(const T* gamma,  // [cols], or null
                                        const T* beta,   // [cols], or null
                                        T* y,            // [cols]
                                        float rstd, int cols) const {
    // With a test for each chunk, the chunks wait for one another. With one test for all of them,
    // all loads of gamma and beta are under way together, if there are registers for them.
    const bool ask_each = kPacked || x_.column(kChunks - 1) >= cols;
    if (!ask_each) {
#pragma unroll Slice::kUnroll
      for (int i = 0; i < kChunks; ++i) store_chunk(i, gamma, beta, y, rstd);
      return;
    }
#pragma unroll Slice::kUnroll
    for (int i = 0; i < kChunks; ++i) {
      if (x_.column(i) < cols) store_chunk(i, gamma, beta, y, rstd);
    }
  }

  /// x - mean in chunk i.
  __device__ __forceinline__ void load(int i, float (&value)[kWidth]) const {
    if constexpr (kPacked) x_.chunk(i).to_floats(value);
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      value[e] = kPacked ? value[e] - origin_ - mean_ : value_[kPacked ? 0 : i][e];
  }

 private:
  template <class T>
  __device__ __forceinline__ void store_chunk(int i, const T* gamma, const T* beta, T* y,
                                              float rstd) const {
    const int col = x_.column(i);
    float value[kWidth], weight[kWidth], shift[kWidth];
    load(i, value);
    (gamma ? Chunk::load(gamma + col) : Chunk::filled(1)).to_floats(weight);
    (beta ? Chunk::load(beta + col) : Chunk::filled(0)).to_floats(shift);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) value[e] = weight[e] * (value[e] * rstd) + shift[e];
    Chunk::from_floats(value).store(y + col);
  }

  Slice x_;
  float origin_, mean_ = 0;
  float value_[kPacked ? 1 : kChunks][kWidth];  // [0] if packed, and unused
};

}  // namespace layernorm
