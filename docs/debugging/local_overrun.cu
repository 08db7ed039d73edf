#include "bugs.hpp"

namespace bugs {
namespace {

// snippet-begin kernel
__global__ void sum_of_next(const float* in,  // [n]
                            float* out,       // [n]
                            int n, int count) {
  float next[4];
  const int i = blockIdx.x * kThreads + threadIdx.x;
  for (int j = 0; j < count; ++j) next[j] = in[(i + j) % n];
  float sum = 0;
  for (int j = 0; j < count; ++j) sum += next[j];
  out[i] = sum;
}
// snippet-end kernel

}  // namespace

void local_overrun(const float* in, float* out, int n) {
  sum_of_next<<<n / kThreads, kThreads>>>(in, out, n, 5);
}

}  // namespace bugs
