// Makes one mistake on the host, named by the argument: the CPU device must end the program with a
// report, or refuse the call.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

bool values_are_right(int* out);

namespace {

constexpr int kCount = 100;
constexpr size_t kBytes = kCount * sizeof(int);

int* on_device() {
  int* device = nullptr;
  cudaMalloc(&device, kBytes);  // allocation
  return device;
}

__device__ int symbol = 3;

__global__ void fill(int* out, int value) {
  if (threadIdx.x < kCount) out[threadIdx.x] = value;
}
__global__ void look(const int* in, int* out) {
  if (threadIdx.x == 0) *out = in[0];
}

bool failed(cudaError_t error) {
  if (error != cudaSuccess) std::printf("%s\n", cudaGetErrorString(error));
  return error != cudaSuccess;
}

/// Whether the mistake was refused.
bool make(std::string_view mistake) {
  std::vector<int> host(kCount, 1);
  int* const device = on_device();
  if (mistake == "reads") {
    return device[kCount - 1] == 0;  // reads
  }
  if (mistake == "writes") {
    for (int i = 0; i < kCount; ++i) device[i] = i;  // writes
  }
  if (mistake == "frees") {
    std::free(device);  // frees
  }
  if (mistake == "past_the_end") {
    device[kCount] = 1;  // past_the_end
  }
  if (mistake == "copies") {
    std::memcpy(device, host.data(), kBytes);  // copies
  }
  if (mistake == "after_kernel") {
    fill<<<1, 128>>>(device, 1);
    host[0] = device[0];  // after_kernel
  }
  if (mistake == "to_host") {
    return failed(cudaMemcpy(device, host.data(), kBytes, cudaMemcpyDeviceToHost));  // to_host
  }
  if (mistake == "to_device") {
    return failed(cudaMemcpy(host.data(), device, kBytes, cudaMemcpyHostToDevice));  // to_device
  }
  if (mistake == "on_device") {
    return failed(cudaMemcpy(device, host.data(), kBytes, cudaMemcpyDeviceToDevice));  // on_device
  }
  if (mistake == "too_many") {
    return failed(cudaMemcpy(device, host.data(), kBytes + 4, cudaMemcpyHostToDevice));  // too_many
  }
  if (mistake == "set_on_host") {
    return failed(cudaMemset(host.data(), 0, kBytes));  // set_on_host
  }
  if (mistake == "unsynchronised") {
    int* managed = nullptr;
    cudaMallocManaged(&managed, kBytes);
    fill<<<1, 128>>>(managed, 1);  // launch
    return managed[0] == 0;        // unsynchronised
  }
  return false;
}

/// What a program may do, with all kinds of memory.
bool right() {
  int *managed = nullptr, *input = nullptr, *device = on_device();
  std::vector<int> host(kCount, 1), back(kCount);
  cudaMallocManaged(&managed, kBytes);
  cudaMallocManaged(&input, kBytes);
  for (int i = 0; i < kCount; ++i) managed[i] = i, input[i] = 5;
  if (managed[7] != 7 || failed(cudaMemcpy(device, host.data(), kBytes, cudaMemcpyDefault)) ||
      failed(cudaMemcpy(back.data(), device, kBytes, cudaMemcpyDefault)) || back != host) {
    return false;
  }
  look<<<1, 32>>>(input, device);
  input[1] = managed[1];  // the kernel writes to neither
  fill<<<1, 128>>>(managed, 3);
  if (failed(cudaMemset(device, 0, kBytes)) || managed[3] != 3) return false;
  fill<<<1, 128>>>(managed, 4);
  const auto look_there = [](void* there) { static_cast<int*>(there)[1] += 1; };
  if (failed(cudaLaunchHostFunc(nullptr, look_there, managed)) || managed[1] != 5) return false;
  fill<<<1, 128>>>(managed, 7);
  int of_symbol = 0;
  if (failed(cudaMemcpyFromSymbol(&of_symbol, symbol, sizeof of_symbol)) || managed[1] != 7) {
    return false;
  }
  fill<<<1, 128>>>(managed, 6);
  if (failed(cudaFree(device)) || managed[1] != 6) return false;
  // More than are closed.
  std::vector<int*> many(100);
  for (int*& one : many) cudaMalloc(&one, sizeof(int));
  for (int* one : many) failed(cudaMemcpy(one, host.data(), sizeof(int), cudaMemcpyHostToDevice));
  for (int* one : many) failed(cudaFree(one));
  return values_are_right(managed) && !failed(cudaDeviceReset());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return std::fprintf(stderr, "needs the name of a mistake\n"), 2;
  std::printf("begins\n");
  const std::string_view mistake = arguments[1];
  if (mistake == "none") return right() ? 0 : 2;
  return make(mistake) ? 1 : 0;
}
