#include "mistakes.hpp"

#include <cuda_runtime.h>

namespace device_test {
namespace {

constexpr int kThreads = 64;
constexpr int kLocal = 5;

__device__ volatile int zero = 0;  // the compiler must believe that it changes

__global__ void mistaken(AsanMistake mistake, float* array) {
  __shared__ float first[kElements];
  __shared__ float second[kElements];
  extern __shared__ float dynamic[];
  float local[kLocal];
  const int t = static_cast<int>(threadIdx.x);
  for (int i = 0; i < kLocal; ++i) local[(i + zero) % kLocal] = static_cast<float>(i + t);
  first[t] = second[t] = dynamic[t] = 1;
  __syncthreads();  // the thread is on a stack of its own, and has changed to it and from it

  if (blockIdx.x == 1 && t == 3) {
    switch (mistake) {
      case AsanMistake::none: break;
      case AsanMistake::past_local: local[kLocal + zero] = 1; break;
      case AsanMistake::after_free: array[zero] = 1; break;
      case AsanMistake::past_global: array[kElements + zero] = 1; break;
      case AsanMistake::past_shared: first[kElements + zero] = 1; break;
      case AsanMistake::past_dynamic: dynamic[kThreads + zero] = 1; break;
    }
  }
  __syncthreads();
  const bool owner = mistake != AsanMistake::after_free && blockIdx.x == 0;
  if (owner) array[t] = first[t] + second[t] + dynamic[t] + local[(t + zero) % kLocal];
}

}  // namespace

void make_asan_mistake(AsanMistake mistake, float* array) {
  mistaken<<<2, kThreads, kThreads * sizeof(float)>>>(mistake, array);
}

}  // namespace device_test
