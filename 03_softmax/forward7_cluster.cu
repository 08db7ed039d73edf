// Forward, step 7: a row in the shared memory of several blocks.
// Idea: the blocks of a cluster run at the same time on neighbouring multiprocessors and write into
//       each other's shared memory. A row too long for one block is shared by up to 16 of them.
// Change: each block has some of the columns, and the reduction goes over the cluster
//         (tile/shared_slice.cuh).
// Limit: blocks wait, for their part of a row and for one another. A row must fit into the shared
//        memory of 16 blocks. Step 6 takes rows that fit into one block.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/shared_slice.cuh"

namespace softmax {
namespace {

// Measured on an H200: two blocks or more must fit on a multiprocessor. If not, all of a cluster's
// multiprocessors wait at the same time. And few threads with many chunks merge less.
constexpr int kMaxThreads = 512;  // the launch bounds are twice that: few registers
constexpr int kChunks = 8;        // of 16 bytes, of a thread

// snippet-begin kernel
template <class T, bool kPlain, bool kWhole>
__global__ void __launch_bounds__(2 * kMaxThreads)
    softmax_cluster(tile::Rows<const T> x,  // [rows][cols]
                    tile::Rows<T> y,        // [rows][cols]
                    Params params) {        // sizes, scale, options
  using Slice = tile::SharedSlice<T, kChunks>;
  constexpr int kWidth = Slice::kChunkWidth;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a block's columns of x
  __shared__ MaxSum seen_smem[tile::kMaxWarpsOfCluster];
  tile::ptx::cluster_arrive();  // this block has begun: others may write into seen_smem
  const auto blocks = static_cast<int>(tile::ptx::cluster_size());
  const auto rank = static_cast<int>(tile::ptx::cluster_rank());
  const tile::ChunkColumns<kWidth> in_smem{static_cast<int>(threadIdx.x),
                                           static_cast<int>(blockDim.x)};
  const tile::ChunkColumns<kWidth> columns{rank * in_smem.threads + in_smem.thread,
                                           blocks * in_smem.threads};
  const std::int64_t row = blockIdx.x / tile::ptx::cluster_size();
  const auto all = static_cast<int>(params.cols);
  auto visible = static_cast<int>(params.visible<kPlain>(row));
  const T* x_row = x[row];
  const tile::RowWithEnds<kWhole, T> ends(x_row, all, columns.thread);
  const int cols = ends.cols;
  x_row += ends.begin, visible -= ends.begin;

  const float x_end = ends.load(x_row, visible, -INFINITY);
  const Slice x_slice(x_row, kWhole ? visible : min(visible, cols), columns, -INFINITY, row_smem,
                      in_smem);
  tile::ptx::cp_async_wait_all();
  float value[kWidth];  // a chunk of x, then of y

  // Maximum and sum of this thread's own elements.
  MaxSum own{x_end, 0};
#pragma unroll Slice::kUnroll
  for (int i = 0; i < kChunks; ++i) {
    own.max = fmaxf(own.max, max_visible<kPlain>(x_slice, i, visible));
  }
  const float reference = finite_reference(own.max);
  if (x_end != -INFINITY) own.sum = tile::ptx::exp2_approx(params.factor * (x_end - reference));
#pragma unroll Slice::kUnroll
  for (int i = 0; i < kChunks; ++i) {
    load_visible<kPlain>(x_slice, i, visible, value);
#pragma unroll
    for (const float each : value) {
      own.sum += tile::ptx::exp2_approx(params.factor * (each - reference));
    }
  }
  tile::ptx::cluster_wait();  // all blocks have begun
  const MaxSum seen = tile::reduce_cluster(own, MergeMaxSum{params.factor}, seen_smem);

  // y = exp(z - max) / sum
  const Normalize<kPlain> normalize(params, seen);
  T* y_row = y[row] + ends.begin;
#pragma unroll Slice::kUnroll
  for (int i = 0; i < kChunks; ++i) {
    const int col = columns.column(i);
    if (col >= cols) continue;
    x_slice.chunk(i).to_floats(value);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      value[e] = kPlain || col + e < visible ? normalize(value[e]) : params.hidden();
    }
    Slice::Chunk::from_floats(value).store(y_row + col);
  }
  ends.store(y_row, all, kPlain || ends.mine < visible ? normalize(x_end) : params.hidden());
}
// snippet-end kernel

/// A row is shared by as few blocks as can hold it.
ClusterPlan plan_of(const ForwardProblem& p, bool whole, const tile::Device& device) {
  const std::int64_t all = chunks_of(p, whole);
  for (unsigned blocks = 2; blocks <= tile::kMaxBlocksOfCluster; blocks *= 2) {
    const std::int64_t most = (all + blocks - 1) / blocks;
    const std::int64_t threads = (most + kChunks * 32 - 1) / (kChunks * 32) * 32;
    const std::int64_t bytes = threads * kChunks * 16;
    if (threads <= kMaxThreads && 2 * bytes <= device.shared_bytes_of_block) {
      return {blocks, static_cast<int>(threads), kChunks, bytes};
    }
  }
  return {};
}

template <class T, bool kPlain, bool kWhole>
tile::Status launch(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  const ClusterPlan plan = plan_of(problem, kWhole, tile::device());
  const unsigned blocks = static_cast<unsigned>(problem.rows) * plan.blocks;
  return tile::launch_in_clusters(
      softmax_cluster<T, kPlain, kWhole>, "softmax_cluster", blocks, plan.threads, plan.blocks,
      static_cast<std::size_t>(plan.bytes), stream,
      tile::Rows<const T>{static_cast<const T*>(buffers.x), problem.ldx},
      tile::Rows<T>{static_cast<T*>(buffers.y), problem.ldy}, params_of(problem));
}

}  // namespace

tile::Status takes_cluster(const ForwardProblem& problem, const ForwardBuffers& buffers,
                           const tile::Device& device) {
  TILE_TRY(check_alike(problem, buffers));
  const bool whole = check_chunks(problem, buffers).ok();
  const std::string cols = std::to_string(problem.cols);
  if (problem.cols <= 16 * 1024 || block_plan(problem, whole).fits(device)) {
    return tile::unsupported("cols", cols + " fit into one block");
  }
  if (plan_of(problem, whole, device).blocks > 0) return {};
  return tile::unsupported("cols", cols + " do not fit into a cluster's shared memory");
}

tile::Status cluster(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  return tile::with_element_type(problem.type, [&](auto element) {
    return with_kernel_kind(problem, buffers, [&](auto plain, auto whole) {
      return launch<decltype(element), plain, whole>(problem, buffers, stream);
    });
  });
}

}  // namespace softmax
