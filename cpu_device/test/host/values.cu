// Right uses of kernels as values, and calls of functions that are named like kernels. The latter
// make the translator mark the kernels, which must change nothing.
#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace {

__global__ void add(int n, int* out);
template <class T>
__global__ void fill(T* out, T value) {
  out[threadIdx.x] = value;
}
extern "C" __global__ void twice(int n, int* out) { *out = 2 * n; }
__global__ void add(int n, int* out) { *out += n; }

// As the standard library's function, which is noexcept.
__global__ void swap(int* a, int* b) {
  const int before = *a;
  *a = *b;
  *b = before;
}

#define LAUNCH(kernel, ...) kernel<<<1, 1>>>(__VA_ARGS__)

// Named like kernels.
void add(int n, int* out, cudaStream_t stream) { add<<<1, 1, 0, stream>>>(n, out); }
void twice(const int* n, int* out) { twice<<<1, 1>>>(*n, out); }

template <class... Parameters, class... Arguments>
void by_pointer(void (*kernel)(Parameters...), Arguments... arguments) {
  kernel<<<1, 1>>>(arguments...);
}
template <class... Parameters, class... Arguments>
void by_reference(void (&kernel)(Parameters...), Arguments... arguments) {
  kernel<<<1, 1>>>(arguments...);
}
template <void (*kKernel)(int, int*)>
void by_value(int n, int* out) {
  kKernel<<<1, 1>>>(n, out);
}
template <class Function>
void call(Function add) {
  add(7);
}

}  // namespace

/// Whether each of them has done what it says, in `out`, which both sides may touch.
bool values_are_right(int* out) {
  using Kernel = void (*)(int, int*);
  int sum = 0, n = 1;
  *out = 0;
  add(n, out, nullptr);
  const Kernel table[] = {add, &add};
  const Kernel same = add;
  for (const auto& kernel : table) kernel<<<1, 1>>>(1, out);
  same<<<1, 1>>>(1, out);
  by_pointer<int, int*>(add, 1, out);
  by_reference<int, int*>(add, 1, out);
  by_value<add>(1, out);
  LAUNCH(add, 1, out);
  (add<<<1, 1>>>(1, out));
  const std::map<std::string, Kernel> named{{"add", add}};
  const Kernel found = named.at("add");
  found<<<1, 1>>>(1, out);
  const std::function<void(int)> launch = [out](int value) { add<<<1, 1>>>(value, out); };
  launch(1);
  void* arguments[] = {&n, &out};
  cudaLaunchKernel<int, int*>(add, 1, 1, arguments);
  cudaDeviceSynchronize();
  sum += *out == 12;

  twice(&n, out);
  cudaDeviceSynchronize();
  sum += *out == 2;

  int a = 1, b = 2;
  std::swap(a, b);
  out[1] = 3;
  swap<<<1, 1>>>(out, out + 1);
  cudaDeviceSynchronize();
  sum += a == 2 && b == 1 && out[0] == 3 && out[1] == 2;

  int host[2];
  {
    using namespace std;
    fill(host, host + 2, 3);
  }
  auto kernel = fill<int>;
  kernel = &fill<int>;
  decltype(&fill<int>) typed = kernel;
  cudaFuncAttributes attributes;
  int blocks = 0;
  cudaFuncGetAttributes(&attributes, fill<int>);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 1000);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, typed, 32, 0);
  typed<<<1, 2>>>(out, host[1]);
  call([&](int value) { sum += value == 7; });
  cudaDeviceSynchronize();
  sum += out[0] == 3 && out[1] == 3 && blocks > 0;
  return sum == 5;
}
