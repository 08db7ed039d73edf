// The part of the runtime API that is templates: CUDA has it in cuda_runtime.h alone, so that a
// host file with cuda_runtime_api.h does without.
#pragma once

#include "cpu_device/runtime_api.h"

template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes) {
  return cudaMallocHost(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaMallocFromPoolAsync(T** pointer, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return cudaMallocFromPoolAsync(reinterpret_cast<void**>(pointer), bytes, pool, stream);
}

namespace cpu_device {
cudaError_t copy_symbol(void* symbol, size_t symbol_bytes, void* other, size_t bytes, size_t offset,
                        cudaMemcpyKind kind, bool to_symbol);
}

/// A __constant__ or __device__ variable.
template <class T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
  return cpu_device::copy_symbol(const_cast<void*>(static_cast<const void*>(&symbol)), sizeof(T),
                                 const_cast<void*>(from), bytes, offset, kind, true);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, T& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
  return cpu_device::copy_symbol(const_cast<void*>(static_cast<const void*>(&symbol)), sizeof(T),
                                 to, bytes, offset, kind, false);
}

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*function)(Parameters...), cudaFuncAttribute attribute,
                                 int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(function), attribute, value);
}

template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* count, void (*function)(Parameters...),
                                           const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxActiveClusters(count, reinterpret_cast<const void*>(function), config);
}
