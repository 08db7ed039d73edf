// Backward, step 7: rows split over the card.
// Idea: a team of blocks, as many as it takes, keeps a row of y and of dy in its shared memory, if
//       no cluster takes them or if rows are too few to fill the card. All blocks are on the card
//       at one time (a cooperative launch), so they can wait for one another, as in a cluster.
// Change: from forward step 9: two slices and one sum. Rows may begin otherwise in each matrix:
//         chunks begin where dx is aligned. As soon as a chunk of dx is stored, the next row's are
//         copied.
// Limit: the wait of a team, once a row. Chunks for which the card has no room are read twice.
#include "softmax.cuh"
#include "team_rows.cuh"
#include "tile/host/launch.hpp"
#include "tile/host/split_plan.hpp"
#include "tile/host/tensor_argument.hpp"
#include "tile/ptx/resident_threads.cuh"

namespace softmax {
namespace {

constexpr int kThreads = 384, kThreadsAlone = 1024;  // of three blocks on a multiprocessor; of one

/// The terms of a row's sum in a chunk of y and one of dy.
template <class T, bool kPlain, int kWidth>
__device__ __forceinline__ float sum_of(tile::Chunk<T, kWidth> y, tile::Chunk<T, kWidth> dy,
                                        const Gradient<kPlain>& gradient) {
  float value[kWidth], dvalue[kWidth], sum = 0;
  y.to_floats(value);
  dy.to_floats(dvalue);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) sum += gradient.term(value[e], dvalue[e]);
  return sum;
}

/// The chunk of dx.
template <class T, bool kPlain, int kWidth>
__device__ __forceinline__ tile::Chunk<T, kWidth> gradient_of(tile::Chunk<T, kWidth> y,
                                                              tile::Chunk<T, kWidth> dy, float sum,
                                                              const Gradient<kPlain>& gradient) {
  float value[kWidth], dvalue[kWidth];
  y.to_floats(value);
  dy.to_floats(dvalue);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) value[e] = gradient(value[e], dvalue[e], sum);
  return tile::Chunk<T, kWidth>::from_floats(value);
}

template <class T, bool kPlain, int kBlockThreads, int kBlocks>
__global__ void __launch_bounds__(kBlockThreads, tile::resident_blocks(kBlocks, kBlockThreads))
    softmax_backward_split(tile::Rows<const T> y,   // [rows][cols]
                           tile::Rows<const T> dy,  // [rows][cols]
                           tile::Rows<T> dx,        // [rows][cols]
                           Params params,           // sizes, scale, options
                           Teams<float> teams) {    // which blocks share a row
  using Slice = TeamSlice<T>;
  constexpr int kWidth = Slice::kWidth;
  // Chunks of a thread at once: kept ones, and others.
  constexpr int kNear = kPlain ? 2 : 1, kFar = kNear;        // options take registers
  extern __shared__ __align__(16) unsigned char row_smem[];  // chunks of y that are kept, and of dy
  __shared__ float sum_smem[kBlockThreads / tile::kWarp];
  const int chunks = teams.plan.chunks, kept = teams.plan.kept, group = teams.plan.group;
  const int thread = static_cast<int>(threadIdx.x);
  const Gradient<kPlain> gradient(params);
  const tile::ptx::SharedAddress y_smem = row_smem, dy_smem = y_smem + kept * 16;
  typename Slice::Chunk far[kFar], far_dy[kFar];

  std::int64_t row = teams.team();  // one of those that exist
  // A chunk of dy_slice counts as whole only if it is whole in both slices.
  Slice y_slice(y[row], teams.columns(dx[row]), params.visible<kPlain>(row), y_smem);
  Slice dy_slice(dy[row], teams.columns(dx[row]), params.visible<kPlain>(row), dy_smem,
                 y_slice.whole_end());
  for (int begin = 0; begin < kCopyGroups * group; begin += group) {
    for (int j = begin + thread; j < min(begin + group, kept); j += kBlockThreads) {
      if (!dy_slice.is_whole(j)) continue;
      y_slice.copy(j);
      dy_slice.copy(j);
    }
    tile::ptx::cp_async_commit();
  }
  for (unsigned turn = 0; row < params.rows; ++turn) {
    // sum y dy, of this thread's own elements, of the block's, and of the row's
    float sum = 0;
    const int whole = dy_slice.whole_end();
#pragma unroll 1
    for (int j = kept + thread; j < whole; j += kFar * kBlockThreads) {
#pragma unroll
      for (int i = 0; i < kFar; ++i) {
        const int at = j + i * kBlockThreads;
        if (at < whole) far[i] = y_slice.far(at), far_dy[i] = dy_slice.far(at);
      }
#pragma unroll
      for (int i = 0; i < kFar; ++i) {
        if (j + i * kBlockThreads < whole) sum += sum_of(far[i], far_dy[i], gradient);
      }
    }
#pragma unroll 1
    for (int j = thread; j < chunks; j += kBlockThreads) {
      if (dy_slice.is_whole(j)) continue;
      sum += sum_of(y_slice.part(j, 0), dy_slice.part(j, 0), gradient);
    }
    for (int g = 0; g < kCopyGroups; ++g) {
      wait_for_group(g);
#pragma unroll kNear
      for (int j = g * group + thread; j < min((g + 1) * group, kept); j += kBlockThreads) {
        if (dy_slice.is_whole(j)) sum += sum_of(y_slice.near(j), dy_slice.near(j), gradient);
      }
    }
    sum = teams.merge(tile::reduce_block(sum, tile::Add{}, sum_smem), turn, tile::Add{});

    // dx = scale y (dy - sum)
    const TeamColumns columns = teams.columns(dx[row]);
    T* dx_slice = dx[row] + columns.begin;
#pragma unroll 1
    for (int j = kept + thread; j < whole; j += kFar * kBlockThreads) {
#pragma unroll
      for (int i = 0; i < kFar; ++i) {
        const int at = j + i * kBlockThreads;
        if (at < whole) far[i] = y_slice.far(at), far_dy[i] = dy_slice.far(at);
      }
#pragma unroll
      for (int i = 0; i < kFar; ++i) {
        const int at = j + i * kBlockThreads;
        if (at >= whole) continue;
        y_slice.store(dx_slice, at, gradient_of(far[i], far_dy[i], sum, gradient));
      }
    }
    const int cols = columns.count(params.cols);
    const int visible = columns.count(params.visible<kPlain>(row));
#pragma unroll 1
    for (int j = thread; j < chunks; j += kBlockThreads) {
      if (dy_slice.is_whole(j)) continue;
      const int col = y_slice.column(j);
      float value[kWidth];
      gradient_of(y_slice.part(j, 0), dy_slice.part(j, 0), sum, gradient).to_floats(value);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) value[e] = col + e < visible ? value[e] : 0;
      tile::store_anywhere(dx_slice, col, cols, value);
    }

    // The same for the chunks that were kept, and the next row's chunks over them.
    row += teams.plan.teams;
    Slice next_y{}, next_dy{};
    if (row < params.rows) {
      next_y = Slice(y[row], teams.columns(dx[row]), params.visible<kPlain>(row), y_smem);
      next_dy = Slice(dy[row], teams.columns(dx[row]), params.visible<kPlain>(row), dy_smem,
                      next_y.whole_end());
    }
    for (int begin = 0; begin < kCopyGroups * group; begin += group) {
      const int end = min(begin + group, kept);
      for (int j = begin + thread; j < end; j += kNear * kBlockThreads) {
#pragma unroll
        for (int i = 0; i < kNear; ++i) {
          const int at = j + i * kBlockThreads;
          if (at >= end || !dy_slice.is_whole(at)) continue;
          y_slice.store(dx_slice, at,
                        gradient_of(y_slice.near(at), dy_slice.near(at), sum, gradient));
        }
#pragma unroll
        for (int i = 0; i < kNear; ++i) {
          const int at = j + i * kBlockThreads;
          if (at >= end || !next_dy.is_whole(at)) continue;
          next_y.copy(at);
          next_dy.copy(at);
        }
      }
      tile::ptx::cp_async_commit();
    }
    y_slice = next_y;
    dy_slice = next_dy;
  }
}

