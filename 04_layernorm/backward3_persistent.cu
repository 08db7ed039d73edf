// Backward, step 3: a block walks over its rows.
// Idea: a thread that keeps its columns for many rows keeps their sums of dgamma and dbeta in
//       registers. Each block adds up its rows while it computes their dx, and writes its sums
//       once.
// Change: only three tensors move. The grid has as many blocks as the card holds; while a block
//         works on a row, cp.async copies the next two. A row of up to 1,024 elements belongs to a
//         warp or to a part of one, so no warp waits for another. A row that begins within a chunk
//         is copied with the end of the row before it, which the thread masks.
// Limit: memory, for rows of up to 12,288 elements, or 16,384 of 2 bytes.
#include "layernorm_backward.cuh"
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"

namespace layernorm {
namespace {

// snippet-begin kernel
template <class T, int kShape, bool kWhole>
__global__ void __launch_bounds__(kRowShapes[kShape].threads, kRowShapes[kShape].blocks)
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
  constexpr RowShape kRow = kRowShapes[kShape];
  constexpr bool kRowsOfWarps = kRow.lanes > 0;
  constexpr int kLanes = kRowsOfWarps ? kRow.lanes : tile::kWarp;  // of a warp that share a row
  constexpr bool kParts = kLanes < tile::kWarp;
  using Queue = RowQueue<T, kRow.ahead, kRow.elements, kWhole>;
  using Slices = typename Queue::Slices;
  extern __shared__ __align__(16) unsigned char rows_smem[];  // [blockDim.y] queues
  // Two of them: a warp that is a row ahead must not write where a slow one still reads. It cannot
  // be two rows ahead, because of the barrier in between.
  __shared__ RowSums sums_smem[2][kRow.threads / tile::kWarp];
  const auto cols = static_cast<int>(all_cols);
  // Who am I? A thread of a block that has a row; or a lane of a warp, or of a part of one, that
  // has a row of its own, beside the rows of the block's other warps.
  const int threads = kRowsOfWarps ? kLanes : static_cast<int>(blockDim.x);
  const int groups = kRowsOfWarps ? static_cast<int>(blockDim.y) : 1;
  const int group = kRowsOfWarps ? static_cast<int>(threadIdx.y) : 0;
  // ptxas knows that a lane is less than 32, and adds constants to one address (5 % faster).
  const int thread = static_cast<int>(threadIdx.x);
  const tile::ChunkColumns<Slices::kWidth> columns{kRowsOfWarps ? thread % threads : thread,
                                                   threads};
  const std::int64_t first = std::int64_t{blockIdx.x} * groups + group;
  const std::int64_t stride = std::int64_t{gridDim.x} * groups;
  // The stride is a multiple of the period of such beginnings: all rows of a thread begin alike.
  const int lead = kWhole ? 0 : tile::misalignment(x[first]);

  unsigned char* const smem = rows_smem + group * Queue::shared_bytes(threads);
  // threadIdx.y is 0 in a block that has one row, but ptxas does not know that. If it did, it would
  // load the statistics of a row into uniform registers, for which all threads wait on the spot: a
  // third of the time. (With 32 elements there are no registers left for addresses of their own.)
  const unsigned apart = kRowsOfWarps || kRow.elements == 32 ? 0 : threadIdx.y;
  Queue queue{x[first] - lead,
              dy[first] - lead,
              stride * x.ld,
              stride * dy.ld,
              mean ? mean + apart : nullptr,
              rstd + apart,
              rows,
              first,
              stride,
              lead + cols,
              columns,
              smem};
  queue.start();
  ThreadColumns<T, kRow.elements, kWhole, kLanes> mine(gamma, cols, columns, lead);
  T* dx_row = dx[first] - lead;
  const std::int64_t dx_step = stride * dx.ld;
  unsigned turn = 0;
  // The parts of a warp iterate together: a part that has no row left has zeros.
  for (std::int64_t row = first; row - (kParts ? group : 0) < rows; row += stride, ++turn) {
    const Slices slices = queue.next();
    T* to = dx_row;
    dx_row += dx_step;
    // dgamma += dy xhat, dbeta += dy, and the sums of w = gamma dy and of w xhat over the row
    float w[slices.kChunks][slices.kWidth], xhat[slices.kChunks][slices.kWidth];
    RowSums sums = mine.add(slices, w, xhat);
    sums = kRowsOfWarps ? reduce_lanes(sums, AddRowSums{}, threads)
                        : tile::reduce_block(sums, AddRowSums{}, sums_smem[turn % 2]);
    // dx = rstd (w - mean of w - xhat mean of w xhat)
    const int end = kParts && row >= rows ? 0 : lead + cols;
    mine.template write_dx<kRow.keeps>(slices, w, xhat, sums, per_col, mean != nullptr, lead, end,
                                       to);
  }

