// Step 2: a grid of fixed size, in which each thread walks through the vector.
// Idea: start as many threads as the card can hold at one time. Each adds an element, then jumps
//       ahead by the size of the whole grid.
// Change: the guard has become the condition of a loop. The number of blocks stops
//         growing when the card is full, so no n is too large for the grid.
// Limit: memory, as before. A thread waits for its two loads before it asks for the next two.
#include "tile/basics.cuh"
#include "tile/host/launch.hpp"
#include "vector_add.hpp"

namespace vector_add {
namespace {

constexpr int kThreads = 256;

// snippet-begin kernel
template <class T>
__global__ void add_grid_stride(const T* a,  // [n]
                                const T* b,  // [n]
                                T* c,        // [n]
                                std::int64_t n) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  // Neighbouring threads still touch neighbouring elements in every iteration.
  for (; i < n; i += threads) c[i] = a[i] + b[i];
}
// snippet-end kernel

}  // namespace

tile::Status grid_stride(const Problem& problem, const Buffers& buffers, void* stream) {
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    // snippet-begin launch
    int blocks = 0;
    TILE_TRY(tile::blocks_that_fit(problem.n, kThreads, &blocks));
    return tile::launch(add_grid_stride<T>, "add_grid_stride", blocks, kThreads, 0, stream,
                        static_cast<const T*>(buffers.a), static_cast<const T*>(buffers.b),
                        static_cast<T*>(buffers.c), problem.n);
    // snippet-end launch
  });
}

}  // namespace vector_add
