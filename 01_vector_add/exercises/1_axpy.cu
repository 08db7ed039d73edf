// Exercise 01.1: axpy
//
// y = alpha * x + y, the workhorse of linear algebra ("a x plus y"). y is input and output.
// Write the kernel's body. The launch is there already.
// Check it with: ./tour exercise 01.1
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"

namespace vector_add {
namespace {

constexpr int kThreads = 256;

__global__ void axpy_kernel(float alpha,
                            const float* x,  // [n]
                            float* y,        // [n]
                            std::int64_t n) {
  // TODO: Which element is this thread's? Is there one? What becomes of it?
}

}  // namespace

tile::Status axpy(float alpha, const float* x, float* y, std::int64_t n) {
  if (n == 0) return {};
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("n", n, kThreads, &blocks));
  axpy_kernel<<<blocks, kThreads>>>(alpha, x, y, n);
  return tile::launch_status("axpy_kernel");
}

}  // namespace vector_add
