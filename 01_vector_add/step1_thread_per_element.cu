// Step 1: one thread for each element.
// Idea: the loop over i is gone. n threads run the same function, and each asks which i is its own.
// Limit: memory. Each thread asks for two elements, waits, adds them, and is done.
#include "tile/basics.cuh"
#include "vector_add.hpp"

namespace vector_add {
namespace {

// A multiple of the warp's 32 threads. 256 is enough to fill a multiprocessor with few blocks, and
// little enough that many blocks share it.
constexpr int kThreads = 256;

// snippet-begin kernel
template <class T>
__global__ void add_thread_per_element(const T* a,  // [n]
                                       const T* b,  // [n]
                                       T* c,        // [n]
                                       std::int64_t n) {
  // Who am I? 64 bits, because a GPU's memory holds more than 2^31 elements.
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  // The last block reaches past n unless n is a multiple of kThreads. Its spare threads do nothing.
  if (i < n) c[i] = a[i] + b[i];
}
// snippet-end kernel

}  // namespace

tile::Status thread_per_element(const Problem& problem, const Buffers& buffers, void* stream) {
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("n", problem.n, kThreads, &blocks));
  return tile::with_element_type(problem.type, [&](auto element) {
    using T = decltype(element);
    // snippet-begin launch
    add_thread_per_element<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const T*>(buffers.a), static_cast<const T*>(buffers.b),
        static_cast<T*>(buffers.c), problem.n);
    return tile::launch_status("add_thread_per_element");
    // snippet-end launch
  });
}

}  // namespace vector_add
