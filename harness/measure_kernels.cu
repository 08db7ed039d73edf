#include "harness/measure_kernels.hpp"

namespace tile {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kVectorsPerThread = 4;  // loads in flight at one time
constexpr std::size_t kPerBlock = kThreads * kVectorsPerThread;

unsigned int blocks_for(std::size_t count) {
  return static_cast<unsigned int>((count + kPerBlock - 1) / kPerBlock);
}

__global__ void copy_kernel(const uint4* from,  // [count]
                            uint4* to,          // [count]
                            std::size_t count) {
  const std::size_t first = blockIdx.x * kPerBlock + threadIdx.x;
  uint4 vectors[kVectorsPerThread];
  for (std::size_t v = 0; v < kVectorsPerThread; ++v) {
    if (first + v * kThreads < count) vectors[v] = from[first + v * kThreads];
  }
  for (std::size_t v = 0; v < kVectorsPerThread; ++v) {
    if (first + v * kThreads < count) to[first + v * kThreads] = vectors[v];
  }
}

__global__ void read_kernel(const uint4* data,  // [count]
                            std::size_t count, unsigned char* sink) {
  const std::size_t first = blockIdx.x * kPerBlock + threadIdx.x;
  unsigned int bits = ~0u;
  for (std::size_t v = 0; v < kVectorsPerThread; ++v) {
    if (first + v * kThreads >= count) continue;
    const uint4 vector = data[first + v * kThreads];
    bits &= vector.x & vector.y & vector.z & vector.w;
  }
  if (bits == ~0u && first < count) *sink = 1;
}

}  // namespace

void copy_vectors(const void* from, void* to, std::size_t count, void* stream) {
  if (count == 0) return;
  copy_kernel<<<blocks_for(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(from), static_cast<uint4*>(to), count);
}

void read_vectors(const void* data, std::size_t count, void* sink, void* stream) {
  if (count == 0) return;
  read_kernel<<<blocks_for(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(data), count, static_cast<unsigned char*>(sink));
}

}  // namespace tile