template <class T, bool kPlain, int kBlockThreads, int kBlocks>
tile::Status launch(const BackwardProblem& problem, const BackwardBuffers& buffers, void* stream) {
  const auto kernel = softmax_backward_split<T, kPlain, kBlockThreads, kBlocks>;
  const std::int64_t bytes = team_bytes(tile::device(), kBlocks);
  int blocks = 0;
  TILE_TRY(tile::blocks_at_once(kernel, kBlockThreads, bytes, &blocks));
  blocks = std::min(blocks, tile::device().multiprocessors * kBlocks);
  const TeamPlan plan = team_plan(problem.rows, chunks_of_row(problem.cols, sizeof(T)), blocks,
                                  kBlockThreads, bytes / 32);
  Teams<float> teams;
  TILE_TRY(prepare_teams(plan, buffers.workspace, stream, &teams));
  const auto all = static_cast<unsigned>(plan.size * plan.teams);  // blocks
  return tile::launch_together(kernel, "softmax_backward_split", all, kBlockThreads, bytes, stream,
                               tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
                               tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
                               tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx},
                               params_of(problem), teams);
}

}  // namespace

tile::Status takes_split(const BackwardProblem& problem, const BackwardBuffers& buffers,
                         const tile::Device& device) {
  if (is_faster_read_once(problem, buffers) && !tile::is_short_of_rows(problem, device)) {
    return tile::unsupported("cols", std::to_string(problem.cols) + " are read once by a cluster");
  }
  return tile::check_workspace(split_bytes(problem), buffers.workspace_bytes);
}

tile::Status split(const BackwardProblem& problem, const BackwardBuffers& buffers, void* stream) {
  const bool is_alone = is_too_long_for_card(
      2 * chunks_of_row(problem.cols, tile::size_bytes(problem.type)), tile::device());
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    if (is_plain(problem)) {
      return is_alone ? launch<T, true, kThreadsAlone, 1>(problem, buffers, stream)
                      : launch<T, true, kThreads, 3>(problem, buffers, stream);
    }
    return is_alone ? launch<T, false, kThreadsAlone, 1>(problem, buffers, stream)
                    : launch<T, false, kThreads, 3>(problem, buffers, stream);
  });
}

}  // namespace softmax
