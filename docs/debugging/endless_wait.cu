#include "bugs.hpp"

namespace bugs {
namespace {

// snippet-begin kernel
__global__ void wait_for_last(const float* in,  // [n]
                              float* out) {     // [n]
  __shared__ volatile int ready;
  const int t = threadIdx.x;
  const int i = blockIdx.x * kThreads + t;
  if (t == 0) ready = 0;
  __syncthreads();
  while (t == 0 && ready == 0) {
  }
  __syncthreads();
  if (t == kThreads - 1) ready = 1;
  out[i] = in[i];
}
// snippet-end kernel

}  // namespace

void endless_wait(const float* in, float* out, int n) {
  wait_for_last<<<n / kThreads, kThreads>>>(in, out);
}

}  // namespace bugs
