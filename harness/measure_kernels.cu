#include "harness/measure_kernels.hpp"

#include "tile/ptx/global_timer.cuh"
#include "tile/ptx/mma.cuh"

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

// A multiply and a xor-shift, twice: enough that no two words of a cache line are alike.
__device__ unsigned int random_word(unsigned int i) {
  unsigned int bits = i * 0x9e3779b1u;
  bits = (bits ^ (bits >> 15)) * 0x85ebca6bu;
  return bits ^ (bits >> 13);
}

__global__ void random_kernel(uint4* data,  // [count]
                              std::size_t count) {
  const std::size_t first = blockIdx.x * kPerBlock + threadIdx.x;
  for (std::size_t v = 0; v < kVectorsPerThread; ++v) {
    const std::size_t i = first + v * kThreads;
    auto word = [i](unsigned int part) {
      return random_word(static_cast<unsigned int>(i) * 4 + part);
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

// An mma.sync takes some 33 cycles on an H100, and each of a multiprocessor's four parts starts one
// every six or so: four warps a part with eight independent ones each leave none waiting.
constexpr int kTensorThreads = 512;
constexpr int kTensorRows = 2, kTensorCols = 4;  // of small matrices that a warp multiplies
constexpr int kTensorRounds = 9000;              // about a millisecond at 620 TFLOP/s of bf16

__device__ void multiply(__half, float (&d)[4], const std::uint32_t (&a)[4],
                         const std::uint32_t (&b)[2]) {
  ptx::mma_m16n8k16<__half>(d, a, b);
}
__device__ void multiply(__nv_bfloat16, float (&d)[4], const std::uint32_t (&a)[4],
                         const std::uint32_t (&b)[2]) {
  ptx::mma_m16n8k16<__nv_bfloat16>(d, a, b);
}
__device__ void multiply(float, float (&d)[4], const std::uint32_t (&a)[4],
                         const std::uint32_t (&b)[2]) {
  ptx::mma_m16n8k8_tf32(d, a, b);
}

/// Each word of the factors is random where `random` has ones, and `fixed` elsewhere. Both are
/// parameters so that the compiler does not know the result.
template <class T>
__global__ void tensor_kernel(std::uint32_t random, std::uint32_t fixed, unsigned char* sink) {
  std::uint32_t a[kTensorRows][4], b[kTensorCols][2];
  unsigned int next = threadIdx.x * 32;
  const auto factors = [&] { return (random_word(next++) & random) | fixed; };
#pragma unroll
  for (int i = 0; i < kTensorRows; ++i) {
    for (int word = 0; word < 4; ++word) a[i][word] = factors();
  }
#pragma unroll
  for (int j = 0; j < kTensorCols; ++j) {
    for (int word = 0; word < 2; ++word) b[j][word] = factors();
  }
  float sums[kTensorRows][kTensorCols][4] = {};
  for (int round = 0; round < kTensorRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kTensorRows; ++i) {
#pragma unroll
      for (int j = 0; j < kTensorCols; ++j) multiply(T{}, sums[i][j], a[i], b[j]);
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kTensorRows; ++i) {
#pragma unroll
    for (int j = 0; j < kTensorCols; ++j) {
      for (int s = 0; s < 4; ++s) sum += sums[i][j][s];
    }
  }
  if (sum != sum) *sink = 1;
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

double tensor_multiply_add_count(DType type, int multiprocessors) {
  const double products = 16 * 8 * (type == DType::tf32 ? 8 : 16);  // of an instruction
  return products * multiprocessors * (kTensorThreads / 32) * kTensorRounds * kTensorRows *
         kTensorCols;
}

void tensor_multiply_add(DType type, int multiprocessors, void* sink, void* stream) {
  const auto blocks = static_cast<unsigned int>(multiprocessors);
  auto* s = static_cast<cudaStream_t>(stream);
  auto* byte = static_cast<unsigned char*>(sink);
  // Signs and significands are random, the exponent is that of 1/2.
  if (type == DType::fp16) {
    tensor_kernel<__half><<<blocks, kTensorThreads, 0, s>>>(0x83ff83ff, 0x38003800, byte);
  } else if (type == DType::bf16) {
    tensor_kernel<__nv_bfloat16><<<blocks, kTensorThreads, 0, s>>>(0x807f807f, 0x3f003f00, byte);
  } else {
    tensor_kernel<float><<<blocks, kTensorThreads, 0, s>>>(0x807fe000, 0x3f000000, byte);
  }
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
