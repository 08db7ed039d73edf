// The activations on the device, for the kernel of their own and for kernels that fuse them.
#pragma once

#include "matmul.hpp"

namespace matmul {

__device__ inline float gelu(float x) {
  // 0.5 (1 + tanh u) is 1 / (1 + exp(-2u)), which loses no digits where tanh u is near -1. Below
  // -16 the result is 0 in fp32, as exp(-2u) is infinite; at -infinity it would be NaN.
  const float from = x < -16.f ? -16.f : x;
  const float twice_u = from * (1.5957691f + 0.07135482f * from * from);  // 2 sqrt(2/pi) = 1.5957…
  return __fdividef(from, 1 + __expf(-twice_u));
}

__device__ inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::none: break;
    case Activation::relu: return x < 0 ? 0 : x;  // fmaxf(0, x) would be 0 for a NaN
    case Activation::gelu: return gelu(x);
  }
  return x;
}

}  // namespace matmul
