// Forward, step 2: mean and variance in one pass.
// Idea: count, mean and squared distances can be kept up to date with every number (Welford 1962),
//       and those of two parts of a row can be merged (Chan, Golub and LeVeque 1979).
// Change: one loop and one reduction of triples instead of two of each. The sums of x and x^2 would
//         need less arithmetic, but their difference may be mostly rounding error.
// Limit: memory. Every row is read twice, and each load fetches one element.
#include "moments.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"

namespace layernorm {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
template <class T>
__global__ void layernorm_welford(tile::Rows<const T> x,  // [rows][cols]
                                  const T* gamma,         // [cols], or null: all ones
                                  const T* beta,          // [cols], or null: all zeros
                                  tile::Rows<T> y,        // [rows][cols]
                                  float* mean,            // [rows], or null
                                  float* rstd,            // [rows], or null
                                  std::int64_t cols, float eps,
                                  bool centred) {  // RMSNorm is not: its mean is 0
  __shared__ Moments seen_smem[kThreads / tile::kWarp];
  __shared__ float squares_smem[kThreads / tile::kWarp];
  const std::int64_t row = blockIdx.x;
  const T* x_row = x[row];

  // mean = x_0 + sum (x - x_0) / n and squares = sum (x - mean)^2, at once
  const float origin = centred ? static_cast<float>(x_row[0]) : 0;
  float row_mean = 0, squares = 0;
  if (centred) {
    const MergeMoments merge;
    Moments seen = merge.identity();
    for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
      seen = merge(seen, static_cast<float>(x_row[col]) - origin);
    }
    seen = tile::reduce_block(seen, merge, seen_smem);
    row_mean = seen.mean;
    squares = seen.squares;
  } else {
    for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
      squares += static_cast<float>(x_row[col]) * static_cast<float>(x_row[col]);
    }
    squares = tile::reduce_block(squares, tile::Add{}, squares_smem);
  }
  const float row_rstd = rsqrtf(squares / static_cast<float>(cols) + eps);
  // y = gamma xhat + beta
  for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
    const float xhat = (static_cast<float>(x_row[col]) - origin - row_mean) * row_rstd;
    const float weight = gamma ? static_cast<float>(gamma[col]) : 1;
    const float shift = beta ? static_cast<float>(beta[col]) : 0;
    y[row][col] = static_cast<T>(weight * xhat + shift);
  }
  if (threadIdx.x != 0) return;
  if (mean) mean[row] = origin + row_mean;
  if (rstd) rstd[row] = row_rstd;
}
// snippet-end kernel

}  // namespace

tile::Status welford(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", p.rows, 1, &blocks));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    return tile::launch(layernorm_welford<T>, "layernorm_welford", blocks, kThreads, 0, stream,
                        tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
                        static_cast<const T*>(b.gamma), static_cast<const T*>(b.beta),
                        tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, b.mean, b.rstd, p.cols, p.eps,
                        p.norm == Norm::layer);
  });
}

}  // namespace layernorm
