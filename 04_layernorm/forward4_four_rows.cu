// Forward, step 4: a thread has its columns of four rows.
// Idea: gamma and beta are the same for every row, so that a thread with the same columns of four
//       rows reads them once. A shuffle takes as long for a number that is needed as for one that
//       is not: the sums of four rows are added up together, in fewer shuffles than four sums.
// Change: for rows of 64 bytes to 4 KiB. A thread has 16 bytes of each of its rows; a row belongs
//         to two to eight warps, or to a part of one. mean and rstd of a block's rows are saved
//         together. Where chunks of 16 bytes do not fill a row, every eighth row (of fp32 every
//         fourth) begins in the same way, and these are a thread's rows.
// Limit: memory.
#include <algorithm>

#include "four_sums.cuh"
#include "layernorm.hpp"
#include "tile/basics.cuh"
#include "tile/host/chunks.hpp"
#include "tile/host/launch.hpp"
#include "tile/row_edges.cuh"

namespace layernorm {
namespace {

constexpr int kMinThreads = kRows;    // of a row: a lane for the sum of each
constexpr int kThreadsOfParts = 128;  // of a block if a row's threads are a part of a warp
// Threads of a row at most: then the partial sums of its warps, kRows of each, are one for each
// lane.
constexpr int kMaxThreads = tile::kWarp / kRows * tile::kWarp;

/// Loads a thread's chunk of each of its rows, from column `col` on; 0 where there is none.
template <class T, int kWidth>
__device__ __forceinline__ void load_rows(tile::Rows<const T> x, std::int64_t first, int apart,
                                          int left, std::int64_t rows, std::int64_t cols, int col,
                                          bool is_end, tile::Chunk<T, kWidth> (&chunk)[kRows]) {
  using Chunk = tile::Chunk<T, kWidth>;
  // From row to row the address needs one addition, and ptxas keeps it so. The trick by which Rows
  // prevents multiplications would only cost here, 3 to 4 % (docs/notes/04_layernorm.md).
  const T* x_row = x.data + first * x.ld + col;
  // An end is loaded with its neighbour's. But before the first row and after the last one there
  // may be nothing, and what lies between rows is not the kernel's to read.
  const bool has_neighbours = x.ld == cols && first > 0 && first + (kRows - 1) * apart < rows - 1;
  const bool by_element = is_end && !has_neighbours;
#pragma unroll
  for (int i = 0; i < kRows; ++i, x_row += apart * x.ld) {
    chunk[i] = Chunk::filled(0);
    if (col < cols && i * apart < left && !by_element) chunk[i] = Chunk::load(x_row);
  }
  if (!by_element) return;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i * apart >= left) break;
    chunk[i] = tile::load_edge<T, kWidth>(x[first + i * apart], col, cols, 0);
  }
}

// A multiprocessor has registers for 1,024 threads with 64 each: four chunks as floats take 32 of
// them. These threads have 64 KiB of x on their way. Rows that chunks do not fill (not kWhole)
// need more registers, and have 48 KiB.
// snippet-begin kernel
template <class T, bool kParts, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads, (kWhole ? 1024 : 768) / kMaxThreads)
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
  // read neighbouring rows; or so far that all begin alike, with as many groups in several blocks.
  const int groups = kParts ? static_cast<int>(blockDim.y) : 1;
  const int apart = kWhole ? groups : max(groups, kWidth);
  const int blocks = kWhole ? 1 : apart / groups;  // that share their rows
  const std::int64_t first = std::int64_t{blockIdx.x / blocks} * (kRows * apart) +
                             blockIdx.x % blocks * groups + (kParts ? threadIdx.y : 0);
  const int left = static_cast<int>(min(rows - first, std::int64_t{kRows * apart}));
  // Chunks begin where 16 bytes of memory do: so many columns before the row.
  const int lead = kWhole ? 0 : tile::misalignment(x[first]);
  const int col = static_cast<int>(threadIdx.x) * kWidth - lead;
  const bool has_columns = col < cols;
  // A row's ends have some columns of a chunk: those are kept, and others become 0.
  const bool is_end = !kWhole && has_columns && (col < 0 || col + kWidth > cols);
  unsigned kept[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) kept[e] = col + e >= 0 && col + e < cols ? ~0u : 0;
  const auto keep = [&](float(&value)[kWidth]) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[e] = __uint_as_float(__float_as_uint(value[e]) & kept[e]);
    }
  };

  Chunk chunk[kRows];
  load_rows(x, first, apart, left, rows, cols, col, is_end, chunk);
  // A lane loads x_0 of one row, and shuffles give it to the others.
  const int lane = static_cast<int>(threadIdx.x) % tile::kWarp;
  float lane_origin = 0;
  if (centred && lane < kRows && lane * apart < left) {
    lane_origin = static_cast<float>(x.data[(first + lane * apart) * x.ld]);
  }
  Chunk gamma_chunk[1] = {Chunk::filled(1)}, beta_chunk[1] = {Chunk::filled(0)};
  const auto load = [&](const T* values, Chunk(&to)[1]) {
    if (!has_columns || !values) return;
    if constexpr (kWhole) {
      to[0] = Chunk::load(values + col);
    } else {
      tile::load_anywhere<T, kWidth>(values, col, 0, cols, 0, to);
    }
  };
  load(gamma, gamma_chunk);
  load(beta, beta_chunk);

  // mean = x_0 + sum (x - x_0) / n; row_mean is the second term
  float value[kRows][kWidth], row_mean[kRows] = {}, row_rstd[kRows] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    chunk[i].to_floats(value[i]);
    const int lanes = kParts ? static_cast<int>(blockDim.x) : tile::kWarp;
    const float origin = __shfl_sync(tile::kAllLanes, lane_origin, i, lanes);
