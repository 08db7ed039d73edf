// What the kernels of this chapter are told, and what they do with a maximum and a sum.
#pragma once

#include "softmax.hpp"
#include "tile/basics.cuh"
#include "tile/basics.cuh"
#include "online_softmax.cuh"
#include "tile/rows.cuh"

namespace softmax {

/// The problem without its pointers.
struct Options {
  std::int64_t rows, cols;
  std::int64_t queries;
  bool causal, log;
  float scale;
  float factor;  // exp(scale x) is 2^(factor x), and 2^x is what the hardware computes

  explicit Options(const Problem& p)
      : rows(p.rows),
        cols(p.cols),
        queries(p.queries),
        causal(p.causal),
        log(p.log),
        scale(p.scale),
        factor(p.scale * tile::kLog2E) {}

  /// How many columns of a row are visible: the first ones.
  __device__ std::int64_t visible(std::int64_t row) const {
    if (!causal) return cols;
    const std::int64_t last = row % queries + cols - queries;  // below 0 for a query without keys
    return last < 0 ? 0 : last + 1;
  }
  /// y of a column that is not visible.
  __device__ float hidden() const { return log ? -INFINITY : 0.f; }
};

/// x to y, once the row's maximum and sum are known. kPlain: no logarithm.
template <bool kPlain = false>
struct Normalize {
  float scale, factor, max;
  float last;  // 1 / sum, or of the logarithm log(sum)
  bool log;

  __device__ Normalize(const Options& options, tile::MaxSum row)
      : scale(options.scale),
        factor(options.factor),
        max(tile::finite_reference(row.max)),
        // A sum of 0 is that of a row without any weight: then x is -infinity, if it is visible.
        last(row.sum == 0             ? 0
             : !kPlain && options.log ? logf(row.sum)
                                      : 1 / row.sum),
        log(options.log) {}

  __device__ float operator()(float x) const {
    // Subtracting first keeps the digits of large numbers that differ by little.
    if (!kPlain && log) return scale * (x - max) - last;
    return tile::ptx::exp2_approx(factor * (x - max)) * last;
  }
};

/// The backward pass: what is summed over a row, and what becomes of an element. kPlain: of no
/// logarithm.
template <bool kPlain = false>
struct Gradient {
  float scale;
  bool log;

  __device__ explicit Gradient(const Options& options) : scale(options.scale), log(options.log) {}

  __device__ float term(float y, float dy) const { return !kPlain && log ? dy : y * dy; }
  __device__ float operator()(float y, float dy, float sum) const {
    if (!kPlain && log) return scale * (dy - tile::ptx::exp2_approx(tile::kLog2E * y) * sum);
    return scale * (y * (dy - sum));
  }
};

/// The matrices with elements of type T, and the options.
template <class T>
struct Arguments {
  tile::Rows<const T> x, y_in, dy;
  tile::Rows<T> y, dx;
  Options options;

  Arguments(const Problem& p, const Buffers& b)
      : x{static_cast<const T*>(b.x), p.ldx},
        y_in{static_cast<const T*>(b.y), p.ldy},
        dy{static_cast<const T*>(b.dy), p.lddy},
        y{static_cast<T*>(b.y), p.ldy},
        dx{static_cast<T*>(b.dx), p.lddx},
        options(p) {}
};

/// Whether every chunk of 16 bytes of every row can be read and written with one instruction.
inline bool vectors_fit(const Problem& p, const Buffers& b) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  auto fit = [element](const void* data, std::int64_t ld) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && ld * element % 16 == 0;
  };
  if (p.cols * element % 16 != 0 || !fit(b.y, p.ldy)) return false;
  if (p.direction == tile::Direction::forward) return fit(b.x, p.ldx);
  return fit(b.dy, p.lddy) && fit(b.dx, p.lddx);
}

/// What every launcher begins with: checks the arguments, and unless there is nothing to compute
/// calls `launch` with the Arguments and with blocks for all rows, at `rows_per_block` each.
template <class Launch>
tile::Status launch_on_rows(const Problem& problem, const Buffers& buffers, int rows_per_block,
                            Launch launch) {
  if (tile::Status s = validate(problem, buffers); !s.ok()) return s;
  if (problem.rows == 0 || problem.cols == 0) return {};
  unsigned blocks = 0;
  if (tile::Status s = tile::blocks_for("rows", problem.rows, rows_per_block, &blocks); !s.ok()) {
    return s;
  }
  return tile::with_element_type(problem.type, [&](auto element) {
    return launch(Arguments<decltype(element)>(problem, buffers), blocks);
  });
}

}  // namespace softmax
