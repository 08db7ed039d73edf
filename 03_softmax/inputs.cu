#include "inputs.hpp"

#include "harness/cuda_check.hpp"
#include "tile/elements.cuh"
#include "tile/random.cuh"
#include "tile/rows.cuh"

namespace softmax {
namespace {

constexpr int kBlocks = 1024, kThreads = 256;

// The sum of four uniform numbers of 16 bits: its mean is 2 and its variance 4 / 12.
__device__ float bell(std::uint64_t bits) {
  std::uint64_t sum = 0;
  for (int part = 0; part < 4; ++part) sum += bits >> 16 * part & 0xffff;
  return (static_cast<float>(sum) * 0x1p-16f - 2) * sqrtf(3);
}

template <class T>
__global__ void fill(tile::Rows<T> x,  // [rows][cols]
                     std::int64_t rows, std::int64_t cols, std::uint64_t seed, float mean,
                     float deviation) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i < rows * cols; i += std::int64_t{kBlocks} * kThreads) {
    const std::int64_t row = i / cols, col = i % cols;
    x[row][col] = static_cast<T>(mean + deviation * bell(tile::random_bits(seed, row, col)));
  }
}

}  // namespace

tile::Status fill_random(const Matrix& x, std::uint64_t seed, double mean, double deviation) {
  return tile::with_element_type(x.type, [&](auto element) {
    using T = decltype(element);
    fill<T><<<kBlocks, kThreads>>>(tile::Rows<T>{static_cast<T*>(x.data), x.ld}, x.rows, x.cols,
                                   seed, static_cast<float>(mean), static_cast<float>(deviation));
    return tile::launch_status("fill");
  });
}

}  // namespace softmax