#pragma unroll
    for (float& v : value[i]) v -= has_columns ? origin : 0;
    if (is_end) keep(value[i]);
  }
  if (centred) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (const float v : value[i]) row_mean[i] += v;
    }
    add_up<kParts>(row_mean, sum_smem);
#pragma unroll
    for (float& m : row_mean) m *= per_col;
  }
  // rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[i][e] -= row_mean[i];
      if (has_columns && (!is_end || kept[e])) row_rstd[i] += value[i][e] * value[i][e];
    }
  }
  add_up<kParts>(row_rstd, squares_smem);
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
  gamma_chunk[0].to_floats(weight);
  beta_chunk[0].to_floats(shift);
  T* y_row = y.data + first * y.ld + col;
#pragma unroll
  for (int i = 0; i < kRows; ++i, y_row += apart * y.ld) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[i][e] = weight[e] * (value[i][e] * row_rstd[i]) + shift[e];
    }
    if (!has_columns || i * apart >= left) continue;
    const Chunk result = Chunk::from_floats(value[i]);
    if (is_end) {
      tile::store_end(y_row, result, col < 0 ? col + kWidth : static_cast<int>(cols) - col,
                      col < 0);
    } else {
      result.store(y_row);
    }
  }
}
// snippet-end kernel

/// Chunks of 16 bytes that a row of x lies in, at most.
std::int64_t chunks_of(const ForwardProblem& p, bool whole) {
  const auto width = static_cast<std::int64_t>(16 / tile::size_bytes(p.type));
  return whole ? p.cols / width : (p.cols + 2 * width - 2) / width;
}
}  // namespace

tile::Status takes_four_rows(const ForwardProblem& p, const ForwardBuffers& b,
                             const tile::Device&) {
  const bool whole = check_chunks(p, b).ok();
  if (!whole) {
    TILE_TRY(tile::check_alike(p.type, b.x, p.ldx, "y", b.y, "ldy", p.ldy));
    if (b.y && b.y == b.x) {
      return tile::unsupported("y", "is x, in which neighbours of a row are read");
    }
  }
  const std::int64_t chunks = chunks_of(p, whole);
  if (chunks >= kMinThreads && chunks <= kMaxThreads) return {};
  return tile::unsupported("cols", std::to_string(p.cols) + " are not 64 bytes to 4 KiB");
}

tile::Status four_rows(const ForwardProblem& p, const ForwardBuffers& b, void* stream) {
  const bool whole = check_chunks(p, b).ok();
  const std::int64_t chunks = chunks_of(p, whole);
  const bool parts = chunks <= tile::kWarp;
  unsigned threads = parts ? kMinThreads : tile::kWarp;
  while (threads < chunks) threads += parts ? threads : tile::kWarp;
  const unsigned groups = parts ? kThreadsOfParts / threads : 1;
  const auto width = static_cast<unsigned>(16 / tile::size_bytes(p.type));
  const unsigned apart = whole ? groups : std::max(groups, width);
  const std::int64_t each = kRows * apart, sharing = apart / groups;
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", (p.rows / each + (p.rows % each != 0)) * sharing, 1, &blocks));
  return tile::with_element_type(p.type, [&](auto element) {
    using T = decltype(element);
    auto launch = [&](auto kernel_parts, auto kernel_whole) {
      return tile::launch(
          layernorm_four_rows<T, kernel_parts, kernel_whole>, "layernorm_four_rows", blocks,
          dim3(threads, groups), 0, stream, tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
          static_cast<const T*>(b.gamma), static_cast<const T*>(b.beta),
          tile::Rows<T>{static_cast<T*>(b.y), p.ldy}, b.mean, b.rstd, p.rows, p.cols,
          static_cast<float>(1 / static_cast<double>(p.cols)), p.eps, p.norm == Norm::layer);
    };
    constexpr std::true_type yes{};
    constexpr std::false_type no{};
    if (whole) return parts ? launch(yes, yes) : launch(no, yes);
    return parts ? launch(yes, no) : launch(no, no);
  });
}

}  // namespace layernorm
