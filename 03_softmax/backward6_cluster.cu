// Backward, step 6: both rows in the shared memory of several blocks.
// Idea: the blocks of a cluster run at the same time on neighbouring multiprocessors and write into
//       each other's shared memory. Rows too long for one block are shared by up to 16 of them.
// Change: each block has some of the columns, and the reduction goes over the cluster
//         (tile/shared_slice.cuh).
// Limit: memory, at the speed of a copy, for rows that the shared memory of 16 blocks holds. Step 5
//        takes rows that fit into one block.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/shared_slice.cuh"

namespace softmax {
namespace {

// Measured on an H200: two blocks or more must fit on a multiprocessor. If not, all of a cluster's
// multiprocessors wait at the same time.
constexpr int kMaxThreads = 512;  // the launch bounds are twice that: few registers

template <class T, int kChunks, bool kPlain, bool kWhole>
__global__ void __launch_bounds__(2 * kMaxThreads)
    softmax_backward_cluster(tile::Rows<const T> y,   // [rows][cols]
                             tile::Rows<const T> dy,  // [rows][cols]
                             tile::Rows<T> dx,        // [rows][cols]
                             Params params) {         // sizes, scale, options
  using Slice = tile::SharedSlice<T, kChunks>;
  constexpr int kWidth = Slice::kChunkWidth;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a block's columns of y, then of dy
  __shared__ float sum_smem[tile::kMaxWarpsOfCluster];
  tile::ptx::cluster_arrive();  // this block has begun: others may write into sum_smem
  const auto blocks = static_cast<int>(tile::ptx::cluster_size());
  const auto rank = static_cast<int>(tile::ptx::cluster_rank());
  const tile::ChunkColumns<kWidth> in_smem{static_cast<int>(threadIdx.x),
                                           static_cast<int>(blockDim.x)};
  const tile::ChunkColumns<kWidth> columns{rank * in_smem.threads + in_smem.thread,
                                           blocks * in_smem.threads};
  const std::int64_t row = blockIdx.x / tile::ptx::cluster_size();
  const auto all = static_cast<int>(params.cols);
  auto visible = static_cast<int>(params.visible<kPlain>(row));
  const Gradient<kPlain> gradient(params);
  const T* y_row = y[row];
  const tile::RowWithEnds<kWhole, T> ends(y_row, all,
                                          columns.thread);  // and of the same columns of dy
  const int cols = ends.cols;
  y_row += ends.begin, visible -= ends.begin;
  const int copied = kWhole ? visible : min(visible, cols);

  const float y_end = ends.load(y_row, visible, 0);
  const Slice y_slice(y_row, copied, columns, 0, row_smem, in_smem);
  const T* dy_row = dy[row] + ends.begin;
  const float dy_end = ends.load(dy_row, visible, 0);
  const Slice dy_slice(dy_row, copied, columns, 0, row_smem + Slice::bytes(in_smem.threads),
                       in_smem);
  tile::ptx::cp_async_wait_all();
  float value[kWidth], dvalue[kWidth];  // a chunk of y and of dy

  // sum y dy, first of this thread's own elements
  float sum = gradient.term(y_end, dy_end);
#pragma unroll Slice::kUnroll
  for (int i = 0; i < Slice::kChunks; ++i) {
    y_slice.chunk(i).to_floats(value);
    dy_slice.chunk(i).to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (kPlain || columns.column(i) + e < visible) sum += gradient.term(value[e], dvalue[e]);
    }
  }
  tile::ptx::cluster_wait();  // all blocks have begun
  sum = tile::reduce_cluster(sum, tile::Add{}, sum_smem);

  // dx = scale y (dy - sum)
  T* dx_row = dx[row] + ends.begin;
#pragma unroll Slice::kUnroll
  for (int i = 0; i < Slice::kChunks; ++i) {
    const int col = columns.column(i);
    if (col >= cols) continue;
    y_slice.chunk(i).to_floats(value);
    dy_slice.chunk(i).to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[e] = kPlain || col + e < visible ? gradient(value[e], dvalue[e], sum) : 0;
    }
    Slice::Chunk::from_floats(value).store(dx_row + col);
  }
  ends.store(dx_row, all, kPlain || ends.mine < visible ? gradient(y_end, dy_end, sum) : 0);
}

/// A row is shared by as few blocks as can hold it.
ClusterPlan plan_of(const BackwardProblem& p, bool whole, const tile::Device& device) {
  const std::int64_t all = chunks_of(p, whole);
  for (unsigned blocks = 2; blocks <= tile::kMaxBlocksOfCluster; blocks *= 2) {
    const std::int64_t most = (all + blocks - 1) / blocks;
    const int chunks = most > 4 * kMaxThreads || !is_plain(p) ? 8 : 4;
    const std::int64_t threads = (most + chunks * 32 - 1) / (chunks * 32) * 32;
    const std::int64_t bytes = 2 * threads * chunks * 16;
    if (threads <= kMaxThreads && 2 * bytes <= device.shared_bytes_of_block) {
      return {blocks, static_cast<int>(threads), chunks, bytes};
    }
  }
  return {};
}

template <class T, int kChunks, bool kPlain, bool kWhole>
tile::Status launch(const BackwardProblem& problem, const BackwardBuffers& buffers, void* stream) {
  const ClusterPlan plan = plan_of(problem, kWhole, tile::device());
  const unsigned blocks = static_cast<unsigned>(problem.rows) * plan.blocks;
  return tile::launch_in_clusters(
      softmax_backward_cluster<T, kChunks, kPlain, kWhole>, "softmax_backward_cluster", blocks,
      plan.threads, plan.blocks, static_cast<std::size_t>(plan.bytes), stream,
      tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
      tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
      tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx}, params_of(problem));
}

}  // namespace

tile::Status takes_cluster(const BackwardProblem& problem, const BackwardBuffers& buffers,
                           const tile::Device& device) {
  TILE_TRY(check_alike(problem, buffers));
  const bool whole = check_chunks(problem, buffers).ok();
  const std::string cols = std::to_string(problem.cols);
  if (problem.cols <= 8 * 1024 || block_plan(problem, whole).fits(device)) {
    return tile::unsupported("cols", cols + " fit into one block");
  }
  if (plan_of(problem, whole, device).blocks > 0) return {};
  return tile::unsupported("cols", cols + " do not fit into a cluster's shared memory");
}

tile::Status cluster(const BackwardProblem& problem, const BackwardBuffers& buffers, void* stream) {
  return tile::with_element_type(problem.type, [&](auto element) {
    return with_kernel_kind(problem, buffers, [&](auto plain, auto whole) {
      using T = decltype(element);
      if constexpr (plain) {
        if (plan_of(problem, whole, tile::device()).chunks == 4) {
          return launch<T, 4, true, whole>(problem, buffers, stream);
        }
      }
      return launch<T, 8, plain, whole>(problem, buffers, stream);
    });
  });
}

}  // namespace softmax
