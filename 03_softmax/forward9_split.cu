// Forward, step 9: a row split over the card.
// Idea: a team of blocks, as many as it takes, keeps a row in its shared memory, if no cluster
//       takes it or if rows are too few to fill the card. All blocks are on the card at one time
//       (a cooperative launch), so they can wait for one another, as the blocks of a cluster do.
// Change: a block's slice is as long as its shared memory. Rows may begin in x otherwise than in y:
//         chunks begin where y is aligned. Maximum and sum of a row are merged through global
//         memory (team_rows.cuh). As soon as a chunk of y is stored, the next row's chunk is
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

constexpr int kThreads = 384, kThreadsAlone = 512;  // of three blocks on a multiprocessor; of one

/// The maximum and sum `own` with the elements of one more chunk.
template <class T, int kWidth>
__device__ __forceinline__ MaxSum with_chunk(MaxSum own, tile::Chunk<T, kWidth> chunk,
                                             MergeMaxSum merge) {
  if (const float max = chunk.max(); max > own.max) own = {max, merge.rescaled(own, max)};
  const float reference = finite_reference(own.max);
  float value[kWidth], sum = 0;
  chunk.to_floats(value);
#pragma unroll
  for (const float each : value) {
    sum += tile::ptx::exp2_approx(merge.factor * (each - reference));
  }
  return {own.max, own.sum + sum};
}

/// The chunk of y from that of x.
template <class T, bool kPlain, int kWidth>
__device__ __forceinline__ tile::Chunk<T, kWidth> normalized(tile::Chunk<T, kWidth> chunk,
                                                             const Normalize<kPlain>& normalize) {
  float value[kWidth];
  chunk.to_floats(value);
#pragma unroll
  for (float& each : value) each = normalize(each);
  return tile::Chunk<T, kWidth>::from_floats(value);
}

