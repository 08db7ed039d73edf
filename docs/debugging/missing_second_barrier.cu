#include "bugs.hpp"

namespace bugs {
namespace {

// snippet-begin kernel
__global__ void sum_of_all(const float* in,  // [n]
                           float* out,       // [n]
                           int n) {
  __shared__ float tile[kThreads];
  const int t = threadIdx.x;
  float sum = 0;
  for (int first = 0; first < n; first += kThreads) {
    tile[t] = in[first + t];
    __syncthreads();
    for (int j = 0; j < kThreads; ++j) sum += tile[j];
    // Here a __syncthreads() is missing.
  }
  out[blockIdx.x * kThreads + t] = sum;
}
// snippet-end kernel

}  // namespace

void missing_second_barrier(const float* in, float* out, int n) {
  sum_of_all<<<n / kThreads, kThreads>>>(in, out, n);
}

}  // namespace bugs
