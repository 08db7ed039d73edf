// Forward, step 4: a thread has its columns of four rows.
// Idea: gamma and beta are the same for every row, so a thread with the same columns of four rows
//       reads them once. A butterfly gives each sum to all lanes, though one lane suffices. If
//       lanes give away what they do not need, four sums take 6 shuffles instead of 20.
// Change: for rows of 64 bytes to 4 KiB. A thread has 16 bytes of each of its rows; a row belongs
//         to two to eight warps, or to one or a part of one. mean and rstd of a block's rows are
//         saved together.
// Limit: memory.
#include "four_sums.cuh"
#include "layernorm.hpp"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"
#include "tile/rows.cuh"

namespace layernorm {
namespace {

constexpr int kMinThreads = kRows;    // of a row: a lane for the sum of each
constexpr int kThreadsOfParts = 128;  // of a block if a row's threads are a part of a warp
// Threads of a row at most: 8 warps, whose partial sums, kRows of each warp, are one for each lane
// of a warp.
constexpr int kMaxThreads = tile::kWarp / kRows * tile::kWarp;

// A multiprocessor has registers for 1,024 threads with 64 each: four chunks as floats take 32 of
// them. These threads have 64 KiB of x on their way.
// snippet-begin kernel
template <class T, bool kParts>
__global__ void __launch_bounds__(kMaxThreads, 1024 / kMaxThreads)
    layernorm_four_rows(tile::Rows<const T> x,  // [rows][cols]
                        const T* gamma,         // [cols], or null: all ones
                        const T* beta,          // [cols], or null: all zeros
                        tile::Rows<T> y,        // [rows][cols]
                        float* mean,            // [rows], or null
                        float* rstd,            // [rows], or null
                        std::int64_t rows, std::int64_t cols,
                        float per_col,  // 1 / cols: a division takes ten instructions
                        float eps,
                        bool centred) {  // RMSNorm is not: its mean is 0
  constexpr int kWidth = 16 / sizeof(T);
  using Chunk = tile::Chunk<T, kWidth>;
  __shared__ float sum_smem[tile::kWarp], squares_smem[tile::kWarp];  // [warps][kRows]
  // A thread's rows are as far apart as a block has groups of threads, so that neighbouring groups
  // read neighbouring rows.
  const int apart = kParts ? static_cast<int>(blockDim.y) : 1;
  const std::int64_t first =
      std::int64_t{blockIdx.x} * (kRows * apart) + (kParts ? threadIdx.y : 0);
  const int left = static_cast<int>(min(rows - first, std::int64_t{kRows * apart}));
  const int col = static_cast<int>(threadIdx.x) * kWidth;
  const bool has_columns = col < cols;

  Chunk chunk[kRows];
  // From row to row the address needs one addition, and ptxas keeps it so. The trick by which Rows
  // prevents multiplications would only cost here, 3 to 4 % (docs/notes/04_layernorm.md).
  const T* x_row = x.data + first * x.ld + col;
#pragma unroll
  for (int i = 0; i < kRows; ++i, x_row += apart * x.ld) {
    chunk[i] = Chunk::filled(0);
    if (has_columns && i * apart < left) chunk[i] = Chunk::load(x_row);
  }
  // A lane loads x_0 of one row, and shuffles give it to the others.
  const int threads = static_cast<int>(blockDim.x);  // of a row
  const int lane = static_cast<int>(threadIdx.x) % tile::kWarp;
  float lane_origin = 0;
  if (centred && lane < kRows && lane * apart < left) {
    lane_origin = static_cast<float>(x.data[(first + lane * apart) * x.ld]);
  }
  Chunk gamma_chunk = Chunk::filled(1), beta_chunk = Chunk::filled(0);
  if (has_columns && gamma) gamma_chunk = Chunk::load(gamma + col);
  if (has_columns && beta) beta_chunk = Chunk::load(beta + col);

  // mean = x_0 + sum (x - x_0) / n; row_mean is the second term
  float value[kRows][kWidth], row_mean[kRows] = {}, row_rstd[kRows] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    chunk[i].to_floats(value[i]);
    const int lanes = kParts ? threads : tile::kWarp;
    const float origin = __shfl_sync(tile::kAllLanes, lane_origin, i, lanes);
#pragma unroll
    for (float& v : value[i]) v -= has_columns ? origin : 0;
  }
  if (centred) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (const float v : value[i]) row_mean[i] += v;
    }
    add_up<kParts>(row_mean, threads, sum_smem);
#pragma unroll
    for (float& m : row_mean) m *= per_col;
  }
  // rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (float& v : value[i]) {
      v -= row_mean[i];
      if (has_columns) row_rstd[i] += v * v;
    }
  }
  add_up<kParts>(row_rstd, threads, squares_smem);
  // Neighbouring threads save the statistics of neighbouring rows, before y is on its way to the
  // L2.
  const int saved = static_cast<int>(threadIdx.x);
  float saved_mean = 0, saved_rstd = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    row_rstd[i] = rsqrtf(row_rstd[i] * per_col + eps);
    if (saved == i) saved_mean = lane_origin + row_mean[i], saved_rstd = row_rstd[i];
  }
  if (saved < kRows && saved * apart < left) {
    if (mean) mean[first + saved * apart] = saved_mean;
    if (rstd) rstd[first + saved * apart] = saved_rstd;
  }

  // y = gamma xhat + beta
  float weight[kWidth], shift[kWidth];
  gamma_chunk.to_floats(weight);
  beta_chunk.to_floats(shift);
  T* y_row = y.data + first * y.ld + col;
#pragma unroll
  for (int i = 0; i < kRows; ++i, y_row += apart * y.ld) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[i][e] = weight[e] * (value[i][e] * row_rstd[i]) + shift[e];
    }
    if (has_columns && i * apart < left) Chunk::from_floats(value[i]).store(y_row);
  }
}
// snippet-end kernel

/// Chunks of 16 bytes in a row.
std::int64_t chunks_of(const ForwardProblem& p) {
  return p.cols * static_cast<std::int64_t>(tile::size_bytes(p.type)) / 16;
}
}  // namespace

tile::Status takes_four_rows(const ForwardProblem& p, const ForwardBuffers& b,
                             const tile::Device&) {
  TILE_TRY(check_chunks(p, b));
  const std::int64_t chunks = chunks_of(p);
  if (chunks >= kMinThreads && chunks <= kMaxThreads) return {};
  return tile::unsupported("cols", std::to_string(p.cols) + " are not 64 bytes to 4 KiB");
}

tile::Status four_rows(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  const std::int64_t chunks = chunks_of(p);
  const bool parts = chunks <= tile::kWarp;
  unsigned threads = parts ? kMinThreads : tile::kWarp;
  while (threads < chunks) threads += parts ? threads : tile::kWarp;
  const unsigned groups = parts ? kThreadsOfParts / threads : 1;
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", p.rows, static_cast<std::int64_t>(kRows) * groups, &blocks));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    auto launch = [&](auto kernel_parts) {
      return tile::launch(
          layernorm_four_rows<T, kernel_parts>, "layernorm_four_rows", blocks,
          dim3(threads, groups), 0, stream, tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
          static_cast<const T*>(b.gamma), static_cast<const T*>(b.beta),
          tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, b.mean, b.rstd, p.rows, p.cols,
          static_cast<float>(1 / static_cast<double>(p.cols)), p.eps, p.norm == Norm::layer);
    };
    return parts ? launch(std::true_type{}) : launch(std::false_type{});
  });
}

}  // namespace layernorm
