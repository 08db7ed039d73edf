// Backward, step 5: both rows in shared memory.
// Idea: a block of 1,024 threads with 64 registers each fills a multiprocessor, which then waits
//       while the block loads its rows, and again while it stores one. With the rows in shared
//       memory 32 registers a thread suffice, so two such blocks fit.
// Change: tile::SharedSlices replace the tile::RegisterSlices; cp.async fills them without
//         registers. Rows may begin anywhere, alike in all matrices, as in forward step 6.
// Limit: memory, at the speed of a copy. A row of y and one of dy must fit into the shared memory
//        of a block. Step 4 takes short rows, which are as fast in registers: up to 8,192 elements,
//        or up to 16 KiB where chunks of 16 bytes do not fill a row.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/shared_slice.cuh"

namespace softmax {
namespace {

constexpr int kMaxThreads = BlockPlan::kMaxThreads;

template <class T, int kChunks, bool kPlain, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads)
    softmax_backward_shared(tile::Rows<const T> y,   // [rows][cols]
                            tile::Rows<const T> dy,  // [rows][cols]
                            tile::Rows<T> dx,        // [rows][cols]
                            Params params) {         // sizes, scale, options
  using Slice = tile::SharedSlice<T, kChunks>;
  constexpr int kWidth = Slice::kChunkWidth;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a row of y, then one of dy
  __shared__ float sum_smem[kMaxThreads / tile::kWarp];
  const tile::ChunkColumns<kWidth> columns{static_cast<int>(threadIdx.x),
                                           static_cast<int>(blockDim.x)};
  const std::int64_t row = blockIdx.x;
  const auto all = static_cast<int>(params.cols);
  auto visible = static_cast<int>(params.visible<kPlain>(row));
  const Gradient<kPlain> gradient(params);
  const T* y_row = y[row];
  const tile::RowWithEnds<kWhole, T> ends(y_row, all, columns.thread);  // and of dy_row
  const int cols = ends.cols;
  y_row += ends.begin, visible -= ends.begin;
  const int copied = kWhole ? visible : min(visible, cols);

  const float y_end = ends.load(y_row, visible, 0);
  const Slice y_slice(y_row, copied, columns, 0, row_smem);
  const T* dy_row = dy[row] + ends.begin;
  const float dy_end = ends.load(dy_row, visible, 0);
  const tile::ptx::SharedAddress dy_smem =
      tile::ptx::SharedAddress(row_smem) + columns.threads * kChunks * 16;
  const Slice dy_slice(dy_row, copied, columns, 0, dy_smem);
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
      if (kPlain || y_slice.column(i) + e < visible) sum += gradient.term(value[e], dvalue[e]);
    }
  }
  sum = tile::reduce_block(sum, tile::Add{}, sum_smem);

  // dx = scale y (dy - sum)
  T* dx_row = dx[row] + ends.begin;
#pragma unroll Slice::kUnroll
  for (int i = 0; i < Slice::kChunks; ++i) {
    const int col = y_slice.column(i);
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

template <class T, int kChunks, bool kPlain, bool kWhole>
tile::Status launch(const BackwardProblem& problem, const BackwardBuffers& buffers, void* stream) {
  const BlockPlan plan = block_plan(problem, kWhole);
  return tile::launch(softmax_backward_shared<T, kChunks, kPlain, kWhole>,
                      "softmax_backward_shared", static_cast<unsigned>(problem.rows),
                      static_cast<unsigned>(plan.threads), plan.bytes, stream,
                      tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
                      tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
                      tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx}, params_of(problem));
}

}  // namespace

tile::Status takes_shared(const BackwardProblem& problem, const BackwardBuffers& buffers,
                          const tile::Device& device) {
  TILE_TRY(check_alike(problem, buffers));
  const bool whole = check_chunks(problem, buffers).ok();
  const auto bytes = problem.cols * static_cast<std::int64_t>(tile::size_bytes(problem.type));
  // Measured on an H200.
  const bool is_short = whole ? problem.cols <= 8 * 1024 : bytes <= kMostEndsBytes;
  if (block_plan(problem, whole).fits(device) && !is_short) return {};
  const char* why = is_short ? " are as fast in registers" : " do not fit into shared memory";
  return tile::unsupported("cols", std::to_string(problem.cols) + why);
}

tile::Status shared(const BackwardProblem& problem, const BackwardBuffers& buffers, void* stream) {
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
