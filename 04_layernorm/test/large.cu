#include "large.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "harness/convert.hpp"
#include "tile/basics.cuh"
#include "tile/host/cuda_check.hpp"

namespace layernorm {
namespace {

constexpr int kThreads = 256;

// For loops over items, as many as fill a card.
int blocks_for(std::int64_t items) {
  return static_cast<int>(std::clamp<std::int64_t>(items / kThreads, 1, 1024));
}
__device__ std::int64_t first_item() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ std::int64_t all_threads() { return static_cast<std::int64_t>(gridDim.x) * kThreads; }

template <class T>
__global__ void repeat(T* data,           // [rows][cols]
                       const T* pattern,  // [period][cols]
                       std::int64_t rows, std::int64_t cols, std::int64_t ld, std::int64_t period) {
  for (std::int64_t i = first_item(); i < rows * cols; i += all_threads()) {
    const std::int64_t row = i / cols, col = i % cols;
    data[row * ld + col] = pattern[row % period * cols + col];
  }
}

// How many elements are wrong, and the first.
struct Found {
  unsigned long long count, first;

  __device__ void add(std::int64_t at) {
    atomicAdd(&count, 1ull);
    atomicMin(&first, static_cast<unsigned long long>(at));
  }
};

template <class T>
__global__ void find_different(const T* data,        // [rows][cols]
                               const double* value,  // [period][cols]
                               const double* bound,  // [period][cols]
                               std::int64_t rows, std::int64_t cols, std::int64_t ld,
                               std::int64_t period, Found* found) {
  for (std::int64_t i = first_item(); i < rows * cols; i += all_threads()) {
    const std::int64_t at = i / cols * ld + i % cols;
    const std::int64_t expected = i / cols % period * cols + i % cols;
    const double error = static_cast<double>(static_cast<float>(data[at])) - value[expected];
    if (!(fabs(error) <= bound[expected])) found->add(at);  // a NaN is wrong
  }
}

// Elements between the rows that do not have all bits one. Bits is as long as an element.
template <class Bits>
__global__ void find_written(const Bits* data,  // [rows][cols]
                             std::int64_t rows, std::int64_t cols, std::int64_t ld, Found* found) {
  const std::int64_t gap = ld - cols;
  for (std::int64_t i = first_item(); i < (rows - 1) * gap; i += all_threads()) {
    const std::int64_t at = i / gap * ld + cols + i % gap;
    if (data[at] != static_cast<Bits>(~Bits{0})) found->add(at);
  }
}

struct CudaFree {
  void operator()(void* memory) const { static_cast<void>(cudaFree(memory)); }
};
using DeviceMemory = std::unique_ptr<void, CudaFree>;

tile::Status upload(const void* data, std::size_t bytes, DeviceMemory* memory) {
  void* allocated = nullptr;
  TILE_RETURN_IF_CUDA_ERROR(cudaMalloc(&allocated, bytes));
  memory->reset(allocated);
  TILE_RETURN_IF_CUDA_ERROR(cudaMemcpy(allocated, data, bytes, cudaMemcpyHostToDevice));
  return {};
}

tile::Status upload(std::span<const double> values, DeviceMemory* memory) {
  return upload(values.data(), values.size_bytes(), memory);
}

}  // namespace

tile::Status repeat_rows(const Matrix& m, std::span<const double> pattern) {
  const std::vector<std::byte> bytes = tile::from_double(pattern, m.type);
  DeviceMemory memory;
  TILE_TRY(upload(bytes.data(), bytes.size(), &memory));
  return tile::with_element_type(m.type, [&](auto element) {
    using T = decltype(element);
    repeat<T><<<blocks_for(m.rows * m.cols), kThreads>>>(
        static_cast<T*>(m.data), static_cast<const T*>(memory.get()), m.rows, m.cols, m.ld,
        std::ssize(pattern) / m.cols);
    TILE_TRY(tile::launch_status("repeat"));
    return tile::synchronize_status(nullptr);
  });
}

tile::Status check_repeated(const Matrix& m, const tile::Expected& expected) {
  const std::int64_t period = std::ssize(expected.value) / m.cols;
  Found found{0, ~0ull};
  DeviceMemory value, bound, memory;
  TILE_TRY(upload(expected.value, &value));
  TILE_TRY(upload(expected.bound, &bound));
  TILE_TRY(upload(&found, sizeof found, &memory));
  auto* on_device = static_cast<Found*>(memory.get());
  const auto find = [&](auto element) {
    using T = decltype(element);
    find_different<T><<<blocks_for(m.rows * m.cols), kThreads>>>(
        static_cast<const T*>(m.data), static_cast<const double*>(value.get()),
        static_cast<const double*>(bound.get()), m.rows, m.cols, m.ld, period, on_device);
    return tile::launch_status("find_different");
  };
  TILE_TRY(tile::with_element_type(m.type, find));
  if (m.ld > m.cols) {
    const int blocks = blocks_for((m.rows - 1) * (m.ld - m.cols));
    if (tile::size_bytes(m.type) == 2) {
      find_written<std::uint16_t><<<blocks, kThreads>>>(static_cast<const std::uint16_t*>(m.data),
                                                        m.rows, m.cols, m.ld, on_device);
    } else {
      find_written<std::uint32_t><<<blocks, kThreads>>>(static_cast<const std::uint32_t*>(m.data),
                                                        m.rows, m.cols, m.ld, on_device);
    }
    TILE_TRY(tile::launch_status("find_written"));
  }
  TILE_RETURN_IF_CUDA_ERROR(cudaMemcpy(&found, on_device, sizeof found, cudaMemcpyDeviceToHost));
  if (found.count == 0) return {};
  const auto first = static_cast<std::int64_t>(found.first);
  return tile::device_error(
      "matrix", std::to_string(found.count) + " elements are wrong, the first in row " +
                    std::to_string(first / m.ld) + ", column " + std::to_string(first % m.ld));
}

}  // namespace layernorm
