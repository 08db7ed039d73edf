#include "harness/measure_kernels.hpp"

#include "tile/ptx/global_timer.cuh"

namespace tile {
namespace {

// The fastest copy of those tried on an H200 (1,024 threads and two vectors each).
constexpr int kThreads = 1024;
constexpr std::size_t kVectorsPerThread = 2;
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

__global__ void random_kernel(uint4* data,  // [count]
                              std::size_t count) {
  const std::size_t first = blockIdx.x * kPerBlock + threadIdx.x;
  for (std::size_t v = 0; v < kVectorsPerThread; ++v) {
    const std::size_t i = first + v * kThreads;
    // A multiply and a xor-shift, twice: enough that no two words of a cache line are alike.
    auto word = [i](unsigned int part) {
      unsigned int bits = (static_cast<unsigned int>(i) * 4 + part) * 0x9e3779b1u;
      bits = (bits ^ (bits >> 15)) * 0x85ebca6bu;
      return bits ^ (bits >> 13);
    };
    if (i < count) data[i] = {word(0), word(1), word(2), word(3)};
  }
}

__global__ void cycles_kernel(unsigned long long* counts) {  // [2]
  const unsigned long long start = tile::ptx::global_timer();
  const long long start_cycles = clock64();
  unsigned long long elapsed = 0;
  while (elapsed < 100'000) elapsed = tile::ptx::global_timer() - start;
  counts[0] = static_cast<unsigned long long>(clock64() - start_cycles);
  counts[1] = elapsed;
}

// An instruction takes four cycles, and a multiprocessor starts one in each of its four parts in
// every cycle: 16 independent ones a thread and 16 warps a part leave none of them waiting.
constexpr int kBlocksOnAMultiprocessor = 2;  // 2,048 threads
constexpr int kSums = 16;
constexpr int kRounds = 7520;  // a millisecond at 1.98 GHz with 128 cores a multiprocessor

__global__ void multiply_add_kernel(float factor, float term, unsigned char* sink) {
  float sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = static_cast<float>(threadIdx.x + i);
#pragma unroll 8
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kSums; ++i) sums[i] = fmaf(sums[i], factor, term);
  }
  float sum = 0;
  for (int i = 0; i < kSums; ++i) sum += sums[i];
  if (sum < 0) *sink = 1;
}

}  // namespace

double multiply_add_count(int multiprocessors) {
  return 1.0 * multiprocessors * kBlocksOnAMultiprocessor * kThreads * kRounds * kSums;
}

void multiply_add(int multiprocessors, void* sink, void* stream) {
  const auto blocks = static_cast<unsigned int>(multiprocessors * kBlocksOnAMultiprocessor);
  // The compiler does not know these, so it cannot know the result. It stays near 2.
  multiply_add_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      0.5f, 1.0f, static_cast<unsigned char*>(sink));
}

void count_cycles(void* counts, void* stream) {
  cycles_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<unsigned long long*>(counts));
}

void fill_random(void* data, std::size_t count, void* stream) {
  if (count == 0) return;
  random_kernel<<<blocks_for(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<uint4*>(data), count);
}

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
