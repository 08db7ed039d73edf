// The backward pass of bias and activation, in one pass over dy and x: dx = dy activation'(x), and
// the sums of its columns, the gradient of the bias. A second kernel adds up the sums of all groups
// of rows. There are no atomics, so that every run has the same bits.
#include "activation.hpp"
#include "tile/host/launch.hpp"
#include "tile/rows.cuh"

namespace matmul {
namespace {

constexpr int kWarps = 8;     // of a block; each takes a row at a time
constexpr int kInFlight = 4;  // rows that a warp loads at once

// snippet-begin slope
/// gelu(x) = x s with s = 1 / (1 + exp(-w)), where w = 2 sqrt(2/pi) (x + 0.044715 x^3). As
/// ds/dw = s (1 - s),
///     gelu'(x) = s + s (1 - s) x w'
/// With e = exp(-|w|), which cannot overflow, s (1 - s) is e / (1 + e)^2 for either sign of x, and
/// 1 - s loses no digits. From |x| = 16 on e is 0; an infinite x w' would make a NaN of it.
__device__ inline float gelu_slope(float x) {
  const float from = fabsf(x) > 16.f ? 16.f : fabsf(x);  // a NaN stays one
  const float square = from * from;
  const float w = from * (1.5957691f + 0.07135482f * square);  // 2 sqrt(2/pi) = 1.5957…
  const float x_slope = from * (1.5957691f + 0.21406445f * square);
  const float e = __expf(-w), inverse = __fdividef(1.f, 1.f + e);
  const float curved = e * inverse * inverse * x_slope;
  return x < 0 ? e * inverse - curved : inverse + curved;
}

template <Activation kActivation>
__device__ float slope(float x) {
  if constexpr (kActivation == Activation::gelu) return gelu_slope(x);
  return x > 0 ? 1.f : x <= 0 ? 0.f : x;  // relu'(0) = 0, and a NaN stays one
}
// snippet-end slope

// snippet-begin kernel
/// A block has 32 kWidth columns, of which each thread has kWidth, and the rows of a group, which
/// lie apart: its warps walk over them.
template <class T, int kWidth, Activation kActivation>
__global__ void __launch_bounds__(kWarps* tile::kWarp, 4)
    matmul_activate_backward(tile::Rows<const T> x,   // [rows][cols], read for an activation only
                             tile::Rows<const T> dy,  // [rows][cols]
                             tile::Rows<T> dx,        // [rows][cols], or null
                             float* sums,             // [groups][cols], or null
                             std::int64_t rows, std::int64_t cols, std::int64_t groups) {
  using Chunk = tile::Chunk<T, kWidth>;
  constexpr int kBlockCols = tile::kWarp * kWidth;
  __shared__ float sums_smem[kWarps][kWidth][tile::kWarp + tile::kWarp / kWidth];
  const std::int64_t blocks_of_group = (cols + kBlockCols - 1) / kBlockCols;
  const std::int64_t group = blockIdx.x / blocks_of_group;
  const std::int64_t first_col = blockIdx.x % blocks_of_group * kBlockCols;
  const std::int64_t col = first_col + threadIdx.x * kWidth;
  const auto lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const std::int64_t apart = groups * kWarps;  // from one row of the thread to the next
  float sum[kWidth] = {};
  for (std::int64_t row = group * kWarps + warp; row < rows && col < cols;
       row += kInFlight * apart) {
    // Of a row that does not exist, the first one in its place, which is not used.
    const auto exists = [&](int i) { return row + i * apart < rows; };
    Chunk x_chunk[kInFlight], dy_chunk[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t at = exists(i) ? row + i * apart : row;
      dy_chunk[i] = Chunk::load(dy[at] + col);
      if constexpr (kActivation != Activation::none) x_chunk[i] = Chunk::load(x[at] + col);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (!exists(i)) break;
      float value[kWidth];
      dy_chunk[i].to_floats(value);
      if constexpr (kActivation != Activation::none) {
        float argument[kWidth];
        x_chunk[i].to_floats(argument);
        // Rounded: one fma with the sum would give dbias other bits where dx is not wanted.
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          value[e] = __fmul_rn(value[e], slope<kActivation>(argument[e]));
        }
      }
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] += value[e];
      if (dx.data) Chunk::from_floats(value).store(dx[row + i * apart] + col);
    }
  }
  if (!sums) return;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) sums_smem[warp][e][lane] = sum[e];
  __syncthreads();  // the sums of all warps are there
  const int mine = warp * tile::kWarp + lane;
  if (mine >= kBlockCols || first_col + mine >= cols) return;
  float of_block = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) of_block += sums_smem[i][mine % kWidth][mine / kWidth];
  sums[group * cols + first_col + mine] = of_block;
}
// snippet-end kernel

