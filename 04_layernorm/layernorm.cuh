// What the kernels of this chapter are told, and what every launcher does.
#pragma once

#include "layernorm.hpp"
#include "tile/basics.cuh"
#include "tile/basics.cuh"
#include "tile/reduce.cuh"
#include "tile/rows.cuh"

namespace layernorm {

/// The problem with elements of type T as a kernel sees it.
template <class T>
struct Arguments {
  std::int64_t rows, cols;
  float per_col;  // 1 / cols: a division takes ten instructions
  float eps;
  bool centred;  // LayerNorm; RMSNorm takes the mean for 0

  tile::Rows<const T> x, dy;  // [rows][cols]
  tile::Rows<T> y, dx;        // [rows][cols]
  const T *gamma, *beta;      // [cols], or null
  float *mean, *rstd;         // [rows], or null

  Arguments(const Problem& p, const Buffers& b)
      : rows(p.rows),
        cols(p.cols),
        per_col(static_cast<float>(1 / static_cast<double>(p.cols))),
        eps(p.eps),
        centred(p.norm == Norm::layer),
        x{static_cast<const T*>(b.x), p.ldx},
        dy{static_cast<const T*>(b.dy), p.lddy},
        y{static_cast<T*>(b.y), p.ldy},
        dx{static_cast<T*>(b.dx), p.lddx},
        gamma(static_cast<const T*>(b.gamma)),
        beta(static_cast<const T*>(b.beta)),
        mean(b.mean),
        rstd(b.rstd) {}

  __device__ float gamma_of(std::int64_t col) const {
    return gamma ? static_cast<float>(gamma[col]) : 1.f;
  }
  __device__ float beta_of(std::int64_t col) const {
    return beta ? static_cast<float>(beta[col]) : 0.f;
  }

  /// 1 / sqrt(variance + eps), of the squares' sum around the mean.
  __device__ float rstd_of(float squares) const { return rsqrtf(squares * per_col + eps); }

  /// Saves the statistics of a row for the backward pass. One thread calls it.
  __device__ void save(std::int64_t row, float row_mean, float row_rstd) const {
    if (mean) mean[row] = row_mean;
    if (rstd) rstd[row] = row_rstd;
  }
};

/// The statistics of a row that the forward pass saved; of a row that does not exist, zeros.
struct Statistics {
  float mean = 0, rstd = 0;

  Statistics() = default;

  template <class T>
  __device__ Statistics(const Arguments<T>& a, std::int64_t row) {
    if (row >= a.rows) return;
    if (a.centred) mean = a.mean[row];
    rstd = a.rstd[row];
  }

  __device__ float xhat(float x) const { return (x - mean) * rstd; }
};

/// The two sums over a row that dx needs, with w = gamma dy.
struct RowSums {
  float w, w_xhat;
};

struct AddRowSums {
  __device__ RowSums identity() const { return {0, 0}; }
  __device__ RowSums operator()(RowSums a, RowSums b) const {
    return {a.w + b.w, a.w_xhat + b.w_xhat};
  }
};

/// Both sums over a group of lanes; tile::reduce_block() finds it by its arguments.
__device__ __forceinline__ RowSums reduce_lanes(RowSums sums, AddRowSums, int lanes = tile::kWarp) {
  return {tile::reduce_lanes(sums.w, tile::Add{}, lanes),
          tile::reduce_lanes(sums.w_xhat, tile::Add{}, lanes)};
}

/// An element of dx, once the sums over its row are known: rstd (w - mean of w - xhat mean of
/// w xhat), with the products of a row's constants computed once.
struct GradientOfX {
  float rstd, of_row, of_xhat;

  template <class T>
  __device__ GradientOfX(const Arguments<T>& a, float row_rstd, RowSums sums)
      : rstd(row_rstd),
        of_row(a.centred ? -row_rstd * (sums.w * a.per_col) : 0.f),
        of_xhat(-row_rstd * (sums.w_xhat * a.per_col)) {}

  __device__ float operator()(float w, float xhat) const {
    return rstd * w + (of_xhat * xhat + of_row);
  }
};

/// What every launcher begins with: checks the arguments, and unless there is nothing to compute
/// calls `launch` with the Arguments. Backward without rows still writes dgamma and dbeta.
template <class Launch>
tile::Status with_arguments(const Problem& problem, const Buffers& buffers, Launch launch) {
  if (tile::Status s = validate(problem, buffers); !s.ok()) return s;
  const bool forward = problem.direction == tile::Direction::forward;
  if (problem.cols == 0 || (forward && problem.rows == 0)) return {};
  return tile::with_element_type(problem.type, [&](auto element) {
    return launch(Arguments<decltype(element)>(problem, buffers));
  });
}

}  // namespace layernorm
