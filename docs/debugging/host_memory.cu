#include "bugs.hpp"

namespace bugs {
namespace {

// snippet-begin kernel
__global__ void scale(const float* in,      // [n]
                      const float* factor,  // one number
                      float* out) {         // [n]
  const int i = blockIdx.x * kThreads + threadIdx.x;
  out[i] = in[i] * *factor;
}

void scale_all(const float* in, float* out, int n) {
  const float factor = 2;  // a variable of the host
  scale<<<n / kThreads, kThreads>>>(in, &factor, out);
}
// snippet-end kernel

}  // namespace

void host_memory(const float* in, float* out, int n) { scale_all(in, out, n); }

}  // namespace bugs
