// A whole CUDA program: c[i] = a[i] + b[i], one thread for each i.
// ./tour play 01_vector_add/first.cu runs it, and so does nvcc first.cu && ./a.out
#include <cstdio>
#include <cstdlib>
#include <vector>

__global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(error));
  std::exit(1);
}

float* on_device(const std::vector<float>& host) {
  float* device = nullptr;
  check(cudaMalloc(&device, host.size() * sizeof(float)));
  check(cudaMemcpy(device, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice));
  return device;
}

int main() {
  const int n = 1000, threads = 256, blocks = (n + threads - 1) / threads;
  std::vector<float> a(n), b(n), c(n);
  for (int i = 0; i < n; ++i) a[i] = i, b[i] = 2 * i;

  float *device_a = on_device(a), *device_b = on_device(b), *device_c = on_device(c);
  add<<<blocks, threads>>>(device_a, device_b, device_c, n);
  check(cudaGetLastError());       // was it launched?
  check(cudaDeviceSynchronize());  // did it end well?
  check(cudaMemcpy(c.data(), device_c, n * sizeof(float), cudaMemcpyDeviceToHost));
  for (float* device : {device_a, device_b, device_c}) check(cudaFree(device));

  int wrong = 0;
  for (int i = 0; i < n; ++i) wrong += c[i] != 3 * i;
  std::printf("%d sums by %d blocks of %d threads: %d are wrong\n", n, blocks, threads, wrong);
  return wrong != 0;
}
