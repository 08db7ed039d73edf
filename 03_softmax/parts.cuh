// What a thread does with its part of a row, which was read once, before it writes the results.
//
// A part is a tile::RegisterSlice or a tile::SharedSlice: chunks of a row, of which those that are
// missing are full of what changes nothing, -infinity forward and 0 backward.
//
// kPlain: neither causal nor a logarithm. Then a chunk is visible or not as a whole, and no element
// needs a look of its own. At the speed of memory the lanes have time for some 30
// instructions an element of 2 bytes, on an H200; this takes half of them.
#pragma once

#include "softmax.cuh"

namespace softmax {

/// How many columns a row has, and how many of them are visible.
struct Columns {
  int cols, visible;
};

template <bool kPlain>
__device__ Columns columns_of_row(const Options& options, std::int64_t row) {
  if (row >= options.rows) return {0, 0};  // lanes without a row still take part in shuffles
  const auto cols = static_cast<int>(options.cols);
  return {cols, kPlain ? cols : static_cast<int>(options.visible(row))};
}

/// Chunk i of x as floats, -infinity where it is not visible.
template <bool kPlain, class Part>
__device__ __forceinline__ void load_visible(const Part& x, int i, int visible,
                                             float (&value)[Part::kChunkWidth]) {
  x.chunk(i).to_floats(value);
  if constexpr (!kPlain) {
#pragma unroll
    for (int e = 0; e < Part::kChunkWidth; ++e) {
      if (x.column(i) + e >= visible) value[e] = -INFINITY;
    }
  }
}

/// Maximum and sum of the thread's own part of x.
template <bool kPlain, class Part>
__device__ __forceinline__ tile::MaxSum reduce_part(const Part& x, const Columns& columns,
                                                    const Options& options) {
  float value[Part::kChunkWidth];
  tile::MaxSum own{-INFINITY, 0};
#pragma unroll Part::kUnroll
  for (int i = 0; i < Part::kChunks; ++i) {
    if constexpr (kPlain) {
      own.max = fmaxf(own.max, x.chunk(i).max());
      continue;
    }
    load_visible<kPlain>(x, i, columns.visible, value);
#pragma unroll
    for (const float v : value) own.max = fmaxf(own.max, v);
  }
  const float reference = tile::finite_reference(own.max);
#pragma unroll Part::kUnroll
  for (int i = 0; i < Part::kChunks; ++i) {
    load_visible<kPlain>(x, i, columns.visible, value);
#pragma unroll
    for (const float v : value) {
      own.sum += tile::ptx::exp2_approx(options.factor * (v - reference));
    }
  }
  return own;
}

/// Writes the thread's chunk i of y.
template <bool kPlain, class T, class Part>
__device__ __forceinline__ void store_chunk(const Part& x, int i, T* y, const Columns& columns,
                                            const Normalize<kPlain>& normalize,
                                            const Options& options) {
  const int col = x.column(i);
  if (col >= columns.cols) return;
  float value[Part::kChunkWidth];
  x.chunk(i).to_floats(value);
#pragma unroll
  for (int e = 0; e < Part::kChunkWidth; ++e) {
    value[e] = kPlain || col + e < columns.visible ? normalize(value[e]) : options.hidden();
  }
  Part::Chunk::from_floats(value).store(y + col);
}

/// Writes the thread's part of y.
template <bool kPlain, class T, class Part>
__device__ __forceinline__ void store_part(const Part& x, T* y, const Columns& columns,
                                           tile::MaxSum row, const Options& options) {
  const Normalize<kPlain> normalize(options, row);
#pragma unroll Part::kUnroll
  for (int i = 0; i < Part::kChunks; ++i) store_chunk(x, i, y, columns, normalize, options);
}

/// The sum over the thread's own part of the backward pass.
template <bool kPlain, class Part>
__device__ __forceinline__ float reduce_part(const Part& y, const Part& dy, const Columns& columns,
                                             const Gradient<kPlain>& gradient) {
  float sum = 0;
#pragma unroll Part::kUnroll
  for (int i = 0; i < Part::kChunks; ++i) {
    float value[Part::kChunkWidth], dvalue[Part::kChunkWidth];
    y.chunk(i).to_floats(value);
    dy.chunk(i).to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < Part::kChunkWidth; ++e) {
      if (kPlain || y.column(i) + e < columns.visible) sum += gradient.term(value[e], dvalue[e]);
    }
  }
  return sum;
}

/// Writes the thread's part of dx. `sum` is that over the whole row.
template <bool kPlain, class T, class Part>
__device__ __forceinline__ void store_part(const Part& y, const Part& dy, T* dx,
                                           const Columns& columns, float sum,
                                           const Gradient<kPlain>& gradient) {
#pragma unroll Part::kUnroll
  for (int i = 0; i < Part::kChunks; ++i) {
    const int col = y.column(i);
    if (col >= columns.cols) continue;
    float value[Part::kChunkWidth], dvalue[Part::kChunkWidth];
    y.chunk(i).to_floats(value);
    dy.chunk(i).to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < Part::kChunkWidth; ++e) {
      value[e] = kPlain || col + e < columns.visible ? gradient(value[e], dvalue[e], sum) : 0;
    }
    Part::Chunk::from_floats(value).store(dx + col);
  }
}

}  // namespace softmax
