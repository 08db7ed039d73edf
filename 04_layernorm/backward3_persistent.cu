// Backward, step 3: a block walks over its rows.
// Idea: a thread that keeps its columns for many rows keeps their sums of dgamma and dbeta in
//       registers. Each block adds up its rows while it computes their dx, and writes its sums
//       once.
// Change: only three tensors move. The grid has as many blocks as the card holds; while a block
//         works on a row, cp.async copies the next two. A row of up to 1,024 elements belongs to a
//         warp, which then waits for no other warp.
// Limit: memory, for rows of up to 8,192 elements, or 16,384 of 2 bytes.
#include "layernorm_backward.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"

namespace layernorm {
namespace {

/// dx = rstd (w - mean of w - xhat mean of w xhat). kKept: w and xhat are those that add() left.
template <bool kKept, class T>
__device__ __forceinline__ void write_dx(const RowSlices<T>& row, const ThreadColumns<T>& mine,
                                         typename RowSlices<T>::Floats& w,
                                         typename RowSlices<T>::Floats& xhat, RowSums sums,
                                         float per_col, bool centred, T* dx, int cols) {
  constexpr int kWidth = RowSlices<T>::kWidth;
  const float of_row = centred ? -row.rstd * (sums.w * per_col) : 0;
  const float of_xhat = -row.rstd * (sums.w_xhat * per_col);
#pragma unroll
  for (int i = 0; i < RowSlices<T>::kChunks; ++i) {
    if (row.x.column(i) >= cols) continue;
    float result[kWidth];
    if constexpr (!kKept) mine.load(row, i, w[i], xhat[i], result);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if constexpr (!kKept) xhat[i][e] *= row.rstd;
      result[e] = row.rstd * w[i][e] + (of_xhat * xhat[i][e] + of_row);
    }
    tile::Chunk<T, kWidth>::from_floats(result).store(dx + row.x.column(i));
  }
}

/// Writes a thread's sums of dgamma and dbeta.
template <class T>
__device__ __forceinline__ void write_sums(const ThreadColumns<T>& mine,
                                           float* dgamma,  // [cols]
                                           float* dbeta,   // [cols]
                                           tile::ChunkColumns<RowSlices<T>::kWidth> columns,
                                           int cols) {
  auto store = [](float* to, const float* sums) {
    *reinterpret_cast<float4*>(to) = make_float4(sums[0], sums[1], sums[2], sums[3]);
  };
#pragma unroll
  for (int i = 0; i < RowSlices<T>::kChunks; ++i) {
    if (columns.column(i) >= cols) continue;
#pragma unroll
    for (int e = 0; e < RowSlices<T>::kWidth; e += 4) {
      store(dgamma + columns.column(i) + e, &mine.dgamma[i][e]);
      store(dbeta + columns.column(i) + e, &mine.dbeta[i][e]);
    }
  }
}

// snippet-begin kernel
template <class T, int kMaxThreads, bool kRowsOfWarps>
__global__ void __launch_bounds__(kMaxThreads)
    layernorm_backward_persistent(tile::Rows<const T> x,   // [rows][cols]
                                  tile::Rows<const T> dy,  // [rows][cols]
                                  const T* gamma,          // [cols], or null: all ones
                                  const float* mean,       // [rows], or null: zeros
                                  const float* rstd,       // [rows]
                                  tile::Rows<T> dx,        // [rows][cols]
                                  float* dgamma_sums,      // [partial sums][cols]
                                  float* dbeta_sums,       // [partial sums][cols]
                                  std::int64_t rows, std::int64_t all_cols,
                                  float per_col) {  // 1 / cols
  constexpr int kWarps = kMaxThreads / tile::kWarp;
  using Queue = RowQueue<T, kRowsAhead<kMaxThreads>>;
  extern __shared__ __align__(16) unsigned char rows_smem[];  // of the queue, or of one a warp
  // Two of them: a warp that is a row ahead must not write where a slow one still reads. It cannot
  // be two rows ahead, because of the barrier in between.
  __shared__ RowSums sums_smem[2][kWarps];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / tile::kWarp;
  const auto cols = static_cast<int>(all_cols);
  // Who am I? A thread of a block that has a row, or a lane of a warp that has one.
  const tile::ChunkColumns<RowSlices<T>::kWidth> columns{
      kRowsOfWarps ? thread % tile::kWarp : thread,
      kRowsOfWarps ? tile::kWarp : static_cast<int>(blockDim.x)};
  const std::int64_t first = kRowsOfWarps ? std::int64_t{blockIdx.x} * kWarps + warp : blockIdx.x;
  const std::int64_t stride = kRowsOfWarps ? std::int64_t{gridDim.x} * kWarps : gridDim.x;

  unsigned char* const smem = rows_smem + (kRowsOfWarps ? warp * Queue::shared_bytes(32) : 0);
  Queue queue{x[first], dy[first], stride * x.ld, stride * dy.ld, mean,    rstd,
              rows,     first,     stride,        cols,           columns, smem};
  queue.start();
  ThreadColumns<T> mine(gamma, cols, columns);
  T* dx_row = dx[first];
  const std::int64_t dx_step = stride * dx.ld;
  unsigned turn = 0;
  for (std::int64_t row = first; row < rows; row += stride, ++turn) {
    const RowSlices<T> slices = queue.next();
    T* to = dx_row;
    dx_row += dx_step;
    // dgamma += dy xhat, dbeta += dy, and the sums of w = gamma dy and of w xhat over the row
    float w[slices.kChunks][slices.kWidth], xhat[slices.kChunks][slices.kWidth];
    RowSums sums = mine.add(slices, w, xhat);
    sums = kRowsOfWarps ? reduce_lanes(sums, AddRowSums{})
                        : tile::reduce_block(sums, AddRowSums{}, sums_smem[turn % 2]);
    // dx = rstd (w - mean of w - xhat mean of w xhat)
    write_dx<kMaxThreads == kKeeping>(slices, mine, w, xhat, sums, per_col, mean != nullptr, to,
                                      cols);
  }

  dgamma_sums += blockIdx.x * all_cols;
  dbeta_sums += blockIdx.x * all_cols;
  if constexpr (!kRowsOfWarps) {
    write_sums(mine, dgamma_sums, dbeta_sums, columns, cols);
  } else {
    // The warps' sums are added up here, so that the second stage has one of each block to read.
    tile::ptx::cp_async_wait_all();  // also copies of rows that do not exist: they write zeros
    __syncthreads();                 // no warp reads its rows any more
    auto* dgamma_smem = reinterpret_cast<float*>(rows_smem);  // [kWarps][cols]
    float* dbeta_smem = dgamma_smem + kWarps * cols;          // [kWarps][cols]
    write_sums(mine, dgamma_smem + warp * cols, dbeta_smem + warp * cols, columns, cols);
    __syncthreads();  // the sums of all warps are there
    for (int col = thread; col < cols; col += kMaxThreads) {
      float dgamma = 0, dbeta = 0;
      for (int i = 0; i < kWarps; ++i) {
        dgamma += dgamma_smem[i * cols + col];
        dbeta += dbeta_smem[i * cols + col];
      }
      dgamma_sums[col] = dgamma;
      dbeta_sums[col] = dbeta;
    }
  }
}
// snippet-end kernel

}  // namespace

