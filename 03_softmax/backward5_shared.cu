// Backward, step 5: both rows in shared memory.
// Idea: a block of 1,024 threads with 64 registers each fills a multiprocessor, which then waits
//       while its rows come, and again while one goes. With the rows in shared memory 32 registers
//       suffice, so two such blocks are under way.
// Change: tile::SharedSlices replace the tile::RegisterSlices; cp.async fills them without
//         registers.
// Limit: memory, at the speed of a copy. A row of y and one of dy must fit into the shared memory
//        of a block. Up to 8,192 elements are as fast in registers, and step 4 takes them.
#include "softmax.cuh"
#include "tile/host/launch.hpp"
#include "tile/shared_slice.cuh"

namespace softmax {
namespace {

constexpr int kMaxThreads = BlockPlan::kMaxThreads;

template <class T, int kChunks, bool kPlain>
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
  const auto cols = static_cast<int>(params.cols);
  const auto visible = static_cast<int>(params.visible<kPlain>(row));
  const Gradient<kPlain> gradient(params);

  const Slice y_slice(y[row], visible, columns, 0, row_smem);
  const Slice dy_slice(dy[row], visible, columns, 0, row_smem + Slice::bytes(columns.threads));
  tile::ptx::cp_async_wait_all();
  float value[kWidth], dvalue[kWidth];  // a chunk of y and of dy

  // sum y dy, first of this thread's own elements
  float sum = 0;
#pragma unroll Slice::kUnroll
  for (int i = 0; i < Slice::kChunks; ++i) {
    y_slice.chunk(i).to_floats(value);
    dy_slice.chunk(i).to_floats(dvalue);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (kPlain || columns.column(i) + e < visible) sum += gradient.term(value[e], dvalue[e]);
    }
  }
  sum = tile::reduce_block(sum, tile::Add{}, sum_smem);

  // dx = scale y (dy - sum)
  T* dx_row = dx[row];
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
}

template <class T, int kChunks, bool kPlain>
tile::Status launch(const BackwardProblem& problem, const BackwardBuffers& buffers, void* stream) {
  const BlockPlan plan = block_plan(problem);
  return tile::launch(softmax_backward_shared<T, kChunks, kPlain>, "softmax_backward_shared",
                      static_cast<unsigned>(problem.rows), static_cast<unsigned>(plan.threads),
                      plan.bytes, stream,
                      tile::Rows<const T>{static_cast<const T*>(buffers.y), problem.ldy},
                      tile::Rows<const T>{static_cast<const T*>(buffers.dy), problem.lddy},
                      tile::Rows<T>{static_cast<T*>(buffers.dx), problem.lddx}, params_of(problem));
}

}  // namespace

tile::Status takes_shared(const BackwardProblem& problem, const BackwardBuffers& buffers,
                          const tile::Device& device) {
  TILE_TRY(check_chunks(problem, buffers));
  const bool is_short = problem.cols <= 8 * 1024;  // measured on an H200
  if (block_plan(problem).fits(device) && !is_short) return {};
  const char* why = is_short ? " are as fast in registers" : " do not fit into shared memory";
  return tile::unsupported("cols", std::to_string(problem.cols) + why);
}

tile::Status shared(const BackwardProblem& problem, const BackwardBuffers& buffers, void* stream) {
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    if (block_plan(problem).chunks == 4) return launch<T, 4, true>(problem, buffers, stream);
    return is_plain(problem) ? launch<T, 8, true>(problem, buffers, stream)
                             : launch<T, 8, false>(problem, buffers, stream);
  });
}

}  // namespace softmax
