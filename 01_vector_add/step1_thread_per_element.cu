// Step 1: one thread for each element.
// Idea: the loop over i is gone. n threads run the same function, and each asks which i is its own.
// Limit: memory. Each thread reads 8 bytes and writes 4 for a single addition, and has no more than
//        these two loads in flight.
#include "harness/cuda_check.hpp"
#include "vector_add.hpp"

namespace vector_add {
namespace {

// A multiple of the warp's 32 threads. 256 is enough to fill a multiprocessor with few blocks, and
// little enough that many blocks share it.
constexpr int kThreads = 256;

__global__ void add_thread_per_element(const float* a,  // [n]
                                       const float* b,  // [n]
                                       float* c,        // [n]
                                       std::int64_t n) {
  // Who am I? 64 bits, because a GPU's memory holds more than 2^31 elements.
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  // The last block reaches past n unless n is a multiple of kThreads. Its spare threads do nothing.
  if (i < n) c[i] = a[i] + b[i];
}

}  // namespace

tile::Status thread_per_element(const Problem& problem, const Buffers& buffers, void* stream) {
  if (tile::Status s = validate(problem, buffers); !s.ok()) return s;
  if (problem.n == 0) return {};  // a grid of no blocks is an error in CUDA
  const std::int64_t blocks = (problem.n + kThreads - 1) / kThreads;  // rounded up
  // A grid has at most 2^31 - 1 blocks along x (CUDA Programming Guide, "Compute Capabilities").
  constexpr std::int64_t kMaxBlocks = 0x7fffffff;
  if (blocks > kMaxBlocks) return tile::unsupported("n", "needs more than 2^31 - 1 blocks");
  add_thread_per_element<<<static_cast<unsigned>(blocks), kThreads, 0,
                           static_cast<cudaStream_t>(stream)>>>(
      static_cast<const float*>(buffers.a), static_cast<const float*>(buffers.b),
      static_cast<float*>(buffers.c), problem.n);
  return tile::launch_status("add_thread_per_element");
}

}  // namespace vector_add