tile::Status takes_persistent(const BackwardProblem& p, const BackwardBuffers& b,
                              const tile::Device& device) {
  TILE_TRY(check_chunks(p, b));
  if (block_plan(p, device).fits) return {};
  return tile::unsupported("cols", std::to_string(p.cols) + " are more than a block holds");
}

tile::Status persistent(const BackwardProblem& p, const BackwardBuffers& b, void* stream) {
  if (p.rows == 0) return sum_partial_sums(p, b, 0, stream);
  const tile::Device& device = tile::device();
  const BlockPlan plan = block_plan(p, device);
  // As many blocks as the card holds at one time: a multiprocessor has registers for max_threads.
  const std::int64_t each = std::clamp<std::int64_t>(
      device.shared_bytes_of_multiprocessor / (plan.shared_bytes + BlockPlan::kStaticBytes), 1,
      plan.max_threads / plan.threads);
  constexpr int kWarps = kKeeping / tile::kWarp;
  const std::int64_t needed = plan.rows_of_warps ? (p.rows + kWarps - 1) / kWarps : p.rows;
  const std::int64_t blocks =
      std::min({device.multiprocessors * each, needed, max_partial_sums(p.cols)});
  auto* sums = static_cast<float*>(b.workspace);
  const auto launch_of_type = [&](auto element) -> tile::Status {
    using T = decltype(element);
    const auto launch = [&](auto max_threads, auto rows_of_warps) {
      constexpr int kMaxThreads = max_threads;
      constexpr bool kRowsOfWarps = rows_of_warps;
      return tile::launch(layernorm_backward_persistent<T, kMaxThreads, kRowsOfWarps>,
                          "layernorm_backward_persistent", static_cast<unsigned>(blocks),
                          plan.threads, static_cast<std::size_t>(plan.shared_bytes), stream,
                          tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
                          tile::Rows<const T>{static_cast<const T*>(b.dy), p.lddy},
                          static_cast<const T*>(b.gamma), b.mean, b.rstd,
                          tile::Rows<T>{static_cast<T*>(b.dx), p.lddx}, sums,
                          sums + blocks * p.cols, p.rows, p.cols,
                          static_cast<float>(1 / static_cast<double>(p.cols)));
    };
    constexpr std::integral_constant<int, kKeeping> keeping{};
    if (plan.rows_of_warps) return launch(keeping, std::true_type{});
    if constexpr (sizeof(T) == 2) {
      if (plan.max_threads == kRecomputing) {
        return launch(std::integral_constant<int, kRecomputing>{}, std::false_type{});
      }
    }
    return launch(keeping, std::false_type{});
  };
  TILE_TRY(tile::with_element_type(p.type, launch_of_type));
  return sum_partial_sums(p, b, blocks, stream);
}

}  // namespace layernorm
