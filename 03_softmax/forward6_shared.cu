// Forward, step 6: a row in shared memory.
// Idea: a block of 1,024 threads with 64 registers each fills a multiprocessor, which then waits
//       while the block loads its row, and again while it stores it. With the row in shared memory
//       32 registers a thread suffice, so two such blocks fit.
// Change: a tile::SharedSlice replaces the tile::RegisterSlice; cp.async fills it without
//         registers. The exponentials are computed a second time for the results. Rows may begin
//         anywhere, alike in x and y: a few threads have an element beside the chunks
//         (tile::RowWithEnds).
// Limit: memory, at the speed of a copy. A row must fit into the shared memory of a block. Step 5
//        takes short rows, which are as fast in registers: up to 16,384 elements, 8,192 with causal
//        or log, and up to 16 KiB where chunks of 16 bytes do not fill a row.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/shared_slice.cuh"

namespace softmax {
namespace {

constexpr int kMaxThreads = BlockPlan::kMaxThreads;

// snippet-begin kernel
template <class T, int kChunks, bool kPlain, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads)
    softmax_shared(tile::Rows<const T> x,  // [rows][cols]
                   tile::Rows<T> y,        // [rows][cols]
                   Params params) {        // sizes, scale, options
  using Slice = tile::SharedSlice<T, kChunks>;
  constexpr int kWidth = Slice::kChunkWidth;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a row of x
  __shared__ MaxSum seen_smem[kMaxThreads / tile::kWarp];
  const tile::ChunkColumns<kWidth> columns{static_cast<int>(threadIdx.x),
                                           static_cast<int>(blockDim.x)};
  const std::int64_t row = blockIdx.x;
  const auto all = static_cast<int>(params.cols);
  auto visible = static_cast<int>(params.visible<kPlain>(row));
  const T* x_row = x[row];
  const tile::RowWithEnds<kWhole, T> ends(x_row, all, columns.thread);
  const int cols = ends.cols;
  x_row += ends.begin, visible -= ends.begin;

  const float x_end = ends.load(x_row, visible, -INFINITY);
  const Slice x_slice(x_row, kWhole ? visible : min(visible, cols), columns, -INFINITY, row_smem);
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
  const MaxSum seen = tile::reduce_block(own, MergeMaxSum{params.factor}, seen_smem);

  // y = exp(z - max) / sum
  const Normalize<kPlain> normalize(params, seen);
  T* y_row = y[row] + ends.begin;
#pragma unroll Slice::kUnroll
  for (int i = 0; i < kChunks; ++i) {
    const int col = x_slice.column(i);
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

template <class T, int kChunks, bool kPlain, bool kWhole>
tile::Status launch(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  const BlockPlan plan = block_plan(problem, kWhole);
  return tile::launch(softmax_shared<T, kChunks, kPlain, kWhole>, "softmax_shared",
                      static_cast<unsigned>(problem.rows), static_cast<unsigned>(plan.threads),
                      plan.bytes, stream,
                      tile::Rows<const T>{static_cast<const T*>(buffers.x), problem.ldx},
                      tile::Rows<T>{static_cast<T*>(buffers.y), problem.ldy}, params_of(problem));
}

}  // namespace

tile::Status takes_shared(const ForwardProblem& problem, const ForwardBuffers& buffers,
                          const tile::Device& device) {
  TILE_TRY(check_alike(problem, buffers));
  const bool whole = check_chunks(problem, buffers).ok(), plain = is_plain(problem);
  const auto bytes = problem.cols * static_cast<std::int64_t>(tile::size_bytes(problem.type));
  // Measured on an H200.
  const bool is_short = whole ? problem.cols <= (plain ? 16 : 8) * 1024 : bytes <= kMostEndsBytes;
  if (block_plan(problem, whole).fits(device) && !is_short) return {};
  const char* why = is_short ? " are as fast in registers" : " do not fit into shared memory";
  return tile::unsupported("cols", std::to_string(problem.cols) + why);
}

tile::Status shared(const ForwardProblem& problem, const ForwardBuffers& buffers, void* stream) {
  return tile::with_element_type(problem.type, [&](auto element) {
    return with_kernel_kind(problem, buffers, [&](auto plain, auto whole) {
      using T = decltype(element);
      if constexpr (plain && whole) {
        if (block_plan(problem).chunks == 4) {
          return launch<T, 4, true, true>(problem, buffers, stream);
        }
      }
      return launch<T, 8, plain, whole>(problem, buffers, stream);
    });
  });
}

}  // namespace softmax