constexpr int kSumWarps = 32;
constexpr int kSumsInFlight = 8;

/// dbias[j] = the sum over all groups. A block has 32 columns, and each of its warps every 32nd
/// group.
template <class T>
__global__ void __launch_bounds__(kSumWarps* tile::kWarp)
    matmul_sum_groups(const float* sums,  // [groups][cols]
                      T* dbias,           // [cols]
                      std::int64_t groups, std::int64_t cols) {
  __shared__ float sums_smem[kSumWarps][tile::kWarp];
  const auto lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const std::int64_t col = std::int64_t{blockIdx.x} * tile::kWarp + lane;
  float sum = 0;
  for (std::int64_t first = warp; first < groups && col < cols;
       first += kSumsInFlight * kSumWarps) {
    float part[kSumsInFlight];
#pragma unroll
    for (int i = 0; i < kSumsInFlight; ++i) {
      const std::int64_t group = first + i * kSumWarps;
      part[i] = group < groups ? sums[group * cols + col] : 0;
    }
#pragma unroll
    for (int i = 0; i < kSumsInFlight; ++i) sum += part[i];
  }
  sums_smem[warp][lane] = sum;
  __syncthreads();  // the sums of all warps are there
  if (warp != 0 || col >= cols) return;
  sum = 0;
  for (int i = 0; i < kSumWarps; ++i) sum += sums_smem[i][lane];
  dbias[col] = static_cast<T>(sum);
}

template <class T, int kWidth>
tile::Status launch(const ActivateBackwardProblem& p, const ActivateBackwardBuffers& b,
                    void* stream) {
  const tile::Rows<const T> x{static_cast<const T*>(b.x), p.ldx},
      dy{static_cast<const T*>(b.dy), p.lddy};
  const tile::Rows<T> dx{static_cast<T*>(b.dx), p.lddx};
  auto* sums = b.dbias ? static_cast<float*>(b.workspace) : nullptr;
  const std::int64_t groups = row_groups(p), block_cols = tile::kWarp * kWidth;
  unsigned blocks = 0, sum_blocks = 0;
  TILE_TRY(tile::blocks_for("cols", groups * ((p.cols - 1) / block_cols + 1), 1, &blocks));
  TILE_TRY(tile::blocks_for("cols", p.cols, tile::kWarp, &sum_blocks));
  const auto launch_with = [&](auto* kernel) {
    return tile::launch(kernel, "matmul_activate_backward", blocks, dim3(tile::kWarp, kWarps), 0,
                        stream, x, dy, dx, sums, p.rows, p.cols, groups);
  };
  if (b.dx || b.dbias) {
    switch (p.activation) {
      case Activation::none:
        TILE_TRY(launch_with(matmul_activate_backward<T, kWidth, Activation::none>));
        break;
      case Activation::relu:
        TILE_TRY(launch_with(matmul_activate_backward<T, kWidth, Activation::relu>));
        break;
      case Activation::gelu:
        TILE_TRY(launch_with(matmul_activate_backward<T, kWidth, Activation::gelu>));
        break;
    }
  }
  if (!b.dbias) return {};
  return tile::launch(matmul_sum_groups<T>, "matmul_sum_groups", sum_blocks,
                      dim3(tile::kWarp, kSumWarps), 0, stream, sums, static_cast<T*>(b.dbias),
                      groups, p.cols);
}

}  // namespace

tile::Status activate_backward(const ActivateBackwardProblem& p, const ActivateBackwardBuffers& b,
                               void* stream) {
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    constexpr int kWidth = tile::Vector<T>::kCount;
    const auto has_chunks = [](const void* data, std::int64_t ld) {
      return !data || (reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && ld % kWidth == 0);
    };
    const void* x = p.activation == Activation::none ? nullptr : b.x;
    const bool in_chunks = p.cols % kWidth == 0 && has_chunks(x, p.ldx) &&
                           has_chunks(b.dy, p.lddy) && has_chunks(b.dx, p.lddx);
    return in_chunks ? launch<T, kWidth>(p, b, stream) : launch<T, 1>(p, b, stream);
  });
}

}  // namespace matmul