  dgamma_sums += blockIdx.x * all_cols;
  dbeta_sums += blockIdx.x * all_cols;
  if constexpr (!kRowsOfWarps) {
    mine.write_sums(dgamma_sums, dbeta_sums, columns, cols, lead);
  } else {
    // The groups' sums are added up here, so that the second stage reads only one from each block.
    tile::ptx::cp_async_wait_all();  // also copies of rows that do not exist: they write zeros
    __syncthreads();                 // no warp reads its rows any more
    auto* dgamma_smem = reinterpret_cast<float*>(rows_smem);  // [groups][cols]
    float* dbeta_smem = dgamma_smem + groups * cols;          // [groups][cols]
    mine.write_sums(dgamma_smem + group * cols, dbeta_smem + group * cols, columns, cols, lead);
    __syncthreads();  // the sums of all groups are there
    for (int col = group * threads + columns.thread; col < cols; col += kRow.threads) {
      float dgamma = 0, dbeta = 0;
      for (int i = 0; i < groups; ++i) {
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
  TILE_TRY(check_rows_begin_alike(p, b));
  if (fits_block(p, b, device)) return {};
  return tile::unsupported("cols", std::to_string(p.cols) + " are more than a block holds");
}

tile::Status persistent(const BackwardProblem& p, const BackwardBuffers& b, void* stream) {
  if (p.rows == 0) return sum_partial_sums(p, b, 0, stream);
  const tile::Device& device = tile::device();
  const BlockPlan plan = block_plan(p, device);
  const RowShape& shape = kRowShapes[plan.shape];
  // As many blocks as the card holds at one time.
  const std::int64_t each = std::clamp<std::int64_t>(
      device.shared_bytes_of_multiprocessor / (plan.shared_bytes + BlockPlan::kStaticBytes), 1,
      shape.threads / (plan.threads * plan.rows) * shape.blocks);
  const std::int64_t blocks = persistent_count(
      p, std::min(device.multiprocessors * each, max_partial_sums(p.cols)), plan.rows);
  auto* sums = static_cast<float*>(b.workspace);
  const auto launch_of_type = [&](auto element) -> tile::Status {
    using T = decltype(element);
    const auto launch = [&](auto shape_at, auto is_whole) {
      return tile::launch(
          layernorm_backward_persistent<T, shape_at, is_whole>, "layernorm_backward_persistent",
          static_cast<unsigned>(blocks), dim3(plan.threads, plan.rows),
          static_cast<std::size_t>(plan.shared_bytes), stream,
          tile::Rows<const T>{static_cast<const T*>(b.x), p.ldx},
          tile::Rows<const T>{static_cast<const T*>(b.dy), p.lddy}, static_cast<const T*>(b.gamma),
          b.mean, b.rstd, tile::Rows<T>{static_cast<T*>(b.dx), p.lddx}, sums,
          sums + blocks * p.cols, p.rows, p.cols,
          static_cast<float>(1 / static_cast<double>(p.cols)));
    };
    const auto launch_shape = [&](auto at, const auto& self) -> tile::Status {
      constexpr bool kIsLast = at + 1 == std::size(kRowShapes);
      if constexpr (!kIsLast) {
        if (plan.shape > at) return self(std::integral_constant<int, at + 1>{}, self);
      }
      if constexpr (sizeof(T) == 2 || kRowShapes[at].fp32) {
        if (check_chunks(p, b).ok()) return launch(at, std::true_type{});
        if constexpr (!kIsLast) return launch(at, std::false_type{});
      }
      return tile::unsupported("cols", "have no kernel");  // fits_block() is false
    };
    return launch_shape(std::integral_constant<int, 0>{}, launch_shape);
  };
  TILE_TRY(tile::with_element_type(p.type, launch_of_type));
  return sum_partial_sums(p, b, blocks, stream);
}

}  // namespace layernorm
