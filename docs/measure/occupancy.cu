// A copy with few warps on a multiprocessor and with many, with one load in flight in each thread
// and with four.
//     ./tour play docs/measure/occupancy.cu
//     nvcc -std=c++20 -O3 -arch=native -I . docs/measure/occupancy.cu && ./a.out
#include <cstdint>

#include "docs/measure/measure.hpp"

// snippet-begin copies
/// One load, one store: the next load is not asked for before this one has come.
__global__ void copy_one(const float4* in, float4* out, std::int64_t n) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
#pragma unroll 1
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    out[i] = in[i];
  }
}

/// Four loads, then four stores.
__global__ void copy_four(const float4* in, float4* out, std::int64_t n) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
#pragma unroll 1
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += 4 * stride) {
    float4 loaded[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (i + k * stride < n) loaded[k] = in[i + k * stride];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (i + k * stride < n) out[i + k * stride] = loaded[k];
    }
  }
}
// snippet-end copies

using Copy = void (*)(const float4*, float4*, std::int64_t);

/// Takes so much shared memory for nothing that no more than `blocks` fit on a multiprocessor.
/// Returns how many do.
int limit_blocks(Copy copy, int threads, int blocks, const cudaDeviceProp& card, int* bytes) {
  const auto reserved = static_cast<int>(card.reservedSharedMemPerBlock);
  const int share = static_cast<int>(card.sharedMemPerMultiprocessor) / blocks - reserved;
  *bytes = std::min(share, static_cast<int>(card.sharedMemPerBlockOptin)) / 1024 * 1024;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(copy),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, *bytes));
  int fit = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, copy, threads, *bytes));
  return fit;
}

int main(int count, char** arguments) {
  const cudaDeviceProp card = properties();
  const struct {
    const char* name;
    Copy run;
  } copies[] = {{"one load", copy_one}, {"four loads", copy_four}};

  int wrong = 0;
  constexpr std::int64_t kOdd = 10'007;
  for (const auto& copy : copies) {
    std::vector<float4> host(kOdd);
    for (std::int64_t i = 0; i < kOdd; ++i) host[i] = {float(i), 1, 2, float(-i)};
    float4 *in = on_device(host), *out = allocate<float4>(kOdd);
    check(cudaMemset(out, 0, kOdd * sizeof(float4)));
    copy.run<<<5, 128>>>(in, out, kOdd);
    const std::vector<float4> copied = on_host(out, kOdd);
    wrong += std::memcmp(copied.data(), host.data(), kOdd * sizeof(float4)) != 0;
    check(cudaFree(in));
    check(cudaFree(out));
  }
  end_without_times(wrong);

  const std::size_t bytes = std::min(16 * std::size_t(card.l2CacheSize), card.totalGlobalMem / 8);
  const std::int64_t n = std::int64_t(bytes / sizeof(float4));
  float4 *in = allocate<float4>(n), *out = allocate<float4>(n);
  check(cudaMemset(in, 0, n * sizeof(float4)));
  std::vector<Row> rows;
  for (const auto& copy : copies) {
    // Warps on a multiprocessor: blocks of 256 threads, and as many as shared memory leaves.
    for (int blocks = 1; 256 * blocks <= card.maxThreadsPerMultiProcessor; blocks *= 2) {
      int shared = 0;
      const int fit = limit_blocks(copy.run, 256, blocks, card, &shared);
      const double ns = nanoseconds(
          5, [&] { copy.run<<<fit * card.multiProcessorCount, 256, shared>>>(in, out, n); });
      const double percent = 100.0 * fit * 256 / card.maxThreadsPerMultiProcessor;
      char where[64];
      std::snprintf(where, sizeof where, "%d warps, %.0f %%", fit * 8, percent);
      rows.push_back({copy.name, "copy", 2 * double(bytes) / ns * 1e-3, "TB/s", where});
    }
    // Threads in a block: as many blocks as fit.
    for (int threads = 32; threads <= 1024; threads *= 2) {
      int fit = 0;
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, copy.run, threads, 0));
      const double ns = nanoseconds(
          5, [&] { copy.run<<<fit * card.multiProcessorCount, threads>>>(in, out, n); });
      const std::string where = std::to_string(threads) + " threads";
      rows.push_back({copy.name, "block size", 2 * double(bytes) / ns * 1e-3, "TB/s", where});
    }
  }
  show(rows, "occupancy", count, arguments);
  return 0;
}
