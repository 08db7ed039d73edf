#include "bugs.hpp"

namespace bugs {
namespace {

// snippet-begin kernel
__global__ void shift_left(const float* in,  // [n]
                           float* out,       // [n]
                           int n) {
  const int i = 4 * (blockIdx.x * kThreads + threadIdx.x);
  if (i + 4 >= n) return;
  const float4 four = *reinterpret_cast<const float4*>(in + 1 + i);
  *reinterpret_cast<float4*>(out + i) = four;
}
// snippet-end kernel

}  // namespace

void misaligned(const float* in, float* out, int n) {
  shift_left<<<(n + 4 * kThreads - 1) / (4 * kThreads), kThreads>>>(in, out, n);
}

}  // namespace bugs
