#include "bugs.hpp"

namespace bugs {
namespace {

constexpr int kWarp = 32;

// snippet-begin kernel
__global__ void subtract_first(const float* in,  // [n]
                               float* out) {     // [n]
  __shared__ float first;
  const int i = blockIdx.x * kWarp + threadIdx.x;
  if (threadIdx.x == 0) first = in[i];
  // Here a __syncwarp() is missing.
  out[i] = in[i] - first;
}
// snippet-end kernel

}  // namespace

void missing_syncwarp(const float* in, float* out, int n) {
  subtract_first<<<n / kWarp, kWarp>>>(in, out);
}

}  // namespace bugs
