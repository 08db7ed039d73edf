#include "atomic_kernels.hpp"

#include <cuda_runtime.h>

namespace device_test {
namespace {

template <class T>
__device__ T add_by_cas(T* cell, T operand) {
  T seen = *static_cast<volatile T*>(cell);  // plain, it would race with the others' atomics
  for (;;) {
    const T before = atomicCAS(cell, seen, static_cast<T>(seen + operand));
    if (before == seen) return seen;
    seen = before;
  }
}

template <Atomic kFunction, class T>
__device__ T apply(T* cell, T operand) {
  if constexpr (kFunction == Atomic::add) return atomicAdd(cell, operand);
  if constexpr (kFunction == Atomic::sub) return atomicSub(cell, operand);
  if constexpr (kFunction == Atomic::exch) return atomicExch(cell, operand);
  if constexpr (kFunction == Atomic::min) return atomicMin(cell, operand);
  if constexpr (kFunction == Atomic::max) return atomicMax(cell, operand);
  if constexpr (kFunction == Atomic::inc) return atomicInc(cell, operand);
  if constexpr (kFunction == Atomic::dec) return atomicDec(cell, operand);
  if constexpr (kFunction == Atomic::cas) return add_by_cas(cell, operand);
  if constexpr (kFunction == Atomic::and_) return atomicAnd(cell, operand);
  if constexpr (kFunction == Atomic::or_) return atomicOr(cell, operand);
  if constexpr (kFunction == Atomic::xor_) return atomicXor(cell, operand);
}

template <Atomic kFunction, class T>
__global__ void once_kernel(T* cell, T operand, [[maybe_unused]] T expected, T* old) {
  if constexpr (kFunction == Atomic::cas) {
    *old = atomicCAS(cell, expected, operand);
  } else {
    *old = apply<kFunction>(cell, operand);
  }
}

template <Atomic kFunction, class T>
__global__ void by_all_kernel(T* cell, const T* in, T* old) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  old[i] = apply<kFunction>(cell, in[i]);
}

template <class T>
__global__ void histogram_kernel(const unsigned char* in, T* bins, unsigned count) {
  __shared__ T of_block[kBins];
  for (unsigned b = threadIdx.x; b < kBins; b += blockDim.x) of_block[b] = 0;
  __syncthreads();
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    atomicAdd(&of_block[in[i]], static_cast<T>(1));
  }
  __syncthreads();
  for (unsigned b = threadIdx.x; b < kBins; b += blockDim.x) atomicAdd(&bins[b], of_block[b]);
}

__global__ void sum_by_last_block_kernel(const int* in, unsigned count, int* partial,
                                         unsigned* done, int* sum) {
  __shared__ int of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    atomicAdd(&of_block, in[i]);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = of_block;
    __threadfence();
    if (atomicInc(done, gridDim.x - 1) == gridDim.x - 1) {
      __threadfence();
      int total = 0;
      for (unsigned b = 0; b < gridDim.x; ++b) total += __ldcg(&partial[b]);
      *sum = total;
    }
  }
}

// Calls launch<f>() for the function `f`, if T has it.
template <class T, class Launch>
void dispatch(Atomic f, Launch launch) {
  auto is = [&]<Atomic kFunction>() {
    if constexpr (has_atomic<T>(kFunction)) {
      if (f == kFunction) launch.template operator()<kFunction>();
    }
  };
  is.template operator()<Atomic::add>();
  is.template operator()<Atomic::sub>();
  is.template operator()<Atomic::exch>();
  is.template operator()<Atomic::min>();
  is.template operator()<Atomic::max>();
  is.template operator()<Atomic::inc>();
  is.template operator()<Atomic::dec>();
  is.template operator()<Atomic::cas>();
  is.template operator()<Atomic::and_>();
  is.template operator()<Atomic::or_>();
  is.template operator()<Atomic::xor_>();
}

}  // namespace

template <class T>
void apply_once(Atomic f, T* cell, T operand, T expected, T* old) {
  dispatch<T>(f, [&]<Atomic kFunction>() {
    once_kernel<kFunction><<<1, 1>>>(cell, operand, expected, old);
  });
}

template <class T>
void apply_by_all(Atomic f, T* cell, const T* in, T* old, unsigned blocks, unsigned threads) {
  dispatch<T>(
      f, [&]<Atomic kFunction>() { by_all_kernel<kFunction><<<blocks, threads>>>(cell, in, old); });
}

#define INSTANTIATE(T)                            \
  template void apply_once(Atomic, T*, T, T, T*); \
  template void apply_by_all(Atomic, T*, const T*, T*, unsigned, unsigned);
INSTANTIATE(int)
INSTANTIATE(unsigned)
INSTANTIATE(long long)
INSTANTIATE(unsigned long long)
INSTANTIATE(unsigned short)
INSTANTIATE(float)
INSTANTIATE(double)

template <class T>
void histogram(const unsigned char* in, T* bins, unsigned count, unsigned blocks) {
  histogram_kernel<<<blocks, 96>>>(in, bins, count);
}
template void histogram(const unsigned char*, int*, unsigned, unsigned);
template void histogram(const unsigned char*, unsigned*, unsigned, unsigned);
template void histogram(const unsigned char*, unsigned long long*, unsigned, unsigned);
template void histogram(const unsigned char*, float*, unsigned, unsigned);
template void histogram(const unsigned char*, double*, unsigned, unsigned);

void sum_by_last_block(const int* in, unsigned count, int* partial, unsigned* done, int* sum,
                       unsigned blocks) {
  sum_by_last_block_kernel<<<blocks, 64>>>(in, count, partial, done, sum);
}

}  // namespace device_test
