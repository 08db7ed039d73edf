// y = silu(scale x + bias) by three kernels and by one.
//     ./tour play docs/measure/fusion.cu
//     nvcc -std=c++20 -O3 -arch=native -I . docs/measure/fusion.cu && ./a.out
#include <cmath>
#include <cstdint>

#include "docs/measure/measure.hpp"

constexpr int kThreads = 256;

// snippet-begin three
__global__ void multiply(const float* x, float scale, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = scale * x[i];
}
__global__ void add(const float* x, const float* bias, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + bias[i % kThreads];
}
__global__ void silu(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] / (1 + expf(-x[i]));
}
// snippet-end three

// snippet-begin one
__global__ void fused(const float* x, float scale, const float* bias, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float z = scale * x[i] + bias[i % kThreads];
  y[i] = z / (1 + expf(-z));
}
// snippet-end one

struct Buffers {
  float *x, *bias, *y;
};

void run_three(const Buffers& b, float scale, int n) {
  const int blocks = (n + kThreads - 1) / kThreads;
  multiply<<<blocks, kThreads>>>(b.x, scale, b.y, n);
  add<<<blocks, kThreads>>>(b.y, b.bias, b.y, n);
  silu<<<blocks, kThreads>>>(b.y, b.y, n);
}
void run_one(const Buffers& b, float scale, int n) {
  fused<<<(n + kThreads - 1) / kThreads, kThreads>>>(b.x, scale, b.bias, b.y, n);
}

int main(int count, char** arguments) {
  constexpr float kScale = 0.5f;
  const struct {
    const char* name;
    void (*run)(const Buffers&, float, int);
  } ways[] = {{"three kernels", run_three}, {"one kernel", run_one}};

  const auto make_buffers = [](int n) {
    std::vector<float> x(n), bias(kThreads);
    for (int i = 0; i < n; ++i) x[i] = float(i % 101 - 50) / 8;
    for (int i = 0; i < kThreads; ++i) bias[i] = float(i % 7 - 3) / 4;
    return Buffers{on_device(x), on_device(bias), allocate<float>(n)};
  };
  const auto release = [](const Buffers& b) {
    for (float* buffer : {b.x, b.bias, b.y}) check(cudaFree(buffer));
  };

  int wrong = 0;
  constexpr int kOdd = 10'007;
  for (const auto& way : ways) {
    const Buffers b = make_buffers(kOdd);
    check(cudaMemset(b.y, 0xff, kOdd * sizeof(float)));  // NaN
    way.run(b, kScale, kOdd);
    const std::vector<float> y = on_host(b.y, kOdd);
    for (int i = 0; i < kOdd; ++i) {
      const double z = kScale * (i % 101 - 50) / 8.0 + (i % kThreads % 7 - 3) / 4.0;
      const double exact = z / (1 + std::exp(-z));
      wrong += !(std::abs(y[i] - exact) <= 1e-6 * (1 + std::abs(z)));
    }
    release(b);
  }
  end_without_times(wrong);

  std::vector<Row> rows;
  for (const int n : {1 << 16, 1 << 27}) {
    const Buffers b = make_buffers(n);
    for (const auto& way : ways) {
      const double ns = nanoseconds(20, [&] { way.run(b, kScale, n); });
      rows.push_back({way.name, "time", ns * 1e-3, "us", "fp32 n" + std::to_string(n)});
    }
    release(b);
  }
  show(rows, "fusion", count, arguments);
  return 0;
}
