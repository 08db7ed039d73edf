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
cudaError_t cudaMallocManaged(T** pointer, size_t bytes, unsigned flags = cudaMemAttachGlobal) {
  return cudaMallocManaged(reinterpret_cast<void**>(pointer), bytes, flags);
}
template <class T>
cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned flags) {
  return cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}
template <class T>
cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned flags) {
  return cudaHostGetDevicePointer(reinterpret_cast<void**>(device), host, flags);
}
template <class T>
cudaError_t cudaMallocPitch(T** pointer, size_t* pitch, size_t width_bytes, size_t height) {
  return cudaMallocPitch(reinterpret_cast<void**>(pointer), pitch, width_bytes, height);
}
template <class T>
cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t stream) {
  return cudaMallocAsync(reinterpret_cast<void**>(pointer), bytes, stream);
}
template <class T>
cudaError_t cudaMallocFromPoolAsync(T** pointer, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return cudaMallocFromPoolAsync(reinterpret_cast<void**>(pointer), bytes, pool, stream);
}

namespace cpu_device {
cudaError_t copy_symbol(void* symbol, size_t symbol_bytes, void* other, size_t bytes, size_t offset,
                        cudaMemcpyKind kind, bool to_symbol);
/// From now on copies and fills take it for device memory.
cudaError_t symbol_address(void** pointer, void* symbol, size_t bytes);
}  // namespace cpu_device

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

template <class T>
cudaError_t cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t bytes, size_t offset = 0,
                                    cudaMemcpyKind kind = cudaMemcpyHostToDevice,
                                    cudaStream_t = nullptr) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
template <class T>
cudaError_t cudaMemcpyFromSymbolAsync(void* to, T& symbol, size_t bytes, size_t offset = 0,
                                      cudaMemcpyKind kind = cudaMemcpyDeviceToHost,
                                      cudaStream_t = nullptr) {
  return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}
template <class T, class Symbol>
cudaError_t cudaGetSymbolAddress(T** pointer, Symbol& symbol) {
  return cpu_device::symbol_address(reinterpret_cast<void**>(pointer),
                                    const_cast<void*>(static_cast<const void*>(&symbol)),
                                    sizeof(Symbol));
}
template <class Symbol>
cudaError_t cudaGetSymbolSize(size_t* bytes, Symbol&) {
  *bytes = sizeof(Symbol);
  return cudaSuccess;
}

// Kernels are functions, and functions of a void* would take anything.
template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*function)(Parameters...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(function));
}
template <class... Parameters>
cudaError_t cudaFuncSetCacheConfig(void (*function)(Parameters...), cudaFuncCache config) {
  return cudaFuncSetCacheConfig(reinterpret_cast<const void*>(function), config);
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                          void (*function)(Parameters...),
                                                          int threads, size_t dynamic_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      blocks, reinterpret_cast<const void*>(function), threads, dynamic_bytes);
}

/// The largest block of those with which a multiprocessor holds most threads, and a grid of such
/// blocks that fills all multiprocessors. `bytes_of(threads)` is a block's dynamic shared memory.
template <class Kernel, class BytesOf>
cudaError_t cudaOccupancyMaxPotentialBlockSizeVariableSMem(int* grid, int* block, Kernel kernel,
                                                           BytesOf bytes_of, int limit = 0) {
  int best = 0, multiprocessors = 0;
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
      error != cudaSuccess) {
    return error;
  }
  for (int threads = limit > 0 && limit < 1024 ? limit : 1024; threads > 0;
       threads = (threads - 1) / 32 * 32) {
    int blocks = 0;
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &blocks, kernel, threads, static_cast<size_t>(bytes_of(threads)));
    if (error != cudaSuccess) return error;
    if (blocks * threads <= best) continue;
    best = blocks * threads;
    *block = threads;
    *grid = blocks * multiprocessors;
  }
  return cudaSuccess;
}
template <class Kernel>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, Kernel kernel,
                                               size_t dynamic_bytes = 0, int limit = 0) {
  return cudaOccupancyMaxPotentialBlockSizeVariableSMem(
      grid, block, kernel, [dynamic_bytes](int) { return dynamic_bytes; }, limit);
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
