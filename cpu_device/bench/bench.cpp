// How fast the CPU device simulates. Prints one line a case: name, milliseconds (the best of ten
// runs), each result checked. These are times of this machine and say nothing about a GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <span>
#include <vector>

#include "cpu_device/options.h"
#include "harness/buffer.hpp"
#include "harness/inputs.hpp"
#include "kernels.hpp"

namespace {

using tile::DeviceBuffer;

struct Case {
  const char* name;
  std::function<void()> run;
  std::function<double()> error;  // of the result, against a loop in double
};

double best_milliseconds(const std::function<void()>& run) {
  run();
  double best = INFINITY;
  for (int i = 0; i < 10; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count());
  }
  return best;
}

}  // namespace

int main() {
  constexpr int kLargest = 1 << 20;
  cpu_device::options().workers = 1;
  const auto layout = tile::vector_layout(tile::DType::fp32, kLargest);
  const auto a_values = tile::normal(kLargest, tile::DType::fp32, 1);
  const auto b_values = tile::normal(kLargest, tile::DType::fp32, 2);
  DeviceBuffer a_buffer = DeviceBuffer::input("a", layout, a_values);
  DeviceBuffer b_buffer = DeviceBuffer::input("b", layout, b_values);
  DeviceBuffer c_buffer = DeviceBuffer::output("c", layout, tile::Poison::unwritten_nan);
  const auto* a = static_cast<const float*>(a_buffer.raw());
  const auto* b = static_cast<const float*>(b_buffer.raw());
  auto* c = static_cast<float*>(c_buffer.raw());

  // The error of the last element stands for all: it is the last to be written.
  auto add_error = [&](int n) {
    const auto last = static_cast<std::size_t>(n - 1);
    return std::abs(c_buffer.download()[last] - (a_values[last] + b_values[last]));
  };
  auto matmul_error = [&](int n) {
    double sum = 0;
    for (int k = 0; k < n; ++k) {
      sum += a_values[static_cast<std::size_t>((n - 1) * n + k)] *
             b_values[static_cast<std::size_t>(k * n + n - 1)];
    }
    return std::abs(c_buffer.download()[static_cast<std::size_t>(n * n - 1)] - sum);
  };
  auto softmax_error = [&](int rows, int columns) {
    const auto row = std::span(a_values).subspan(static_cast<std::size_t>((rows - 1) * columns),
                                                 static_cast<std::size_t>(columns));
    double sum = 0;
    for (const double x : row) sum += std::exp(x);
    return std::abs(c_buffer.download()[static_cast<std::size_t>(rows * columns - 1)] -
                    std::exp(row.back()) / sum);
  };

  using namespace cpu_device_bench;
  const Case cases[] = {
      {"vector_add n1048576", [&] { vector_add(a, b, c, 1 << 20); },
       [&] { return add_error(1 << 20); }},
      {"vector_add n16384", [&] { vector_add(a, b, c, 1 << 14); },
       [&] { return add_error(1 << 14); }},
      {"matmul n256", [&] { matmul(a, b, c, 256); }, [&] { return matmul_error(256); }},
      {"matmul n32", [&] { matmul(a, b, c, 32); }, [&] { return matmul_error(32); }},
      {"softmax 1024x1024", [&] { softmax(a, c, 1024, 1024); },
       [&] { return softmax_error(1024, 1024); }},
      {"softmax 64x1024", [&] { softmax(a, c, 64, 1024); },
       [&] { return softmax_error(64, 1024); }},
  };
  for (const Case& one : cases) {
    const double milliseconds = best_milliseconds(one.run);
    if (cudaDeviceSynchronize() != cudaSuccess || !(one.error() < 1e-4)) {
      std::fprintf(stderr, "%s: wrong\n", one.name);
      return 1;
    }
    std::printf("%s\t%.4f\n", one.name, milliseconds);
  }
}
