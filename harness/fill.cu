#include "harness/fill.hpp"

#include <cuda_fp8.h>

#include <algorithm>

#include "harness/random.cuh"
#include "tile/basics.cuh"

namespace tile {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 1024, kEach = 8;  // elements for a thread, or more

// The sum of four uniform numbers of 16 bits: its mean is 2 and its variance 4 / 12.
__device__ float bell(std::uint64_t bits) {
  std::uint64_t sum = 0;
  for (int part = 0; part < 4; ++part) sum += bits >> 16 * part & 0xffff;
  return (static_cast<float>(sum) * 0x1p-16f - 2) * sqrtf(3);
}

template <class T>
__global__ void fill(T* x,  // [rows][cols]
                     std::int64_t rows, std::int64_t cols, std::uint64_t seed, float mean,
                     float deviation) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i < rows * cols; i += std::int64_t{gridDim.x} * kThreads) {
    x[i] = static_cast<T>(mean + deviation * bell(random_bits(seed, i / cols, i % cols)));
  }
}

}  // namespace

Status fill_random(GuardedMemory* memory, std::uint64_t seed, double mean, double deviation) {
  const Layout& layout = memory->layout();
  if (layout.count() == 0) return {};
  memory->mark_written();
  const auto launch = [&](auto element) {
    using T = decltype(element);
    const std::int64_t blocks = (layout.count() - 1) / (kThreads * kEach) + 1;
    fill<T><<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), kThreads>>>(
        static_cast<T*>(memory->raw()), layout.rows, layout.cols, seed, static_cast<float>(mean),
        static_cast<float>(deviation));
    return launch_status("fill");
  };
  return layout.dtype == DType::e4m3 ? launch(__nv_fp8_e4m3{})
                                     : with_element_type(layout.dtype, launch);
}

}  // namespace tile