template <class T, bool kPlain, int kBlockThreads, int kBlocks>
__global__ void __launch_bounds__(kBlockThreads, tile::resident_blocks(kBlocks, kBlockThreads))
    softmax_split(tile::Rows<const T> x,  // [rows][cols]
                  tile::Rows<T> y,        // [rows][cols]
                  Params params,          // sizes, scale, options
                  Teams<MaxSum> teams) {  // which blocks share a row
  using Slice = TeamSlice<T>;
  constexpr int kWidth = Slice::kWidth;
  // Chunks of a thread at once: kept ones, and others.
  constexpr int kNear = 3, kFar = 4;
  extern __shared__ __align__(16) unsigned char row_smem[];  // chunks that the block keeps
  __shared__ MaxSum seen_smem[kBlockThreads / tile::kWarp];
  const int chunks = teams.plan.chunks, kept = teams.plan.kept, group = teams.plan.group;
  const int thread = static_cast<int>(threadIdx.x);
  const MergeMaxSum merge{params.factor};
  typename Slice::Chunk far[kFar];

  // snippet-begin first_pass
  std::int64_t row = teams.team();  // one of those that exist
  Slice x_slice(x[row], teams.columns(y[row]), params.visible<kPlain>(row), row_smem);
  for (int begin = 0; begin < kCopyGroups * group; begin += group) {
    for (int j = begin + thread; j < min(begin + group, kept); j += kBlockThreads) {
      if (x_slice.is_whole(j)) x_slice.copy(j);
    }
    tile::ptx::cp_async_commit();
  }
  for (unsigned turn = 0; row < params.rows; ++turn) {
    // Maximum and sum of this thread's own elements, of the block's, and of the row's.
    MaxSum own = merge.identity();
    const int whole = x_slice.whole_end();
    for (int j = kept + thread; j < whole; j += kFar * kBlockThreads) {
#pragma unroll
      for (int i = 0; i < kFar; ++i) {
        const int at = j + i * kBlockThreads;
        if (at < whole) far[i] = x_slice.far(at);
      }
#pragma unroll
      for (int i = 0; i < kFar; ++i) {
        if (j + i * kBlockThreads < whole) own = with_chunk(own, far[i], merge);
      }
    }
#pragma unroll 1
    for (int j = thread; j < chunks; j += kBlockThreads) {
      if (!x_slice.is_whole(j)) own = with_chunk(own, x_slice.part(j, -INFINITY), merge);
    }
    for (int g = 0; g < kCopyGroups; ++g) {
      wait_for_group(g);
#pragma unroll 2
      for (int j = g * group + thread; j < min((g + 1) * group, kept); j += kBlockThreads) {
        if (x_slice.is_whole(j)) own = with_chunk(own, x_slice.near(j), merge);
      }
    }
    const MaxSum seen = teams.merge(tile::reduce_block(own, merge, seen_smem), turn, merge);
    // snippet-end first_pass

    // y = exp(z - max) / sum
    const Normalize<kPlain> normalize(params, seen);
    const TeamColumns columns = teams.columns(y[row]);
    T* y_slice = y[row] + columns.begin;
    for (int j = kept + thread; j < whole; j += kFar * kBlockThreads) {
#pragma unroll
      for (int i = 0; i < kFar; ++i) {
        const int at = j + i * kBlockThreads;
        if (at < whole) far[i] = x_slice.far(at);
      }
#pragma unroll
      for (int i = 0; i < kFar; ++i) {
        const int at = j + i * kBlockThreads;
        if (at >= whole) continue;
        x_slice.store(y_slice, at, normalized(far[i], normalize));
      }
    }
    const int cols = columns.count(params.cols);
    const int visible = columns.count(params.visible<kPlain>(row));
#pragma unroll 1
    for (int j = thread; j < chunks; j += kBlockThreads) {
      if (x_slice.is_whole(j)) continue;
      const int col = x_slice.column(j);
      float value[kWidth];
      x_slice.part(j, 0).to_floats(value);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        value[e] = col + e < visible ? normalize(value[e]) : params.hidden();
      }
      tile::store_anywhere(y_slice, col, cols, value);
    }

    // snippet-begin second_pass
    // The same for the chunks that were kept, and the next row's chunks over them.
    row += teams.plan.teams;
    Slice next_slice{};
    if (row < params.rows) {
      next_slice = Slice(x[row], teams.columns(y[row]), params.visible<kPlain>(row), row_smem);
    }
    for (int begin = 0; begin < kCopyGroups * group; begin += group) {
      const int end = min(begin + group, kept);
      for (int j = begin + thread; j < end; j += kNear * kBlockThreads) {
#pragma unroll
        for (int i = 0; i < kNear; ++i) {
          const int at = j + i * kBlockThreads;
          if (at >= end || !x_slice.is_whole(at)) continue;
          x_slice.store(y_slice, at, normalized(x_slice.near(at), normalize));
        }
#pragma unroll
        for (int i = 0; i < kNear; ++i) {
          const int at = j + i * kBlockThreads;
          if (at < end && next_slice.is_whole(at)) next_slice.copy(at);
        }
      }
      tile::ptx::cp_async_commit();
    }
    x_slice = next_slice;
    // snippet-end second_pass
  }
}

template <class T, bool kPlain, int kBlockThreads, int kBlocks>
tile::Status launch(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  const auto kernel = softmax_split<T, kPlain, kBlockThreads, kBlocks>;
  const std::int64_t bytes = team_bytes(tile::device(), kBlocks);
  int blocks = 0;
  TILE_TRY(tile::blocks_at_once(kernel, kBlockThreads, bytes, &blocks));
  blocks = std::min(blocks, tile::device().multiprocessors * kBlocks);
  const TeamPlan plan = team_plan(problem.rows, chunks_of_row(problem.cols, sizeof(T)), blocks,
                                  kBlockThreads, bytes / 16);
  Teams<MaxSum> teams;
  TILE_TRY(prepare_teams(plan, buffers.workspace, stream, &teams));
  const auto all = static_cast<unsigned>(plan.size * plan.teams);  // blocks
  return tile::launch_together(kernel, "softmax_split", all, kBlockThreads, bytes, stream,
                               tile::Rows<const T>{static_cast<const T*>(buffers.x), problem.ldx},
                               tile::Rows<T>{static_cast<T*>(buffers.y), problem.ldy},
                               params_of(problem), teams);
}

}  // namespace

tile::Status takes_split(const ForwardProblem& problem, const ForwardBuffers& buffers,
                         const tile::Device& device) {
  if (is_faster_read_once(problem, buffers) && !tile::is_short_of_rows(problem, device)) {
    return tile::unsupported("cols", std::to_string(problem.cols) + " are read once by a cluster");
  }
  return tile::check_workspace(split_bytes(problem), buffers.workspace_bytes);
}

tile::Status split(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  const bool is_alone = is_too_long_for_card(
      chunks_of_row(problem.cols, tile::size_bytes(problem.type)), tile::device());
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
