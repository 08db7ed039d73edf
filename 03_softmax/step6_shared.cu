// Step 6: a row in shared memory.
// Idea: a block of 1,024 threads with 64 registers each fills a multiprocessor, which then waits
//       while its row comes, and again while it goes. With the row in shared memory 32 registers
//       do, so that two such blocks are under way.
// Change: a part of a row is a tile::SharedSlice instead of a tile::RegisterSlice; cp.async fills it
//         without passing registers. Shorter rows stay step 5's.
// Limit: memory, at the speed of a copy. A row, or backward two of them, must fit into the shared
//        memory of a block; longer ones go the way of step 5.
#include "parts.cuh"
#include "shares.cuh"

namespace softmax {
namespace {

// snippet-begin kernel
template <class T, int kChunks, bool kPlain>
__global__ void __launch_bounds__(tile::kMaxThreadsPerBlock)
    softmax_shared(tile::Rows<const T> x,  // [rows][cols]
                   tile::Rows<T> y,        // [rows][cols]
                   Options options) {
  using Part = tile::SharedSlice<T, kChunks>;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a row of x
  __shared__ tile::MaxSum seen_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  const tile::ChunkColumns<Part::kChunkWidth> place{static_cast<int>(threadIdx.x),
                                             static_cast<int>(blockDim.x)};
  const std::int64_t row = blockIdx.x;
  const Columns columns = columns_of_row<kPlain>(options, row);

  const Part part(x[row], columns.visible, place, -INFINITY, row_smem);
  tile::ptx::cp_async_wait_all();
  const tile::MaxSum seen = tile::reduce_block(reduce_part<kPlain>(part, columns, options),
                                               tile::MergeMaxSum{options.factor}, seen_smem);
  store_part<kPlain>(part, y[row], columns, seen, options);
}
// snippet-end kernel

template <class T, int kChunks, bool kPlain>
__global__ void __launch_bounds__(tile::kMaxThreadsPerBlock)
    softmax_backward_shared(tile::Rows<const T> y,   // [rows][cols]
                            tile::Rows<const T> dy,  // [rows][cols]
                            tile::Rows<T> dx,        // [rows][cols]
                            Options options) {
  using Part = tile::SharedSlice<T, kChunks>;
  extern __shared__ __align__(16) unsigned char row_smem[];  // a row of y, then one of dy
  __shared__ float sum_smem[tile::kMaxThreadsPerBlock / tile::kWarp];
  const tile::ChunkColumns<Part::kChunkWidth> place{static_cast<int>(threadIdx.x),
                                             static_cast<int>(blockDim.x)};
  const std::int64_t row = blockIdx.x;
  const Columns columns = columns_of_row<kPlain>(options, row);
  const Gradient<kPlain> gradient(options);

  const Part y_part(y[row], columns.visible, place, 0, row_smem);
  const Part dy_part(dy[row], columns.visible, place, 0, row_smem + Part::bytes(place.threads));
  tile::ptx::cp_async_wait_all();
  const float sum = tile::reduce_block(reduce_part<kPlain>(y_part, dy_part, columns, gradient),
                                       tile::Add{}, sum_smem);
  store_part<kPlain>(y_part, dy_part, dx[row], columns, sum, gradient);
}

}  // namespace

tile::Status shared(const Problem& problem, const Buffers& buffers, void* stream) {
  Share share{};
  if (tile::Status s = share_of_block(problem, buffers, 1, &share); !s.ok()) return s;
  if (!share.fits || problem.cols <= longest_in_registers(problem)) {
    return registers(problem, buffers, stream);
  }
  return launch_on_rows(problem, buffers, 1, [&]<class T>(const Arguments<T>& a, unsigned blocks) {
    return with_share(share, [&](auto chunks, auto plain) -> tile::Status {
      constexpr int kChunks = chunks;
      constexpr bool kPlain = plain;
      if (problem.direction == tile::Direction::forward) {
        if (tile::Status s =
                tile::allow_shared_bytes(softmax_shared<T, kChunks, kPlain>, share.shared_bytes);
            !s.ok())
          return s;
        softmax_shared<T, kChunks, kPlain>
            <<<blocks, share.threads, share.shared_bytes, static_cast<cudaStream_t>(stream)>>>(
                a.x, a.y, a.options);
        return tile::launch_status("softmax_shared");
      }
      if (tile::Status s = tile::allow_shared_bytes(softmax_backward_shared<T, kChunks, kPlain>,
                                                    share.shared_bytes);
          !s.ok())
        return s;
      softmax_backward_shared<T, kChunks, kPlain>
          <<<blocks, share.threads, share.shared_bytes, static_cast<cudaStream_t>(stream)>>>(
              a.y_in, a.dy, a.dx, a.options);
      return tile::launch_status("softmax_backward_shared");
    });
  });
}

}  // namespace softmax
