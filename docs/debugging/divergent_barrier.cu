#include "bugs.hpp"

namespace bugs {
namespace {

// snippet-begin kernel
__global__ void subtract_blocks_first(const float* in,  // [n]
                                      float* out,       // [n]
                                      int n) {
  __shared__ float tile[kThreads];
  const int t = threadIdx.x;
  const int i = blockIdx.x * kThreads + t;
  if (i < n) {
    tile[t] = in[i];
    __syncthreads();
    out[i] = tile[t] - tile[0];
  }
}
// snippet-end kernel

}  // namespace

void divergent_barrier(const float* in, float* out, int n) {
  subtract_blocks_first<<<(n + kThreads - 1) / kThreads, kThreads>>>(in, out, n);
}

}  // namespace bugs
