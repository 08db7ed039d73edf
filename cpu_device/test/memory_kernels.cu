#include "memory_kernels.hpp"

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

namespace device_test {
namespace {

#define CHECK_LAYOUT(Vector, Element, count, alignment)     \
  static_assert(sizeof(Vector) == sizeof(Element) * count); \
  static_assert(alignof(Vector) == alignment);              \
  static_assert(std::is_same_v<decltype(Vector::x), Element>);
DEVICE_TEST_VECTOR_TYPES(CHECK_LAYOUT)
static_assert(offsetof(float4, x) == 0 && offsetof(float4, y) == 4 && offsetof(float4, z) == 8);
static_assert(offsetof(float4, w) == 12 && offsetof(double3, z) == 16 && offsetof(uchar4, w) == 3);
static_assert(sizeof(dim3) == 12 && dim3().y == 1 && dim3(4).x == 4 && dim3(4, 5).z == 1);
static_assert(std::is_convertible_v<unsigned, dim3> && std::is_convertible_v<uint3, dim3>);
static_assert(std::is_same_v<decltype(threadIdx.x), unsigned>);

template <class T>
__global__ void copy_with_hints_kernel(const T* in, T* out, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  T* to = out + i;
  *to = __ldg(in + i), to += count;
  *to = __ldca(in + i), to += count;
  *to = __ldcg(in + i), to += count;
  *to = __ldcs(in + i), to += count;
  *to = __ldlu(in + i), to += count;
  *to = __ldcv(in + i), to += count;
  __stwb(to, in[i]), to += count;
  __stcg(to, in[i]), to += count;
  __stcs(to, in[i]), to += count;
  __stwt(to, in[i]);
}

#define ARGUMENTS_1 1
#define ARGUMENTS_2 1, 2
#define ARGUMENTS_3 1, 2, 3
#define ARGUMENTS_4 1, 2, 3, 4
#define MAKE(Vector, Element, count, alignment)                         \
  *reinterpret_cast<Vector*>(bytes) = make_##Vector(ARGUMENTS_##count); \
  bytes += kVectorBytes;

__global__ void make_vectors_kernel(unsigned char* bytes) { DEVICE_TEST_VECTOR_TYPES(MAKE) }

}  // namespace

template <class T>
void copy_with_hints(const T* in, T* out, unsigned count) {
  copy_with_hints_kernel<<<(count + 63) / 64, 64>>>(in, out, count);
}
#define INSTANTIATE(T) template void copy_with_hints(const T*, T*, unsigned);
DEVICE_TEST_LOADED_TYPES(INSTANTIATE)

int make_vectors(unsigned char* bytes) {
  make_vectors_kernel<<<1, 1>>>(bytes);
#define ONE(Vector, Element, count, alignment) +1
  return DEVICE_TEST_VECTOR_TYPES(ONE);
}

}  // namespace device_test
