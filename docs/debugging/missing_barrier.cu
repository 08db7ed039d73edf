#include "bugs.hpp"

namespace bugs {
namespace {

// snippet-begin kernel
__global__ void add_halves(const float* in,  // [n]
                           float* out) {     // [n]
  __shared__ float tile[kThreads];
  const int t = threadIdx.x;
  const int i = blockIdx.x * kThreads + t;
  tile[t] = in[i];
  // Here a __syncthreads() is missing.
  out[i] = tile[t] + tile[t % (kThreads / 2)];
}
// snippet-end kernel

}  // namespace

void missing_barrier(const float* in, float* out, int n) {
  add_halves<<<n / kThreads, kThreads>>>(in, out);
}

}  // namespace bugs
